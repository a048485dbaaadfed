"""Why a job does not run, as operators see it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from forebay._dataclass import dataclass

#: What decides at present whether a job starts. ``soon``: nothing holds it back. ``flow``: a step
#: of it sleeps, or waits for a signal or for other jobs. ``trouble``: a problem of the database.
Cause = Literal[
    "unknown", "ended", "restored", "flow", "scheduled", "retrying", "no handler", "overdue",
    "running", "claimed", "worker silent", "not served", "paused", "closing", "limit",
    "ordering key", "held", "jobs before", "busy", "soon", "trouble",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Step:
    """One question of the decision tree, and its answer for the job.

    Attributes:
        question: what was checked, in one or two words.
        answer: the fact that was found.
    """

    question: str
    answer: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """Why a job does not run in one consumer group, or what became of it.

    Attributes:
        group: the consumer group; None if no such job is visible.
        cause: the answer for a program.
        answer: the answer in one sentence.
        hint: what to do next; None if nothing is needed.
        steps: the questions in their order; the last one decided.
    """

    job_id: int
    group: str | None
    cause: Cause
    answer: str
    hint: str | None
    steps: Sequence[Step]
