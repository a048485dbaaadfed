"""shares: whether one limit key with very many jobs delays a thousand keys with a few.

Two queues have a thousand *small* keys of ten jobs, enqueued key by key. In the queue *beside*, a large key has 200,000 jobs before them (with
``--full`` a million); the queue *alone* has none. A worker process for each queue runs handlers that do nothing. The queues take turns:
one is paused while the other is measured, so that the large key's jobs last.

What is measured is the time from when the queue is resumed until the last job of each small key has started, in the slowest hundredth of the
keys. Also, how even the shares of the small keys are when half of their jobs have started: Jain's index, 1 for equal shares.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import psycopg

from forebay.errors import ForebayError
from forebay_bench._journal import Journal
from forebay_bench._measure import percentile, ratio_of_rounds, round_figure
from forebay_bench._processes import wait_until, workers
from forebay_bench._report import Bar, Report, Table

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from forebay_bench._place import Place
    from forebay_bench._run import Options

_KEYS: Final = 1_000
_JOBS_OF_KEY: Final = 10
_LARGE_JOBS: Final = 200_000
_FULL_FACTOR: Final = 5
_KEY_CONCURRENCY: Final = 5
_CONCURRENCY: Final = 50
_ROUNDS: Final = 3
#: Keys of the round that is not measured.
_WARM_KEYS: Final = 50
#: What jobs of the large key record instead of the number of their key.
_LARGE: Final = -1
_WAIT_SECONDS: Final = 120.0
_LIMITS_SETTLE_SECONDS: Final = 1.0

_FILL: Final = """
select forebay.enqueue_many(jsonb_agg(
    jsonb_build_object('kind', 'record_start', 'queue', %(queue)s::text, 'args', jsonb_build_object('number', n.number),
                       'limit_key', 'tenant ' || n.number) order by i))
from generate_series(%(first)s::bigint, %(last)s::bigint) i
cross join lateral (select case when %(jobs)s::bigint > 0 then i / %(jobs)s::bigint else -1 end as number) n
"""

_CHUNK: Final = 20_000


@dataclass
class Arm:
    """A queue, and what was measured in each round."""

    queue: str
    conn: psycopg.Connection[Any]
    notes: Journal
    slowest: list[float] = field(default_factory=list)
    median: list[float] = field(default_factory=list)
    jain: list[float] = field(default_factory=list)

    def fill(self, count: int, jobs_of_key: int) -> None:
        """Enqueue jobs of small keys, or without a number of jobs for each key jobs of the large one."""
        for first in range(0, count, _CHUNK):
            last = min(first + _CHUNK, count) - 1
            values = {"queue": self.queue, "first": first, "last": last, "jobs": jobs_of_key}
            self.conn.execute(_FILL, values, prepare=True)

    def take_turn(self, keys: int) -> None:
        """Enqueue the jobs of the small keys, resume the queue, and pause it when they have started."""
        self.fill(keys * _JOBS_OF_KEY, _JOBS_OF_KEY)
        before = self.notes.count
        started = time.monotonic()
        self.conn.execute("select forebay.resume_queue(%s)", [self.queue])
        wait_until(partial(self._has_all, before, keys), _WAIT_SECONDS, "the small keys end")
        self.conn.execute("select forebay.pause_queue(%s)", [self.queue])
        wait_until(self._is_quiet, _WAIT_SECONDS, "claimed jobs end")
        ends: dict[int, float] = {}
        served: Counter[int] = Counter()
        for number, at in self.notes.read(before):
            if number == _LARGE:
                continue
            ends[number] = at - started
            if served.total() < keys * _JOBS_OF_KEY // 2:
                served[number] += 1
        self.slowest.append(percentile(list(ends.values()), 0.99))
        self.median.append(statistics.median(ends.values()))
        self.jain.append(_jain(served, keys))

    def forget(self) -> None:
        """Forget the figures so far."""
        for figures in (self.slowest, self.median, self.jain):
            figures.clear()

    def _has_all(self, before: int, keys: int) -> bool:
        if self.notes.count - before < keys * _JOBS_OF_KEY:
            return False
        small = sum(number != _LARGE for number, _ in self.notes.read(before))
        return small >= keys * _JOBS_OF_KEY

    def _is_quiet(self) -> bool:
        row = self.conn.execute(
            "select claimed + running from forebay.depth(%s)", [self.queue]
        ).fetchone()
        return row is not None and row[0] == 0


def run(place: Place, options: Options, progress: Callable[[str], None]) -> Report:
    """Run the scenario."""
    rounds = options.rounds or _ROUNDS
    keys = max(10, int(_KEYS * min(1.0, options.scale)))
    large = int(_LARGE_JOBS * options.scale * (_FULL_FACTOR if options.full else 1))
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="forebay-bench-")))
        dsn = stack.enter_context(place.database("shares"))
        conn = stack.enter_context(psycopg.connect(dsn, autocommit=True))
        arms = [Arm(name, conn, Journal(folder / name)) for name in ("alone", "beside")]
        for arm in arms:
            progress(f"a worker of queue {arm.queue} starts")
            settings = {"FOREBAY_QUEUE": arm.queue, **arm.notes.environment}
            stack.enter_context(workers(dsn, concurrency=_CONCURRENCY, settings=settings)).start()
            conn.execute("select forebay.pause_queue(%s)", [arm.queue])
            conn.execute(
                "select forebay.limit_queue(%s, key_concurrency => %s)",
                [arm.queue, _KEY_CONCURRENCY],
            )
        progress(f"{large:,} jobs of the large key are enqueued")
        arms[1].fill(large, 0)
        progress("a round that is not measured")
        for (
            arm
        ) in arms:  # In the first second after limits were set the jobs in flight are counted anew.
            arm.take_turn(min(keys, _WARM_KEYS))
            arm.forget()
        time.sleep(_LIMITS_SETTLE_SECONDS)
        for number in range(rounds):
            progress(f"round {number + 1} of {rounds}")
            for arm in arms if number % 2 == 0 else arms[::-1]:
                arm.take_turn(keys)
        left = large - sum(number == _LARGE for number, _ in arms[1].notes.read())
        if left <= 0:
            raise ForebayError("the jobs of the large key ran out during the measurement")
    return _report({arm.queue: arm for arm in arms}, keys, large, left, rounds)


def _jain(served: Mapping[int, int], keys: int) -> float:
    """Return Jain's index of shares; a key that was not served has none."""
    total = sum(served.values())
    return total**2 / (keys * sum(count**2 for count in served.values())) if total else 0.0


def _report(arms: Mapping[str, Arm], keys: int, large: int, left: int, rounds: int) -> Report:
    figures: dict[str, Any] = {
        name: {
            "p50_s": round_figure(statistics.median(arm.median)),
            "p99_s": round_figure(statistics.median(arm.slowest)),
            "jain": round_figure(statistics.median(arm.jain), 4),
        }
        for name, arm in arms.items()
    }
    columns = ["", "a key ends, median s", "99 %, s", "Jain's index"]
    labels = {"alone": f"{keys:,} keys alone", "beside": f"beside one of {large:,} jobs"}
    rows = [
        (labels[name], *(f"{value:.4g}" for value in found.values()))
        for name, found in figures.items()
    ]
    ratio = ratio_of_rounds(arms["beside"].slowest, arms["alone"].slowest)
    bars = [
        Bar("end of a small key in 99 %, beside the large one to alone", ratio, at_most=1.5),
        Bar("Jain's index of the small keys, beside the large one", figures["beside"]["jain"], at_least=0.99),
    ]  # fmt: skip
    figures |= {"large_jobs": large, "large_jobs_run": large - left}
    return Report(
        figures,
        [Table(columns, rows, right=columns[1:])],
        bars,
        notes=[
            f"{rounds} rounds; a worker of {_CONCURRENCY} slots; each small key has {_JOBS_OF_KEY} jobs, enqueued key by key; at most {_KEY_CONCURRENCY} jobs of a key run at once",
            f"{large - left:,} jobs of the large key ran meanwhile; its jobs were enqueued in bulk",
        ],
    )
