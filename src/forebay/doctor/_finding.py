"""Findings of the doctor: one for each fact worth knowing, with a remedy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from enum import StrEnum
from typing import Any, Literal

from forebay._dataclass import dataclass
from forebay.ops.operation import Operation


class Level(StrEnum):
    """The severity of a finding."""

    OK = "ok"
    NOTICE = "notice"
    WARNING = "warning"
    ERROR = "error"

    @property
    def rank(self) -> int:
        """0 for the most severe.

        >>> sorted([Level.OK, Level.ERROR], key=lambda level: level.rank)
        [<Level.ERROR: 'error'>, <Level.OK: 'ok'>]
        """
        return (Level.ERROR, Level.WARNING, Level.NOTICE, Level.OK).index(self)


@dataclass(frozen=True, slots=True)
class Finding:
    """One finding.

    Attributes:
        check: the check that made it: ``schema``, ``snapshots`` and so on.
        level: error, jobs do not run or cannot be enqueued; warning, they soon will not, or could
            be lost; notice, worth knowing; ok.
        what: the fact in one line, with its numbers.
        remedy: what to do; None when nothing is needed.
        facts: the same facts for a program.
    """

    check: str
    level: Level
    what: str
    remedy: str | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Check:
    """One check of the database, independent of all others.

    Attributes:
        needs: what must exist: nothing; ``schema``, our tables; ``version``, the schema in the
            version of this library.
    """

    name: str
    operation: Operation[list[Finding]]
    needs: Literal["nothing", "schema", "version"] = "schema"
