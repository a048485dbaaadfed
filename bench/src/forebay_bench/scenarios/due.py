"""due: many jobs that are due in the same second, and fresh jobs of a higher priority beside them.

All jobs are of one queue. One worker process with default settings, ``forebay worker``, promotes the due ones and runs both. Before
the second comes and after it, a producer commits fresh jobs at random moments. Promotions are read from the promoter's cursor: when the
first and the last step committed, and how many jobs each step had.
"""

from __future__ import annotations

import itertools
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

import psycopg

from forebay.errors import ForebayError
from forebay_bench._child import sleep_until
from forebay_bench._journal import Journal
from forebay_bench._measure import percentile, round_figure
from forebay_bench._processes import wait_until, workers
from forebay_bench._report import Bar, Report, Table
from forebay_bench.scenarios.latency import arrivals, set_wakeup

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from forebay_bench._place import Place
    from forebay_bench._run import Options

_QUICK_JOBS: Final = 100_000
_FULL_JOBS: Final = 1_000_000

_FRESH_PER_S: Final = 100
_BEFORE_SECONDS: Final = 3.0
_STEP: Final = 50_000

#: What the handler of a due job records.
_DUE: Final = -2

#: Time to enqueue them, to start the worker and to look at fresh jobs alone, before they are due.
_FILLED_PER_S: Final = 15_000
_START_SECONDS: Final = 15.0

_FILL: Final = """
select forebay.enqueue_many('record_start', array(select jsonb_build_object('number', %s::bigint) from generate_series(1, %s)), 'pickup', run_at => %s)
"""
_ENQUEUE: Final = (
    "select forebay.enqueue('record_start', jsonb_build_object('number', %s::bigint), 'pickup', 10)"
)
_PROMOTED: Final = """
select coalesce(sum(promoted), 0)::bigint, coalesce(extract(epoch from max(promoted_at) - min(promoted_at)), 0)::float8,
       count(*) filter (where promoted > 0)
from forebay.promotion where promoted > 0
"""


class _Fresh:
    """A producer of fresh jobs; notes when each was committed."""

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self._numbers = itertools.count()
        self._is_over = threading.Event()
        self.committed: dict[int, float] = {}
        self._failures: list[BaseException] = []
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()
        if self._failures:
            raise self._failures[0]

    def _run(self) -> None:
        try:
            with psycopg.connect(self._dsn, autocommit=True) as conn:
                for moment in self._moments():
                    sleep_until(moment)
                    if self._is_over.is_set():
                        return
                    number = next(self._numbers)
                    conn.execute(_ENQUEUE, [number], prepare=True)
                    self.committed[number] = time.monotonic()
        except BaseException as error:
            self._failures.append(error)

    def _moments(self) -> Iterator[float]:
        began = time.monotonic()
        for minute in itertools.count():
            yield from (began + 60.0 * minute + at for at in arrivals(_FRESH_PER_S, 60.0))


def run(place: Place, options: Options, progress: Callable[[str], None]) -> Report:
    """Run the scenario."""
    jobs = max(1000, int((_FULL_JOBS if options.full else _QUICK_JOBS) * options.scale))
    before_seconds = max(0.5, _BEFORE_SECONDS * min(1.0, options.scale))
    with tempfile.TemporaryDirectory(prefix="forebay-bench-") as folder:
        notes = Journal(Path(folder) / "notes")
        settings = {"FOREBAY_QUEUE": "pickup", **notes.environment}
        with (
            place.database("due") as dsn,
            workers(dsn, settings=settings) as processes,
            psycopg.connect(dsn, autocommit=True) as conn,
        ):
            set_wakeup(dsn, on=True)
            progress(f"{jobs:,} jobs are enqueued for one instant")
            due = _fill(conn, jobs)
            processes.start()
            sleep_until(due - before_seconds)
            with _Fresh(dsn) as fresh:
                progress("fresh jobs alone")
                sleep_until(due)
                progress("the jobs are due")
                wait_until(
                    lambda: _promoted(conn)[0] >= jobs, 60.0 + jobs / 1000, "all jobs are promoted"
                )
                last = time.monotonic()
            wait_until(
                lambda: notes.count >= jobs + len(fresh.committed),
                60.0 + jobs / 1000,
                "all jobs have run",
            )
            processes.raise_when_one_ended()
            promoted, seconds, steps = _promoted(conn)
            waits: dict[str, list[float]] = {"before": [], "during": []}
            for number, at in notes.read():
                committed = fresh.committed.get(number)
                if committed is not None and committed < last:
                    waits["before" if committed < due else "during"].append(at - committed)
    assert promoted == jobs
    return _report(jobs, seconds, steps, waits)


def _fill(conn: psycopg.Connection[Any], jobs: int) -> float:
    """Enqueue the jobs; return when they are due, by the monotonic clock."""
    row = conn.execute(
        "select clock_timestamp() + make_interval(secs => %s)",
        [jobs / _FILLED_PER_S + _START_SECONDS],
    ).fetchone()
    assert row is not None
    for done in range(0, jobs, _STEP):
        conn.execute(_FILL, [_DUE, min(_STEP, jobs - done), row[0]])
    left = conn.execute(
        "select extract(epoch from %s - clock_timestamp())::float8", [row[0]]
    ).fetchone()
    assert left is not None
    if left[0] < _BEFORE_SECONDS:
        raise ForebayError(
            "enqueuing the jobs took longer than planned", hint="Use a smaller --scale."
        )
    return time.monotonic() + float(left[0])


def _promoted(conn: psycopg.Connection[Any]) -> tuple[int, float, int]:
    """Return how many jobs were promoted, the seconds from the first step to the last, and the number of steps."""
    row = conn.execute(_PROMOTED).fetchone()
    assert row is not None
    jobs, seconds, steps = row
    return jobs, seconds, steps


def _report(jobs: int, seconds: float, steps: int, waits: dict[str, list[float]]) -> Report:
    # The first step ended when the time began to count.
    per_s = None if steps < 2 else jobs * (steps - 1) / steps / seconds
    during = percentile(waits["during"], 0.99) * 1000
    rows = [
        (
            when,
            f"{len(found):,}",
            *(f"{percentile(found, share) * 1000:.1f}" for share in (0.5, 0.99)),
        )
        for when, found in waits.items()
    ]
    return Report(
        {
            "jobs": jobs,
            "promoted_per_s": round_figure(per_s),
            "steps": steps,
            "fresh_p99_before_ms": round_figure(percentile(waits["before"], 0.99) * 1000),
            "fresh_p99_ms": round_figure(during),
        },
        [
            Table(
                ["fresh jobs", "number", "median ms", "99 % ms"],
                rows,
                right=["number", "median ms", "99 % ms"],
            )
        ],
        [
            Bar("jobs promoted a second", per_s, at_least=20_000),
            Bar("fresh jobs while others are promoted, 99 % ms", during, at_most=50.0),
        ],
        notes=[
            f"{jobs:,} jobs are due at one instant, and {_FRESH_PER_S} fresh jobs a second have a higher priority",
            f"promoted in {steps} steps; counted from the end of the first to the end of the last",
        ],
    )
