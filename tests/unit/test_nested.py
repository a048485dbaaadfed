"""Tests that start pytest say the same wherever they run."""

import re
from pathlib import Path

import pytest

from tests.support.nested import ROOT, run_pytest

TESTS = """
def test_it(): ...
"""

_STARTS = re.compile(r"""["'](?:-m["'],\s*["'])?pytest["'],""")


@pytest.mark.slow
def test_a_run_inside_a_test_takes_no_options_from_the_environment(tmp_path, monkeypatch):
    """
    Whoever runs the tests may have options of pytest, plugins and colours in the environment.
    """
    monkeypatch.setenv("PYTEST_ADDOPTS", "-v --collect-only")
    monkeypatch.setenv("PYTEST_PLUGINS", "no_such_plugin")
    monkeypatch.setenv("FORCE_COLOR", "1")
    (tmp_path / "test_some.py").write_text(TESTS)
    done = run_pytest(tmp_path)
    assert done.stdout.splitlines()[-1].startswith("1 passed"), done.stdout + done.stderr


def test_only_one_helper_starts_pytest():
    """
    Each other place would have to remember what the environment may hold.
    """
    found = {
        path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8")
        for path in (ROOT / "tests").rglob("*.py")
        if path != Path(__file__)
    }
    starting = {name for name, text in found.items() if _STARTS.search(text)}
    # That one runs Django's programs too, in the same environment.
    assert starting == {"tests/support/nested.py", "tests/django/test_runners.py"}
    assert "environment_for_pytest()" in found["tests/django/test_runners.py"]
