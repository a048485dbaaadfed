"""What the doctor says: one finding per fact worth knowing, with what to do about it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal

from forebay.ops.operation import Operation


class Level(StrEnum):
    """How bad it is."""

    OK = "ok"
    NOTICE = "notice"
    WARNING = "warning"
    ERROR = "error"

    @property
    def rank(self) -> int:
        """0 for the worst.

        >>> sorted([Level.OK, Level.ERROR], key=lambda level: level.rank)
        [<Level.ERROR: 'error'>, <Level.OK: 'ok'>]
        """
        return (Level.ERROR, Level.WARNING, Level.NOTICE, Level.OK).index(self)


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing found.

    Attributes:
        check: what was looked at: ``schema``, ``snapshots`` and so on.
        level: error, jobs do not run or cannot be enqueued; warning, they will not, or could be
            lost; notice, worth knowing; ok.
        what: the fact, one line, with its numbers.
        remedy: what to do; None when there is nothing to do.
        facts: the same for a program.
    """

    check: str
    level: Level
    what: str
    remedy: str | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Check:
    """One look at the database, independent of all others.

    Attributes:
        needs: what must be there: nothing; ``schema``, our tables; ``version``, the schema of this
            very version.
    """

    name: str
    operation: Operation[list[Finding]]
    needs: Literal["nothing", "schema", "version"] = "schema"


def human_bytes(size: float) -> str:
    """Return a size for people.

    >>> human_bytes(700), human_bytes(21_500_000)
    ('700 B', '21.5 MB')
    """
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:.3g} TB"


def counted(number: int, noun: str, plural: str | None = None) -> str:
    """Return a number with its noun.

    >>> counted(1, "job"), counted(2000, "job")
    ('1 job', '2,000 jobs')
    """
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"
