"""What a pass works on: its jobs, grouped by item, and what was found out about each."""

from __future__ import annotations

from collections import Counter
from dataclasses import field
from enum import Enum, auto
from typing import TYPE_CHECKING, Final, TypeAlias

from forebay._dataclass import dataclass
from forebay.model import Outcome

if TYPE_CHECKING:
    from collections.abc import Sequence

    from forebay.mirror._decide import Verdict
    from forebay.mirror._model import Document, Gone, Id, Seen
    from forebay.mirror._turns import Turns
    from forebay.model import Job

Ending = Outcome | Exception | None


class Undecided(Enum):
    """It is not decided yet how the jobs of an item end."""

    UNDECIDED = auto()


UNDECIDED: Final = Undecided.UNDECIDED


#: Tag and priority of a job.
Origin: TypeAlias = tuple[str | None, int | None]


@dataclass(slots=True, eq=False)
class Item:
    """One item of a pass, with its jobs.

    ``places`` and ``origins`` belong to the jobs, in their order; ``counters`` holds the counts for
    them.
    """

    id: Id
    places: list[int] = field(default_factory=list)
    origins: list[Origin] = field(default_factory=list)
    counters: Counter[tuple[str, Origin]] = field(default_factory=Counter)
    force: bool = False
    entry: Document | Gone | None = None
    seen: Seen | None = None
    verdict: Verdict | None = None
    ending: Ending | Undecided = UNDECIDED

    @property
    def is_open(self) -> bool:
        """Whether it is undecided how its jobs end."""
        return self.ending is UNDECIDED

    def count(self, outcome: str) -> None:
        """Count an outcome of the item, for the first of its jobs."""
        self.counters[outcome, self.origins[0]] += 1

    def count_jobs(self, outcome: str) -> None:
        """Count an outcome for each of its jobs."""
        for origin in self.origins:
            self.counters[outcome, origin] += 1


@dataclass(slots=True, eq=False)
class Pass:
    """Jobs that are processed together.

    Attributes:
        jobs: all jobs.
        items: their items, each once.
        heartbeats: places of the heartbeats among the jobs.
        trouble: why a store became unavailable; None while both answer.
        is_skipped: some was not tried: the breaker is open, or the turn did not come.
        heartbeat_error: why a heartbeat failed although both stores are available.
        writes: what calls that write take turns in.
    """

    jobs: Sequence[Job]
    writes: Turns
    items: dict[Id, Item] = field(default_factory=dict)
    heartbeats: list[int] = field(default_factory=list)
    trouble: Exception | None = None
    is_skipped: bool = False
    heartbeat_error: Exception | None = None
