import doctest
import importlib
import pkgutil

import pytest

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
    "sync",
)


def modules():
    for part in PARTS:
        name = f"{forebay.__name__}.{part}"
        module = importlib.import_module(name)
        yield name
        if hasattr(module, "__path__"):
            yield from (info.name for info in pkgutil.walk_packages(module.__path__, f"{name}."))


@pytest.mark.parametrize("name", sorted(modules()))
def test_the_examples_in_docstrings_are_true(name):
    """
    Each example gives what it says.
    """
    assert doctest.testmod(importlib.import_module(name)).failed == 0
