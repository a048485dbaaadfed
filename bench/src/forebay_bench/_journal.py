"""Records that handlers write at their start and another process reads: a file, appended to line
by line.

The clock is the monotonic one, which all processes of a machine share.
"""

from __future__ import annotations

import os
import struct
import time
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pathlib import Path

#: The environment variable with the file's path for worker processes.
VARIABLE: Final = "BENCH_NOTES"

_NOTE: Final = struct.Struct("<qd")


class JournalWriter:
    """The writing end, in the process of the handlers; opened at the first record."""

    def __init__(self) -> None:
        self._file: int | None = None

    def note(self, number: int) -> None:
        """Record that a job has started.

        One write, which the file's append mode keeps in one piece.
        """
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
        """The environment that a process needs to write here."""
        return {VARIABLE: os.fspath(self.path)}

    @property
    def count(self) -> int:
        """How many records the file has."""
        return self.path.stat().st_size // _NOTE.size

    def read(self, start: int = 0) -> list[tuple[int, float]]:
        """Return the records from an index on: number, and time."""
        with self.path.open("rb") as file:
            file.seek(start * _NOTE.size)
            data = file.read()
        return list(_NOTE.iter_unpack(data[: len(data) // _NOTE.size * _NOTE.size]))
