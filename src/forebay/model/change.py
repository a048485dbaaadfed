"""Acts on many jobs: which jobs, what would become of them, and what became of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import field, fields
from datetime import datetime
from typing import Any, Literal

from forebay._dataclass import dataclass
from forebay.errors import InvalidJob, shown
from forebay.model import checks
from forebay.model.job import JobState

#: What an act does with a job.
ChangeAnswer = Literal[
    "cancelled", "requested", "changed", "unchanged", "running", "ordering key", "expires before",
    "already ended", "unknown",
]  # fmt: skip

ChangeAct = Literal["cancel", "purge", "truncate", "retry", "reschedule", "reprioritise"]


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFilter:
    """Which unfinished jobs an act takes: those for which every given condition holds.

    Attributes:
        queue: of this queue.
        kind: of this kind.
        tag: with this tag.
        state: scheduled, ready, claimed, running or retrying.
        ordering_key: with this ordering key.
        limit_key: with this limit key.
        unique_key: with this unique key.
        correlation_id: with this correlation id.
        subject: runs of the subject of this name, in any queue.
        endpoint: deliveries to the endpoint of this name; without queue and limit_key.
        enqueued_after: enqueued at this time or later.
        enqueued_before: enqueued before this time.
        ids: with one of these ids; each then gets its answer.
        all: every unfinished job; only without a condition. A filter without any condition is
            refused.
    """

    queue: str | None = None
    kind: str | None = None
    tag: str | None = None
    state: JobState | str | None = None
    ordering_key: str | None = None
    limit_key: str | None = None
    unique_key: str | None = None
    correlation_id: str | None = None
    subject: str | None = None
    endpoint: str | None = None
    enqueued_after: datetime | None = None
    enqueued_before: datetime | None = None
    ids: Iterable[int] | None = None
    all: bool = False

    def __post_init__(self) -> None:
        if isinstance(self.ids, Iterator):
            # The act comes after its plan, and would find none left.
            object.__setattr__(self, "ids", tuple(self.ids))

    def as_json(self) -> dict[str, Any]:
        """Return the filter as SQL takes it.

        Raises:
            InvalidJob: a value has the wrong type, or the filter is empty.
        """
        found: dict[str, Any] = {}
        for name in (item.name for item in fields(self)):
            value = getattr(self, name)
            if value is None or name == "all":
                continue
            if name == "ids":
                if isinstance(value, str | bytes | Mapping) or not isinstance(value, Iterable):
                    raise InvalidJob(
                        name, f"must be ids, not {shown(value)}", hint="For one job: ids=[42]."
                    )
                value = [
                    checks.checked_integer(one, "ids", least=0, most=checks.BIGINT_MAX)
                    for one in value
                ]
            elif name in ("enqueued_after", "enqueued_before"):
                value = checks.instant_text(value, name)
            elif not isinstance(value, str):
                raise InvalidJob(name, f"must be text, not {shown(value)}")
            found[name] = str(value) if name == "state" else value
        if not found and not self.all:
            raise InvalidJob(
                "filter",
                "is empty and would take every job",
                hint="Name a queue, kind or tag, or say all=True.",
            )
        return found or {"all": True}


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangePlan:
    """What an act would do; nothing was done.

    Attributes:
        token: pass it to the act, which then takes only jobs that were counted: those of them that
            still match.
        jobs: the number of jobs that the act would take.
        answers: the number of jobs by answer.
        states: the number of jobs that it would take, by state.
        oldest_at: when the oldest of them was enqueued; None for none.
        newest_at: when the newest of them was enqueued; None for none.
    """

    token: str
    jobs: int
    answers: Mapping[str, int]
    states: Mapping[str, int]
    oldest_at: datetime | None
    newest_at: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeResult:
    """What an act did.

    Attributes:
        answers: the number of jobs by answer: ``cancelled``, ``requested`` (a worker has it, its
            handler is requested to stop), ``changed``; with ids also ``unchanged``, ``running``,
            ``ordering key``, ``expires before``, ``already ended``, ``unknown``.
        jobs: the answer of each job, if the filter has ids; else empty.
    """

    answers: Mapping[str, int]
    jobs: Mapping[int, ChangeAnswer] = field(default_factory=dict)

    @property
    def taken(self) -> int:
        """The number of jobs that were cancelled, requested to stop, or changed."""
        return sum(self.answers.get(name, 0) for name in ("cancelled", "requested", "changed"))
