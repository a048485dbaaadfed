"""How many jobs to claim, and from which lanes.

Two decisions. How many: a worker claims for its free slots, and a few more if jobs are so short
that a slot would idle until the next claim. From where: between queues by weight; within a queue
strictly by priority, lower numbers first, except for a share for lanes that would otherwise starve;
among the lanes of one priority retries first. Each way of claiming asks here: one lane, many lanes
by one call, and lanes that a settlement freed.

Shares must also be correct for a worker with a single slot. So they are counted over time, in a
``Fairness`` value: each call takes one and returns the one for the next call.
"""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, TypeVar

from forebay._dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

#: Most jobs of one claim. A claim holds the lock of its lane; the bound limits how long others
#: wait.
CLAIM_ROWS_MAX: Final = 1000

#: Most work, in time, that is claimed in advance. It waits in this process while other workers may
#: be idle.
AHEAD_SECONDS: Final = 0.1

#: How many times the duration of a claim may be claimed in advance where claims of a lane wait for
#: each other, and the most of it in seconds.
_CONTENDED_FACTOR: Final = 3.0
_CONTENDED_SECONDS_MAX: Final = 1.0

#: About how many characters of jobs a claim may have. The database ends a claim at this size
#: (``forebay._claim_bytes()``).
CLAIM_SIZE: Final = 2 * 1024 * 1024

#: Jobs of this size wait in this process: no more are claimed in advance.
AHEAD_SIZE_MAX: Final = 2 * CLAIM_SIZE

#: Most lanes of one claim.
LANES_PER_CLAIM: Final = 32

#: More queues than this get several slots at a time.
_QUEUES_OF_SINGLE_SLOTS: Final = 8

#: Most lanes that a worker remembers between claims; beyond it the older half is forgotten.
_LANES_REMEMBERED: Final = 10_000


def claim_size(
    free_slots: int,
    *,
    concurrency: int,
    buffered: int = 0,
    waiting_for_key: int = 0,
    mean_seconds: float | None = None,
    ahead_seconds: float = AHEAD_SECONDS,
    rows_max: int = CLAIM_ROWS_MAX,
    buffered_size: int = 0,
    claim_seconds: float = 0.0,
) -> int:
    """Return how many jobs to claim.

    Claims of one lane take turns, so a large fleet waits for them. Each worker then claims in
    advance what its slots do during that wait, but no more jobs than it has slots: it needs fewer
    claims, so the waits become shorter again.

    Args:
        free_slots: slots without a job.
        concurrency: all slots.
        buffered: jobs already claimed and not started.
        waiting_for_key: buffered jobs that wait for an earlier job of their ordering key while
            slots are free. If they will run soon, nothing is claimed for these slots: new jobs
            would probably have the same keys.
        mean_seconds: measured mean duration of a job; None before the first measurement, and then
            nothing is claimed in advance.
        ahead_seconds: how much work, in time, may wait in the process.
        rows_max: most jobs of one claim.
        buffered_size: characters of the jobs already claimed and not started.
        claim_seconds: measured mean duration of a claim, its wait for the turn included.

    >>> claim_size(3, concurrency=10)
    3
    >>> claim_size(10, concurrency=10, mean_seconds=0.001)
    1000
    >>> claim_size(0, concurrency=10, buffered=20, mean_seconds=0.02)
    30
    >>> claim_size(0, concurrency=10, buffered=30, mean_seconds=0.02)
    0
    >>> claim_size(0, concurrency=10, buffered=1000, mean_seconds=0.00001)
    1000
    >>> claim_size(2, concurrency=10, mean_seconds=5.0)
    2
    >>> claim_size(9, concurrency=10, buffered=800, waiting_for_key=800, mean_seconds=0.0001)
    1000
    >>> claim_size(9, concurrency=10, buffered=1200, waiting_for_key=1200, mean_seconds=0.00005)
    0
    >>> claim_size(9, concurrency=10, buffered=800, waiting_for_key=800, mean_seconds=5.0)
    9
    >>> claim_size(0, concurrency=10, buffered=4, mean_seconds=0.001, buffered_size=5_000_000)
    0
    >>> claim_size(1, concurrency=10, mean_seconds=1.0, claim_seconds=0.2)
    7
    >>> claim_size(1, concurrency=10, mean_seconds=0.2, claim_seconds=0.3)
    11
    """
    ahead = 0
    if mean_seconds is not None and buffered_size < AHEAD_SIZE_MAX:
        if waiting_for_key and waiting_for_key * mean_seconds <= ahead_seconds:
            free_slots = 0
        # Two claims at most are held: one that runs, and one that arrives while it runs. Below a
        # microsecond rows_max decides anyway.
        mean = max(mean_seconds, 1e-6)
        ahead = int(min(concurrency * ahead_seconds / mean, 2.0 * rows_max))
        if ahead_seconds > 0:
            wait = min(_CONTENDED_FACTOR * claim_seconds, _CONTENDED_SECONDS_MAX)
            ahead = max(ahead, int(min(wait / mean, 1.0) * concurrency))
    # Refill only when half is used: a claim of one job costs as much as a claim of fifty.
    more = ahead - buffered if 2 * buffered <= ahead else 0
    return max(0, min(free_slots + more, rows_max))


def is_full_claim(asked: int, *, jobs: int, size: int) -> bool:
    """Return whether a claim ended because of its number or the size of its jobs, so that more
    of them may wait.

    >>> is_full_claim(10, jobs=10, size=500), is_full_claim(10, jobs=9, size=500)
    (True, False)
    >>> is_full_claim(10, jobs=2, size=CLAIM_SIZE // 2)
    True
    """
    return jobs >= asked or size >= CLAIM_SIZE // 2


def mean_duration(
    mean_seconds: float | None, seconds: float, jobs: int = 1, *, memory: int = 50
) -> float:
    """Return a running mean after more jobs: an exponential mean over about ``memory`` jobs.

    Args:
        mean_seconds: the mean so far; None at the beginning.
        seconds: mean duration of the new jobs.
        jobs: the number of new jobs.
        memory: the number of jobs after which old values have little weight.

    >>> mean_duration(None, 2.0)
    2.0
    >>> round(mean_duration(2.0, 4.0, jobs=1_000_000), 3)
    4.0
    """
    if mean_seconds is None:
        return seconds
    if jobs == 1:
        return mean_seconds + (seconds - mean_seconds) / memory
    return mean_seconds + (seconds - mean_seconds) * (1.0 - (1.0 - 1.0 / memory) ** jobs)


class LaneSizes:
    """How large the jobs of each lane were in its last claim.

    A claim asks for about half of its largest size: the database looks at each requested job, and
    is fast if all of them are certain to fit.

    >>> sizes = LaneSizes()
    >>> sizes.rows(7, 1000)
    1000
    >>> sizes.record(7, size=2_000_000, jobs=20)
    >>> sizes.rows(7, 1000), sizes.mean(7)
    (10, 100000)
    >>> sizes.record(7, size=2_000, jobs=20)
    >>> sizes.rows(7, 1000)
    1000
    """

    def __init__(self) -> None:
        self._means: dict[int, int] = {}

    def rows(self, lane: int, count: int) -> int:
        """Return how many of ``count`` jobs the next claim from a lane should ask for."""
        mean = self._means.get(lane)
        return count if mean is None else min(count, max(1, CLAIM_SIZE // (2 * mean)))

    def mean(self, lane: int) -> int:
        """Return the mean size of the jobs in the last claim from a lane.

        The result is 0 if they were small, or if their size is not known.
        """
        return self._means.get(lane, 0)

    def record(self, lane: int, *, size: int, jobs: int) -> None:
        """Record the size of all jobs of a claim."""
        if size * CLAIM_ROWS_MAX > jobs * (CLAIM_SIZE // 2):
            self._means[lane] = size // jobs
        else:
            self._means.pop(lane, None)


class LaneName(NamedTuple):
    """A lane as the planner sees it; public and private lanes are the same to it."""

    queue: str
    priority: int


class Lane(Protocol):
    """What the order of claims needs to know of a ready lane."""

    @property
    def queue(self) -> str:
        """The queue."""

    @property
    def priority(self) -> int:
        """The priority; lower numbers first."""

    @property
    def is_private(self) -> bool:
        """Whether it has retries and other jobs of one group, not new ones."""

    @property
    def is_suspect(self) -> bool:
        """Whether it has jobs that run alone."""

    @property
    def is_limited(self) -> bool:
        """Whether limits may admit fewer jobs than wait."""


_L = TypeVar("_L", bound=Lane)


def needs_no_order(lanes: Sequence[Lane]) -> bool:
    """Return whether the lanes of one name can be claimed in one call with those of other names.

    The later lanes of a name get what the earlier ones leave; suspects and limited lanes may give
    fewer jobs than wait.
    """
    return len(lanes) == 1 and not (lanes[0].is_suspect or lanes[0].is_limited)


@dataclass(frozen=True, slots=True)
class Fairness:
    """The state of the shares from plan to plan; start with ``Fairness()``.

    Attributes:
        credit: per queue, its claim to the next slot by weight.
        saved: per queue, the part of a slot that its lower lanes have accumulated.
        served: per lane, the number of the plan that last gave it a slot.
        plans: the number of plans so far.
    """

    credit: Mapping[str, float] = field(default_factory=dict)
    saved: Mapping[str, float] = field(default_factory=dict)
    served: Mapping[LaneName, int] = field(default_factory=dict)
    plans: int = 0


@dataclass(frozen=True, slots=True)
class ClaimPlan:
    """How many jobs to claim from which lane, in this order, and the fairness for the next plan."""

    shares: tuple[tuple[LaneName, int], ...]
    fairness: Fairness


def plan_claims(
    lanes: Mapping[LaneName, int | None],
    *,
    slots: int,
    fairness: Fairness,
    weights: Mapping[str, int] | None = None,
    starving_share: float = 0.1,
) -> ClaimPlan:
    """Divide slots among lanes that have work.

    Args:
        lanes: each lane with work, and how many jobs are known to wait in it; None means unknown
            and counts as enough for every slot.
        slots: jobs to claim in all.
        fairness: from the previous plan.
        weights: relative number of slots per queue; 1 for a queue that is not named. Slots that a
            queue has no work for go to the others.
        starving_share: part of a queue's slots that goes to its lanes below the first one with
            work, the longest unserved first; 0 means strictly by priority.

    >>> high, low = LaneName("mail", 0), LaneName("mail", 100)
    >>> plan_claims({high: None, low: None}, slots=10, fairness=Fairness()).shares
    ((LaneName(queue='mail', priority=0), 9), (LaneName(queue='mail', priority=100), 1))
    >>> plan_claims({high: 3, low: None}, slots=10, fairness=Fairness()).shares
    ((LaneName(queue='mail', priority=0), 3), (LaneName(queue='mail', priority=100), 7))
    """
    demand: dict[str, dict[LaneName, int]] = {}
    for name in sorted(lanes, key=lambda lane: (lane.queue, lane.priority)):
        waiting = lanes[name]
        count = slots if waiting is None else min(waiting, slots)
        if count > 0:
            demand.setdefault(name.queue, {})[name] = count
    divided, credit = _divide_between_queues(
        {queue: sum(counts.values()) for queue, counts in demand.items()},
        slots,
        fairness.credit,
        weights or {},
    )
    number = fairness.plans + 1
    served, saved = dict(fairness.served), dict[str, float]()
    shares: dict[LaneName, int] = {}
    for queue, count in divided.items():
        given, saved[queue] = _divide_between_lanes(
            demand[queue], count, fairness.saved.get(queue, 0.0), served, starving_share
        )
        shares.update(given)
        served.update(dict.fromkeys(given, number))
    return ClaimPlan(
        tuple(sorted(shares.items())),
        Fairness(credit=credit, saved=saved, served=_recent(served), plans=number),
    )


class ClaimOrder:
    """The order in which a worker claims: from which lanes next, and how many jobs from each.

    Args:
        weights: the queues with their weights.
        starving_share: see ``plan_claims``.
        draw: returns a random number.
    """

    def __init__(
        self, weights: Mapping[str, int], starving_share: float, draw: Callable[[], float]
    ) -> None:
        self._weights = weights
        self._starving_share = starving_share
        self._draw = draw
        self._fairness = Fairness()

    def shares(self, lanes: Iterable[_L], slots: int) -> list[tuple[list[_L], int]]:
        """Return the lanes to claim from, those of one name together, and for each name how many
        jobs.

        The order is that of ``plan_claims``. In a name retries come first, then suspects, then new
        jobs: each lane gets what the lanes before it leave. Shards come in random order, so that
        workers start with different ones.
        """
        by_name: dict[LaneName, list[_L]] = {}
        for lane in lanes:
            by_name.setdefault(LaneName(lane.queue, lane.priority), []).append(lane)
        plan = plan_claims(
            dict.fromkeys(by_name),
            slots=slots,
            fairness=self._fairness,
            weights=self._weights,
            starving_share=self._starving_share,
        )
        self._fairness = plan.fairness
        shares = [(by_name[name], count) for name, count in plan.shares]
        for named, _ in shares:
            named.sort(key=lambda lane: (not lane.is_private, lane.is_suspect, self._draw()))
        return shares


def _divide_between_queues(
    demand: Mapping[str, int],
    slots: int,
    credit_before: Mapping[str, float],
    weights: Mapping[str, int],
) -> tuple[dict[str, int], dict[str, float]]:
    # Smooth weighted round robin, as in nginx's upstream module: in each round every queue earns
    # its weight, and the queue with the most credit is served and pays the sum of all weights. This
    # interleaves the queues, and the remaining credit lets the next plan continue this one.
    given = dict.fromkeys(demand, 0)
    credit = {queue: credit_before.get(queue, 0.0) for queue in demand}
    hungry = list(demand)
    # A round costs as much as there are queues. With many of them, each gets its share in two turns
    # or so.
    is_few = len(hungry) <= _QUEUES_OF_SINGLE_SLOTS
    quantum = 1 if is_few else max(1, slots // (2 * len(hungry)))
    left = slots
    while left > 0 and hungry:
        if len(hungry) == 1:
            given[hungry[0]] += min(left, demand[hungry[0]] - given[hungry[0]])
            break
        for queue in hungry:
            credit[queue] += weights.get(queue, 1)
        richest = max(hungry, key=lambda queue: credit[queue])
        credit[richest] -= sum(weights.get(queue, 1) for queue in hungry)
        count = min(quantum, left, demand[richest] - given[richest])
        given[richest] += count
        left -= count
        if given[richest] == demand[richest]:
            # A queue without work does not accumulate credit for a later burst.
            hungry.remove(richest)
            credit[richest] = 0.0
    return given, credit


def _divide_between_lanes(
    demand: Mapping[LaneName, int],
    slots: int,
    saved: float,
    served: Mapping[LaneName, int],
    starving_share: float,
) -> tuple[dict[LaneName, int], float]:
    left = dict(demand)
    given: dict[LaneName, int] = {}

    def give(lane: LaneName, count: int) -> None:
        if count > 0:
            given[lane] = given.get(lane, 0) + count
            left[lane] -= count

    lower = list(demand)[1:]
    if lower:
        saved += starving_share * slots
        # Ten times 0.1 must be one slot.
        reserved = min(int(saved + 1e-9), slots, sum(left[lane] for lane in lower))
        saved = max(0.0, min(saved - reserved, 1.0))
        for _ in range(reserved):
            waiting = [lane for lane in lower if left[lane]]
            give(min(waiting, key=lambda lane: (given.get(lane, 0), served.get(lane, 0), lane)), 1)
        slots -= reserved
    else:
        saved = 0.0
    for lane in demand:
        count = min(left[lane], slots)
        give(lane, count)
        slots -= count
    return given, saved


def _recent(served: dict[LaneName, int]) -> dict[LaneName, int]:
    if len(served) <= _LANES_REMEMBERED:
        return served
    newest = sorted(served, key=lambda lane: served[lane], reverse=True)
    return {lane: served[lane] for lane in newest[: _LANES_REMEMBERED // 2]}
