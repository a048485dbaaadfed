"""Flows as operators see them: the steps of a job, and what it waits for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from datetime import datetime
from typing import Any, Literal

from forebay._dataclass import dataclass
from forebay.model.job import JobState

#: What a step is: it returned, with its effects in the same commit, an item of a loop is done, it
#: failed in all its attempts; a sleep or a wait began, a signal came, none came in time, another
#: job waits for it; children were enqueued, not all of them ended well; the job was cancelled while
#: it waited there.
StepKind = Literal[
    "step", "once", "item", "failed", "sleep", "wait", "signal", "timeout", "taken", "children",
    "died", "cancelled",
]  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedStep:
    """One checkpoint of a flow.

    Attributes:
        no: its place among those of the job, from 1; 0: what a callback waited for.
        key: tells several steps with one name apart; None: it has only a name.
        bytes: the size of its value as JSON; 0 for none.
        value: what it returned; None for nothing, and where values were not asked for.
    """

    no: int
    kind: StepKind
    name: str
    key: str | None
    at: datetime
    bytes: int
    value: Any = field(default=None, repr=False)

    @property
    def title(self) -> str:
        """Name and key."""
        return self.name if self.key is None else f"{self.name}[{self.key}]"


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildDeath:
    """The child of which a dead parent died, and which is to be redriven first.

    Attributes:
        job_id: the child.
        kind: None if it has no dead letter.
        dead_id: its dead letter; None: it was cancelled, or the dead letter was deleted.
        redriven_as: its new job; None: it was not redriven.
        cause: of its death, as in ``dead_groups``.
    """

    job_id: int
    kind: str | None = None
    dead_id: int | None = None
    redriven_as: int | None = None
    cause: str | None = None

    @property
    def advice(self) -> str:
        """What to do: never a redrive of the parent, which would die again."""
        if self.dead_id is None:
            return (
                f"child {self.job_id} was cancelled, or its dead letter was deleted: enqueue this"
                " job anew"
            )
        child = f"child {self.job_id} ({self.kind})"
        if self.redriven_as is not None:
            return (
                f"{child} was redriven: this job follows by itself when job {self.redriven_as} is"
                f" done: forebay where {self.redriven_as}"
            )
        return (
            f"{child} is dead: after a fix, forebay dead redrive --job {self.job_id}; this job"
            " follows by itself"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowState:
    """The steps of a job in one group, and what it waits for.

    Attributes:
        steps: what is recorded, in order.
        waits_for: of a job that has given its slot back; None: it runs, will run, or has ended.
        step: the step that waits; None: none does.
        step_key: the key of that step.
        since: when the wait began.
        until: when it is over at the latest; None: it waits without a limit.
        signal_name: ``forebay.signal(conn, signal_name, signal_key)`` wakes it.
        signal_key: the key of that signal.
        children: how many jobs it waits for.
        ended: how many of them have ended.
        first_dead: the first of them that is dead or was cancelled; None for none.
        cancelled_at: when it was cancelled while it waited: then its handler compensates, and ends.
        died_of: the child of which it died, if it follows when that one is redriven.
    """

    group: str
    steps: Sequence[RecordedStep]
    waits_for: Literal["signal", "sleep", "children"] | None = None
    step: str | None = None
    step_key: str | None = None
    since: datetime | None = None
    until: datetime | None = None
    signal_name: str | None = None
    signal_key: str | None = None
    children: int | None = None
    ended: int | None = None
    first_dead: int | None = None
    cancelled_at: datetime | None = None
    died_of: ChildDeath | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RewindPlan:
    """What a rewind would do; nothing was done.

    Attributes:
        group: in which group the flow would continue.
        state: the state of the job there.
        kept: how many checkpoints stay.
        dropped: how many are forgotten.
        children: how many jobs that a forgotten step waits for have not ended: they run on.
    """

    group: str
    state: JobState
    kept: int
    dropped: int
    children: int
