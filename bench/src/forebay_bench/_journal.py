"""What handlers note at their start, where another process reads it: a file that each line is appended to at once.

The clock is the monotonic one, which all processes of a machine share.
"""

from __future__ import annotations

import os
import struct
import time
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pathlib import Path

#: The environment variable that tells worker processes the file.
VARIABLE: Final = "BENCH_NOTES"

_NOTE: Final = struct.Struct("<qd")


class JournalWriter:
    """The writing end, in the process of the handlers; opened at the first note."""

    def __init__(self) -> None:
        self._file: int | None = None

    def note(self, number: int) -> None:
        """Note that a job is here, now. One write, which the file's append mode keeps in one piece."""
        now = time.monotonic()
        if self._file is None:
            self._file = os.open(os.environ[VARIABLE], os.O_WRONLY | os.O_APPEND)
        os.write(self._file, _NOTE.pack(number, now))


class Journal:
    """The reading end.

    Args:
        path: the file, made anew.
    """

    def __init__(self, path: Path) -> None:
        path.write_bytes(b"")
        self.path = path

    @property
    def environment(self) -> dict[str, str]:
        """What a process needs to know to write here."""
        return {VARIABLE: os.fspath(self.path)}

    @property
    def count(self) -> int:
        """How many notes there are."""
        return self.path.stat().st_size // _NOTE.size

    def read(self, start: int = 0) -> list[tuple[int, float]]:
        """Return the notes from the so many-th on: number, and when."""
        with self.path.open("rb") as file:
            file.seek(start * _NOTE.size)
            data = file.read()
        return list(_NOTE.iter_unpack(data[: len(data) // _NOTE.size * _NOTE.size]))
