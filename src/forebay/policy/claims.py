"""How many jobs to claim, and from which lanes.

Two decisions. How many: a worker claims for its free slots, and a little ahead where jobs are so
short that a slot would idle until the next claim. From where: within a queue strictly by priority,
lower numbers first, except for a share that goes to lanes which would otherwise starve; between
queues by weight.

Turns must come out right for a worker with a single slot too, so they are counted over time, in a
``Turns`` value that goes into one call and comes out of it for the next.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

#: A claim holds its lane's lock while it runs: bounded, so that others have their turn.
CLAIM_ROWS_MAX: Final = 1000

#: Work taken beyond the free slots waits in this process while others may be idle.
AHEAD_SECONDS: Final = 0.1

#: Lanes of one worker that are remembered between claims; beyond it the oldest are forgotten.
_LANES_REMEMBERED: Final = 10_000


def claim_size(
    free_slots: int,
    *,
    concurrency: int,
    buffered: int = 0,
    mean_seconds: float | None = None,
    ahead_seconds: float = AHEAD_SECONDS,
    rows_max: int = CLAIM_ROWS_MAX,
) -> int:
    """Return how many jobs to ask for.

    Args:
        free_slots: slots without a job.
        concurrency: slots in all.
        buffered: jobs already claimed and not started.
        mean_seconds: measured mean duration of a job; None while nothing was measured, and then
            nothing is taken ahead.
        ahead_seconds: how much work, in time, may wait in the process.
        rows_max: most jobs of one claim.

    >>> claim_size(3, concurrency=10)
    3
    >>> claim_size(10, concurrency=10, mean_seconds=0.001)
    1000
    >>> claim_size(0, concurrency=10, buffered=20, mean_seconds=0.02)
    30
    >>> claim_size(2, concurrency=10, mean_seconds=5.0)
    2
    """
    ahead = 0
    if mean_seconds is not None:
        # Below a microsecond the quotient says nothing that rows_max does not.
        ahead = int(min(concurrency * ahead_seconds / max(mean_seconds, 1e-6), float(rows_max)))
    return max(0, min(free_slots + ahead - buffered, rows_max))


def mean_duration(
    mean_seconds: float | None, seconds: float, jobs: int = 1, *, memory: int = 50
) -> float:
    """Return a running mean after some more jobs, an exponential one over about ``memory`` jobs.

    Args:
        mean_seconds: the mean so far; None at the beginning.
        seconds: mean duration of the new jobs.
        jobs: how many they are.
        memory: how many jobs it takes to forget most of the past.

    >>> mean_duration(None, 2.0)
    2.0
    >>> round(mean_duration(2.0, 4.0, jobs=1_000_000), 3)
    4.0
    """
    if mean_seconds is None:
        return seconds
    return mean_seconds + (seconds - mean_seconds) * (1.0 - (1.0 - 1.0 / memory) ** jobs)


@dataclass(frozen=True, slots=True, order=True)
class LaneName:
    """A lane as a planner sees it: the audience does not matter to it."""

    queue: str
    priority: int


@dataclass(frozen=True, slots=True)
class Turns:
    """What fairness remembers from plan to plan; start with ``Turns()``.

    Attributes:
        credits: per queue, how far it is owed a slot, for the weights.
        starving: per queue, the part of a slot the lower lanes have saved up.
        served: per lane, the number of the plan that last gave it a slot.
        plans: how many plans there were.
    """

    credits: Mapping[str, float] = field(default_factory=dict)
    starving: Mapping[str, float] = field(default_factory=dict)
    served: Mapping[LaneName, int] = field(default_factory=dict)
    plans: int = 0


@dataclass(frozen=True, slots=True)
class ClaimPlan:
    """How many jobs to ask of which lane, in this order, and the turns for the next plan."""

    shares: tuple[tuple[LaneName, int], ...]
    turns: Turns


def plan_claims(
    lanes: Mapping[LaneName, int | None],
    *,
    slots: int,
    turns: Turns,
    weights: Mapping[str, int] | None = None,
    starving_share: float = 0.1,
) -> ClaimPlan:
    """Divide slots among lanes that have work.

    Args:
        lanes: each lane with work, and how many jobs are known to wait in it; None for "some",
            which counts as enough for every slot.
        slots: jobs to claim in all.
        turns: from the plan before.
        weights: slots a queue gets beside the others'; 1 for a queue that is not named. Slots
            which a queue has no work for go to the others.
        starving_share: part of a queue's slots that goes to its lanes below the first one with
            work, the longest unserved first; 0 means strictly by priority.

    >>> high, low = LaneName("mail", 0), LaneName("mail", 100)
    >>> plan_claims({high: None, low: None}, slots=10, turns=Turns()).shares
    ((LaneName(queue='mail', priority=0), 9), (LaneName(queue='mail', priority=100), 1))
    >>> plan_claims({high: 3, low: None}, slots=10, turns=Turns()).shares
    ((LaneName(queue='mail', priority=0), 3), (LaneName(queue='mail', priority=100), 7))
    """
    left = {
        name: slots if waiting is None else min(waiting, slots) for name, waiting in lanes.items()
    }
    left = {name: waiting for name, waiting in left.items() if waiting > 0}
    queues = sorted({name.queue for name in left})
    shares: dict[LaneName, int] = {}
    credits = {queue: turns.credits.get(queue, 0.0) for queue in queues}
    starving = {queue: turns.starving.get(queue, 0.0) for queue in queues}
    served = dict(turns.served)
    number = turns.plans + 1
    for _ in range(slots):
        open_queues = sorted({name.queue for name in left})
        if not open_queues:
            break
        queue = _next_queue(open_queues, credits, weights or {})
        lane = _next_lane(queue, left, starving, served, starving_share)
        shares[lane] = shares.get(lane, 0) + 1
        served[lane] = number
        left[lane] -= 1
        if not left[lane]:
            del left[lane]
    plan = tuple(sorted(shares.items()))
    return ClaimPlan(plan, Turns(credits, starving, _recent(served), number))
