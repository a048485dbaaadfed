"""What ``forebay top`` shows, from several reads of ``forebay.measurements()``: differences make
rates and recent latencies.

Shown by: tests/cli/test_top.py.
"""

from __future__ import annotations

import math
from collections import deque
from typing import TYPE_CHECKING, Any, Final, Literal

from forebay.watch.problems import problems
from forebay.watch.screen import Overview, QueueLoad, WorkerLoad

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from forebay.model.keys import KeyInfo

#: The period of rates. The counters are folded every 1 to 10 seconds: over a shorter period, rates
#: would jump.
RATE_SECONDS: Final = 10.0
#: The period of latencies.
LATENCY_SECONDS: Final = 60.0

_Place = tuple[str, str]


class Reads:
    """The reads of the last minute."""

    def __init__(self) -> None:
        self._reads: deque[_Read] = deque()

    def add(self, data: Mapping[str, Any], keys: Sequence[KeyInfo]) -> Overview:
        """Add a read, and return what it and the earlier ones show.

        Args:
            data: what ``forebay.measurements(within_seconds => 900)`` returned.
            keys: the keys that jobs wait for.
        """
        new = _Read(data)
        while self._reads and new.at - self._reads[0].at > LATENCY_SECONDS:
            self._reads.popleft()
        earlier = [read for read in self._reads if read.at < new.at]
        # The newest one that is old enough, or the oldest.
        old_enough = [read for read in earlier if new.at - read.at >= RATE_SECONDS]
        base = old_enough[-1] if old_enough else earlier[0] if earlier else None
        self._reads.append(new)
        return Overview(
            at=new.at,
            rate_seconds=None if base is None else new.at - base.at,
            problems=problems(data),
            queues=_queues(data, new, base, earlier),
            workers=_workers(data),
            keys=keys,
        )


class _Read:
    """The numbers of one read that are subtracted from those of a later one."""

    def __init__(self, data: Mapping[str, Any]) -> None:
        self.at = float(data["at"])
        self.claims = {(q["queue"], q["group"]): q["claims"] for q in data["queues"]}
        self.bounds: Sequence[float] = data["counters"]["bounds"]
        #: When the last fold changed the counters of a place; they say nothing of later.
        self.counted_at: dict[_Place, float] = {}
        self.enqueued: dict[_Place, int] = {}
        self.done: dict[_Place, int] = {}
        self.failed: dict[_Place, int] = {}
        self.waits: dict[_Place, list[int]] = {}
        self.durations: dict[_Place, list[int]] = {}
        for cell in data["counters"]["cells"]:
            place = (cell["queue"], cell["group"])
            self.counted_at[place] = max(self.counted_at.get(place, 0.0), cell["counted_at"])
            self.enqueued[place] = self.enqueued.get(place, 0) + cell["enqueued"]
            self.done[place] = self.done.get(place, 0) + cell["done"]
            self.failed[place] = self.failed.get(place, 0) + cell["failed"] + cell["dead"]
            for totals, name, sum_name in (
                (self.waits, "waits", "wait_ms"),
                (self.durations, "durations", "duration_ms"),
            ):
                counts = [*cell[name], cell[sum_name]]
                before = totals.get(place) or [0] * len(counts)
                totals[place] = [a + b for a, b in zip(before, counts, strict=True)]


def percentile(
    bounds: Sequence[float], counts: Sequence[int], total: float, share: float
) -> float | None:
    """Return the value below which a share of a histogram lies, linear within its bucket.

    The result is None for an empty histogram. Invariant "never above the largest seen": the highest
    bucket with a value ends where its mean is at least, which the sum of all values tells.

    Args:
        bounds: upper bounds of the buckets.
        counts: one more, for values above the last bound.
        total: sum of the values.
        share: 0 to 1.

    >>> percentile([10, 20], [5, 5, 0], 120, 0.5), percentile([10, 20], [0, 0, 1], 90, 0.5)
    (10.0, 55.0)
    >>> percentile([60, 600], [0, 10, 0], 700, 0.95)
    69.5
    >>> percentile([10], [0, 0], 0, 0.5) is None
    True
    """
    number = sum(counts)
    if number <= 0:
        return None
    wanted, below, lower = share * number, 0, 0.0
    highest = max(place for place, count in enumerate(counts) if count)
    for place, count in enumerate(counts[: highest + 1]):
        bound = float(bounds[place]) if place < len(bounds) else math.inf
        if place == highest:
            rest = total - sum(b * c for b, c in zip(bounds, counts[:highest], strict=False))
            bound = min(bound, max(lower, rest / count))
        if count and below + count >= wanted:
            return lower + (bound - lower) * (wanted - below) / count
        below += count
        lower = bound
    return lower


def _queues(
    data: Mapping[str, Any], new: _Read, base: _Read | None, earlier: Sequence[_Read]
) -> list[QueueLoad]:
    oldest = earlier[0] if earlier else None
    dead: dict[str, int] = {}
    for line in data["dead"]:
        dead[line["queue"]] = dead.get(line["queue"], 0) + line["dead"]

    def claims_rate(place: _Place) -> float | None:
        if base is None:
            return None
        # A group that was opened again counts from 0.
        change: int = new.claims[place] - base.claims.get(place, 0)
        return max(0, change) / (new.at - base.at)

    found: list[QueueLoad] = []
    for queue in data["queues"]:
        place = (queue["queue"], queue["group"])
        waits, waits_are_recent = _lately(
            new.waits, None if oldest is None else oldest.waits, place
        )
        runs, runs_are_recent = _lately(
            new.durations, None if oldest is None else oldest.durations, place
        )

        def seconds(counts: Sequence[int], share: float) -> float | None:
            value = percentile(new.bounds, counts[:-1], counts[-1], share) if counts else None
            return None if value is None else value / 1000

        oldest_at = queue["oldest_ready_at"]
        found.append(
            QueueLoad(
                queue=queue["queue"],
                group=queue["group"],
                scheduled=queue["scheduled"],
                ready=queue["ready"],
                claimed=queue["claimed"],
                running=queue["running"],
                retrying=queue["retrying"],
                cancelled=queue["cancelled"],
                dead=dead.get(queue["queue"], 0),
                is_paused=queue["paused_at"] is not None,
                is_served=queue["is_served"],
                oldest_ready_seconds=None if oldest_at is None else max(0.0, new.at - oldest_at),
                claims_per_second=claims_rate(place),
                enqueued_per_second=_counted_rate("enqueued", place, new, earlier),
                done_per_second=_counted_rate("done", place, new, earlier),
                failed_per_second=_counted_rate("failed", place, new, earlier),
                wait_p50=seconds(waits, 0.5),
                wait_p95=seconds(waits, 0.95),
                run_p50=seconds(runs, 0.5),
                run_p95=seconds(runs, 0.95),
                latency_is_recent=waits_are_recent or runs_are_recent,
            )
        )
    return found


def _counted_rate(
    name: Literal["enqueued", "done", "failed"],
    place: _Place,
    new: _Read,
    earlier: Sequence[_Read],
) -> float | None:
    """Return by how much a counter grows a second, between two folds: a busy worker folds every
    ten seconds, and between two reads nothing may have been counted.

    None where the reads have one fold only.
    """
    if not earlier:
        return None
    at = new.counted_at.get(place, 0.0)
    if new.at - at > 2 * RATE_SECONDS:
        return 0.0  # Nothing has ended since.
    before = [read for read in earlier if read.counted_at.get(place, 0.0) < at]
    if not before:
        return None
    long_before = [read for read in before if at - read.counted_at.get(place, 0.0) >= RATE_SECONDS]
    base = long_before[-1] if long_before else before[0]
    # A place that was not counted before began with the first read at the latest.
    since = base.counted_at.get(place, base.at)
    change: int = getattr(new, name).get(place, 0) - getattr(base, name).get(place, 0)
    return max(0, change) / (at - since) if at > since else None


def _lately(
    new: Mapping[_Place, list[int]], old: Mapping[_Place, list[int]] | None, place: _Place
) -> tuple[list[int], bool]:
    """Return what was added to a histogram with its sum, and True; if nothing was, all of it, and
    False.
    """
    counts = new.get(place, [])
    if old is not None:
        before = old.get(place) or [0] * len(counts)
        added = [max(0, a - b) for a, b in zip(counts, before, strict=True)]
        if any(added[:-1]):
            return added, True
    return counts, False


def _workers(data: Mapping[str, Any]) -> list[WorkerLoad]:
    at = float(data["at"])
    return [
        WorkerLoad(
            worker=worker["worker"],
            group=worker["group"],
            app=worker["app"],
            running=worker["running"],
            slots=worker["concurrency"],
            delivers=worker["delivers"],
            is_alive=worker["is_alive"],
            heartbeat_seconds=None
            if worker["heartbeat_at"] is None
            else max(0.0, at - worker["heartbeat_at"]),
            memory_bytes=worker["memory_bytes"],
        )
        for worker in data["workers"]
    ]
