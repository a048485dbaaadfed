import doctest
import importlib
import pkgutil

import forebay

PARTS = (
    "errors",
    "model",
    "config",
    "policy",
    "arguments",
    "ops",
    "doctor",
    "guard",
    "upgrade",
    "watch",
    "mirror",
)


def modules():
    for part in PARTS:
        name = f"{forebay.__name__}.{part}"
        module = importlib.import_module(name)
        yield name
        if hasattr(module, "__path__"):
            yield from (info.name for info in pkgutil.walk_packages(module.__path__, f"{name}."))


def test_the_examples_in_docstrings_are_true():
    """
    Each example gives what it says.
    """
    results = {name: doctest.testmod(importlib.import_module(name)) for name in modules()}
    assert not [name for name, result in results.items() if result.failed]
    assert sum(result.attempted for result in results.values()) > 20
