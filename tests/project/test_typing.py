"""The types are part of the interface: right uses pass both type checkers, wrong ones are
refused.
"""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent / "typing"
ROOT = Path(__file__).parents[2]


@pytest.fixture
def refused(tmp_path):
    path = tmp_path / "refused.py"
    path.write_text((HERE / "refused.py.txt").read_text())
    return path


def marked(path):
    lines = path.read_text().splitlines()
    return {number for number, line in enumerate(lines, 1) if "# refused: " in line}


def complaints_of_mypy(path):
    pytest.importorskip("mypy")
    command = [sys.executable, "-m", "mypy", "--config-file", "pyproject.toml", str(path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode in (0, 1), done.stdout + done.stderr
    found = re.findall(rf"{re.escape(path.name)}:(\d+): error: (.*)", done.stdout)
    assert bool(found) == bool(done.returncode), done.stdout
    return {int(number): message for number, message in found}


def complaints_of_pyright(path):
    pytest.importorskip("pyright")
    settings = path.parent / "pyrightconfig.json"
    if path.parent != HERE:
        settings.write_text(json.dumps({"extraPaths": [str(ROOT / "src")]}))
    project = ["--project", str(settings)] if path.parent != HERE else []
    command = [sys.executable, "-m", "pyright", "--outputjson"]
    # In project mode the files are the project's own, a folder with this one in it.
    command += project or [str(path)]
    command += ["--pythonpath", sys.executable]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if not done.stdout.startswith("{"):
        pytest.skip(f"pyright does not run here: {done.stderr[-200:]}")
    return {
        entry["range"]["start"]["line"] + 1: entry["message"]
        for entry in json.loads(done.stdout)["generalDiagnostics"]
        if entry["severity"] == "error"
    }


@pytest.mark.slow
@pytest.mark.parametrize("complaints", [complaints_of_mypy, complaints_of_pyright])
def test_right_uses_are_accepted(complaints):
    """
    Every way to declare, enqueue, call and manage that the documentation shows passes strictly.
    """
    assert complaints(HERE / "accepted.py") == {}


@pytest.mark.slow
@pytest.mark.parametrize("complaints", [complaints_of_mypy, complaints_of_pyright])
def test_wrong_uses_are_refused(complaints, refused):
    """
    A forgotten connection, a wrong or missing argument, an unknown option: each such line is
    refused before the program runs, and no other line is.
    """
    assert set(complaints(refused)) == marked(refused)
