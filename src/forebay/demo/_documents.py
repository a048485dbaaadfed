"""The input: the modules of the Python standard library on this machine."""

from __future__ import annotations

import os
import sysconfig
import tokenize
from collections.abc import Iterator
from dataclasses import field
from pathlib import Path
from typing import Final

from forebay._dataclass import dataclass

#: Enough for the demo; where a Python has fewer modules, its tests are included too.
_ENOUGH: Final = 600
_MOST: Final = 1500

_FOREIGN: Final = frozenset({"site-packages", "dist-packages", "__pycache__"})
_TESTS: Final = frozenset({"test", "tests", "idle_test", "idlelib", "turtledemo"})


@dataclass(frozen=True, slots=True)
class SourceFile:
    """One module: its path below the folder of the library, and its source."""

    path: str
    source: str = field(repr=False)


def find_documents(folder: Path | None = None) -> list[SourceFile]:
    """Return the modules of the standard library, in the order of their paths.

    Args:
        folder: where to look; None means the standard library of this Python.
    """
    root = folder or Path(sysconfig.get_path("stdlib"))
    plain = sorted(_modules(root, leave_out=_FOREIGN | _TESTS))
    if len(plain) < _ENOUGH:
        tests = sorted(set(_modules(root, leave_out=_FOREIGN)) - set(plain))
        plain += tests[: _ENOUGH - len(plain)]
    documents = (_read(root, path) for path in plain[:_MOST])
    return [document for document in documents if document is not None]


def _modules(root: Path, *, leave_out: frozenset[str]) -> Iterator[Path]:
    for folder, subfolders, files in os.walk(root):
        subfolders[:] = [name for name in subfolders if name not in leave_out]
        yield from (Path(folder, name) for name in files if name.endswith(".py"))


def _read(root: Path, path: Path) -> SourceFile | None:
    try:
        with tokenize.open(path) as file:  # in the encoding that the module declares
            source = file.read()
    except (OSError, SyntaxError, UnicodeDecodeError):
        return None
    # PostgreSQL's text cannot hold a zero byte; a module that Python can import has none.
    return None if "\x00" in source else SourceFile(str(path.relative_to(root)), source)
