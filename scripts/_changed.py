"""Print the folders of tests that concern what changed since main, one a line.

Nothing if none does.

    python scripts/_changed.py

A folder is chosen if a file in it changed, or if it is named after a package that changed, or
imports from it. A package that all others stand on, what all tests share, and whatever is no
package, document or example choose all folders.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
#: Packages that every test uses.
_GROUND = {"sql", "db", "ops", "model", "client", "app"}
#: Folders of tests that run what documents and examples say.
_READERS = {"project", "examples"}
#: What tests of the worker's deeds under load and faults are about; they start it as a process.
_OF_THE_WORKER = {"faults", "flows", "concurrency", "acceptance", "examples"}


def main() -> None:
    """Print the folders."""
    sys.stdout.writelines(f"tests/{name}\n" for name in sorted(folders_of(_changes())))


def folders_of(changes: list[str], root: Path = ROOT) -> set[str]:
    """Return the names of the folders in tests that concern these files, paths relative to the
    root.
    """
    every = {path.name for path in (root / "tests").iterdir() if any(path.glob("test_*.py"))}
    found, packages = set(), set()
    for change in changes:
        match change.split("/"):
            case ["tests", name, *_] if name in every:
                found.add(name)
            case (
                ["tests", "README.md"]
                | ["docs", *_]
                | [("README.md" | "CONTRIBUTING.md" | "CHANGELOG.md")]
            ):
                found.add("project")
            case ["examples", *_]:
                found |= _READERS & every
            case ["bench", *_]:
                found.add("bench")
            case ["src", "forebay", name, _, *_]:
                packages.add(name)
            case _:
                return every
    if packages & _GROUND:
        return every
    if packages:
        found |= {"unit", "project"} & every
    for name in every if packages else ():
        files = (root / "tests" / name).glob("*.py")
        if name in packages or any(_imports(file) & packages for file in files):
            found.add(name)
    if "worker" in packages:
        found |= _OF_THE_WORKER & every
    return found


def _imports(file: Path) -> set[str]:
    """Return the packages of the library that a module imports from, wherever the import stands."""
    text = file.read_text(encoding="utf-8")
    return set(re.findall(r"^\s*(?:from|import) forebay\.(\w+)", text, re.MULTILINE))


def _changes() -> list[str]:
    def git(*arguments: str) -> list[str]:
        done = subprocess.run(
            ["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True
        )
        return done.stdout.splitlines()

    return [
        *git("diff", "--name-only", "--no-renames", "--merge-base", "main"),
        *git("ls-files", "--others", "--exclude-standard"),
    ]


if __name__ == "__main__":
    main()
