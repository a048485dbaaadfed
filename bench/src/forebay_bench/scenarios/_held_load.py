"""The load of ``held``: an engine, the jobs of its turns, its clock, and its figures."""

from __future__ import annotations

import bisect
import statistics
import time
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from forebay_bench._measure import round_figure

if TYPE_CHECKING:
    from collections.abc import Sequence

    from forebay_bench.engines.queue import Queue, Taken

_SAMPLES_PER_TURN: Final = 3

ENQUEUE_ROWS: Final = 500
CLAIM_ROWS: Final = 100
#: Claims whose pages are counted, in a part of a turn.
_COUNTED: Final = 5
#: The load of an engine, as a share of its speed. At 0.7 autovacuum alone makes jobs wait for
#: seconds on two cores.
LOAD: Final = 0.5
#: Maximum number of jobs in a measurement of the speed.
_SPEED_JOBS_MAX: Final = 40_000
_FAILING: Final = 5
#: A turn of a number of jobs ends after this many times the time that they need at the offered
#: rate.
_LATE: Final = 10


@dataclass
class Turn:
    """What an engine did in one turn."""

    seconds: float = 0
    finished: int = 0
    claims: list[float] = field(default_factory=list)
    pickups: list[float] = field(default_factory=list)
    enqueues: list[float] = field(default_factory=list)
    ends: list[float] = field(default_factory=list)
    pages: list[int] = field(default_factory=list)
    """Pages that the server read for claims that were counted and not timed."""
    counted: int = 0

    @property
    def throughput(self) -> float:
        """Jobs a second."""
        return self.finished / self.seconds if self.seconds else 0

    @property
    def claim_ms(self) -> float | None:
        """The median time to get jobs."""
        return median_ms(self.claims)

    @property
    def claim_pages(self) -> float | None:
        """The median number of pages that a claim reads: a few read more, when a plan is made
        again or a segment begins.
        """
        return statistics.median(self.pages) if self.pages else None

    @property
    def pickup_ms(self) -> float | None:
        """The median time from when a job could run until it was taken."""
        return median_ms(self.pickups)


def median_ms(seconds: Sequence[float]) -> float | None:
    """Return the median in milliseconds; None of nothing."""
    return statistics.median(seconds) * 1000 if seconds else None


class Engine:
    """An engine, its load, its clock, and its figures.

    Args:
        queue: the engine.
        mix: which jobs.
        delay_seconds: after which a job is due.
        due_is_kept: the engine keeps when a job was due, and not when it was enqueued.
    """

    def __init__(self, queue: Queue, mix: str, *, delay_seconds: float, due_is_kept: bool) -> None:
        self.queue = queue
        self.rate = 0.0
        self.enqueued = self.finished = 0
        self.enqueue_worst = 0.0
        self.turns: list[Turn] = []
        self.samples: list[dict[str, Any]] = []
        self._mix = mix
        self._delay = delay_seconds
        self._since_written = 0.0 if due_is_kept else delay_seconds
        self._active = 0.0  # how long it has had its turn so far
        self._starts: list[float] = []  # of its turns, by the clock on the wall
        self._before: list[float] = []  # and how long it had had its turn by then
        self._dues: deque[tuple[float, int]] = deque()
        self._due = 0

    def measure_speed(self, seconds: float) -> None:
        """Enqueue for a while, wait until all jobs are due, run them.

        The median of three measurements is the speed.
        """
        speeds = []
        for _ in range(3):
            speeds.append(self._speed(seconds / 6))
            self.enqueued = self.finished = 0
        self.rate = LOAD * statistics.median(speeds)

    def _speed(self, seconds: float) -> float:
        started, asked = time.perf_counter(), 0
        while (
            enqueue_seconds := time.perf_counter() - started
        ) < seconds and asked < _SPEED_JOBS_MAX:
            self.enqueued += self.queue.enqueue(ENQUEUE_ROWS, self._delay)
            asked += ENQUEUE_ROWS
        time.sleep(self._delay)
        busy = 0.0
        while self.finished < self.enqueued:
            began = time.perf_counter()
            taken = self.queue.claim(CLAIM_ROWS)
            self._end(taken)
            if taken:
                busy += time.perf_counter() - began
            else:
                time.sleep(0.001)
        return self.finished / (enqueue_seconds + busy)

    def take_turn(self, seconds: float, *, jobs: int | None = None) -> float:
        """For a time, enqueue the jobs that are due by now, and take and end jobs.

        Return how long that took.

        With ``jobs`` the turn ends after this number of jobs, and at the latest after ten times the
        time that these need.
        """
        if jobs is not None:
            seconds = _LATE * jobs / self.rate
        turn = Turn()
        self._starts.append(time.time())
        self._before.append(self._active)
        started = time.perf_counter()
        before, sampled, part = self._active, 0.0, Turn()
        while (elapsed := time.perf_counter() - started) < seconds:
            self._active = before + elapsed
            finished = turn.finished + part.finished
            share = elapsed / seconds if jobs is None else finished / jobs
            if share >= 1:
                break
            if share - sampled >= 1 / _SAMPLES_PER_TURN:
                self._sample(turn, part)
                sampled, part = share, Turn()
            owed = self.rate * self._active - self.enqueued
            if owed >= ENQUEUE_ROWS:
                part.enqueues.append(self._enqueue(ENQUEUE_ROWS))
            taken = self._claim(part)
            if taken:
                self._record_pickups(part, taken, before + time.perf_counter() - started)
                began = time.perf_counter()
                part.finished += self._end(taken)
                part.ends.append(time.perf_counter() - began)
            elif owed < ENQUEUE_ROWS:
                time.sleep(0.0005)
        self._active = before + elapsed
        self._sample(turn, part)
        turn.seconds = elapsed
        self.turns.append(turn)
        return elapsed

    def _claim(self, part: Turn) -> list[Taken]:
        """Take jobs, and time it.

        Some in each part of a turn are counted instead, since counting takes time.
        """
        if part.claims and part.counted < _COUNTED:
            taken, pages = self.queue.claim_counted(CLAIM_ROWS)
            part.counted += 1
            if taken and pages is not None:
                part.pages.append(pages)
            return taken
        began = time.perf_counter()
        taken = self.queue.claim(CLAIM_ROWS)
        if taken:
            part.claims.append(time.perf_counter() - began)
        return taken

    def _enqueue(self, count: int) -> float:
        """Enqueue in one statement; how long that took."""
        began = time.perf_counter()
        made = self.queue.enqueue(count, self._delay)
        seconds = time.perf_counter() - began
        self.enqueue_worst = max(self.enqueue_worst, seconds)
        self.enqueued += made
        self._dues.append((time.time() + self._delay, made))
        return seconds

    def _end(self, taken: Sequence[Taken]) -> int:
        """End jobs; how many of them for good."""
        failed: list[Taken] = []
        if self._mix == "failing":
            failed = [job for job in taken if not job.attempts and job.number % _FAILING == 0]
        done = [job for job in taken if job not in failed] if failed else list(taken)
        if taken:
            self.queue.end(done, failed)
        self.finished += len(done)
        return len(done)

    def _record_pickups(self, part: Turn, taken: Sequence[Taken], now: float) -> None:
        """Record how long each job has been able to run, by the engine's clock."""
        part.pickups += [
            max(0.0, now - self._own_time(job.written_at + self._since_written))
            for job in taken
            if not job.attempts
        ]

    def _own_time(self, wall: float) -> float:
        """Return a moment of the clock on the wall by the engine's clock, which stands still
        between its turns.
        """
        place = bisect.bisect_right(self._starts, wall) - 1
        if place < 0:
            return 0.0
        moment = self._before[place] + wall - self._starts[place]
        return min(moment, self._before[place + 1]) if place + 1 < len(self._before) else moment

    def _sample(self, turn: Turn, part: Turn) -> None:
        now = time.time()
        while self._dues and self._dues[0][0] <= now:
            self._due += self._dues.popleft()[1]
        turn.finished += part.finished
        turn.claims += part.claims
        turn.pickups += part.pickups
        turn.pages += part.pages
        self.samples.append(
            {
                "seconds": round(self._active, 2),
                "claim_p50_ms": round_figure(part.claim_ms),
                "claim_pages": part.claim_pages,
                "waiting": max(0, self._due - self.finished),
                "pickup_p50_ms": round_figure(part.pickup_ms),
                "enqueue_p50_ms": round_figure(median_ms(part.enqueues)),
                "end_p50_ms": round_figure(median_ms(part.ends)),
                "dead_rows": self.queue.dead_rows(),
            }
        )
