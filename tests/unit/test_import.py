"""``import forebay``: what every program pays for, and what only those that use it do."""

import subprocess
import sys

import pytest

import forebay

#: What enqueuing a job and declaring a handler do without.
NOT_LOADED = (
    "forebay.cli",
    "forebay.django",
    "forebay.doctor",
    "forebay.embedded",
    "forebay.guard",
    "forebay.mirror",
    "forebay.testing",
    "forebay.worker",
    "aiohttp",
    "django",
    "pydantic",
    "rich",
    "sqlalchemy",
    "typer",
)


def loaded_after(statements: str) -> set[str]:
    """Return the modules that a fresh process has loaded after some statements."""
    done = subprocess.run(
        [sys.executable, "-c", f"import sys\n{statements}\nprint(*sys.modules)"],
        capture_output=True,
        text=True,
        check=True,
    )
    return set(done.stdout.split())


def test_importing_the_library_loads_what_producers_need():
    """
    A web process that only enqueues must not pay for the stores that another program keeps in step.
    """
    loaded = loaded_after("import forebay; app = forebay.App()")
    assert "forebay.app" in loaded
    assert not loaded.intersection(NOT_LOADED)


@pytest.mark.parametrize(
    "use",
    [
        "forebay.Mirror",
        "forebay.mirror.Mirror",
        "from forebay import Mirror",
        "from forebay import *",
    ],
)
def test_what_is_not_loaded_is_there_when_it_is_used(use):
    """
    By its name in the package, by that of its module, and by a star.
    """
    assert "forebay.mirror" in loaded_after(f"import forebay\n{use}")


def test_a_name_that_does_not_exist_is_still_an_error():
    """
    As for any module.
    """
    with pytest.raises(AttributeError, match="module 'forebay' has no attribute 'Snyc'"):
        _ = forebay.Snyc
