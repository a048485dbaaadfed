"""A run of pytest that a test starts, in a folder with files of its own.

It depends on nothing but its words: what the environment says to pytest is for the run that the
test belongs to.
"""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]

#: What chooses colours. With them the last line begins with a code of the terminal.
_COLOURS = ("FORCE_COLOR", "PY_COLORS")


def environment_for_pytest() -> dict[str, str]:
    """Return the variables of this process without those that change what pytest does or prints."""
    return {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("PYTEST_") and name not in _COLOURS
    }


def run_pytest(folder: Path, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run the tests of a folder quietly, with plugins of this checkout, and wait for the end.

    Args:
        folder: where the files are.
        words: further options.
        variables: set for the run.
    """
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *words,
         "--rootdir", folder, folder],
        cwd=folder,
        env=environment_for_pytest() | {"PYTHONPATH": str(ROOT)} | variables,
        capture_output=True, text=True, check=False,
    )  # fmt: skip
