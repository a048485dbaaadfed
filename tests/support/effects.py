"""What handlers did, written down where no crash and no rollback can take it back.

One file, opened with O_APPEND: each line is one write, so lines of several processes never mix.
The database's own account is compared with it; nothing here knows of Forebay's tables.
"""

import json
import os
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

PATH_VARIABLE = "TEST_EFFECTS"


@dataclass(frozen=True)
class Effect:
    """One line: what happened to which entry, in which process, when."""

    what: str
    entry: int
    job_id: int
    attempt: int
    pid: int
    at: float


def note(what: str, entry: int, job_id: int = 0, attempt: int = 0) -> None:
    """Append a line; called by handlers. The clock is monotonic and the same in all processes."""
    line = [what, entry, job_id, attempt, os.getpid(), time.monotonic()]
    descriptor = os.open(os.environ[PATH_VARIABLE], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
    try:
        os.write(descriptor, json.dumps(line).encode() + b"\n")
    finally:
        os.close(descriptor)


class Effects:
    """The file as a test reads it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.touch()

    def all(self, what: str | None = None) -> list[Effect]:
        """Return the lines so far, of one sort or all."""
        lines = self.path.read_bytes().split(b"\n")[:-1]
        effects = [Effect(*json.loads(line)) for line in lines]
        return [effect for effect in effects if what is None or effect.what == what]

    def count(self, what: str) -> Counter[int]:
        """Return how often something happened to each entry."""
        return Counter(effect.entry for effect in self.all(what))

    def entries(self, what: str) -> set[int]:
        """Return the entries something happened to."""
        return set(self.count(what))
