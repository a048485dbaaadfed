"""mixed: a producer and a worker at the same time, with a bounded number of waiting jobs.

The producer commits 100 jobs at a time, with its library's call for many jobs, and pauses while
5,000 wait; the worker's handler counts. The figure is the number of handlers per second in the
middle of the run. Then the producer ends and the worker empties the queue: every committed job must
have been handled once.

The memory of Forebay's worker is measured meanwhile. In the full form it is measured instead in a
separate run of ten minutes, with 100,000 jobs a minute.
"""

from __future__ import annotations

import contextlib
import statistics
import time
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from forebay.errors import ForebayError
from forebay_bench import _ours
from forebay_bench._counters import Counters
from forebay_bench._cpu import COLUMNS, CPU_NOTE, JobCosts
from forebay_bench._engine import Runner, started_engines
from forebay_bench._measure import (
    Spread,
    in_turns,
    ratio_of_rounds,
    resident_bytes,
    round_figure,
)
from forebay_bench._processes import wait_until
from forebay_bench._report import Bar, Report, Table
from forebay_bench.peers import installed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from matplotlib.figure import Figure

    from forebay_bench._place import Place
    from forebay_bench._run import Options

#: Jobs of one transaction of the producer.
_BATCH: Final = 100

#: Most waiting jobs; fewer for engines that need long to run them.
_BACKLOG: Final = 5_000
_BACKLOGS: Final = {"procrastinate": 200}

#: Not measured: connections open, plans are made, durations are learned.
_WARM_UP_SHARE: Final = 0.25

_START_SECONDS: Final = 60.0
_END_SECONDS: Final = 120.0

_FIXED_RATE_PER_SECOND: Final = 100_000 / 60
_FIXED_RATE_SECONDS: Final = 600.0
_SAMPLES_PER_RUN: Final = 40

_MEGABYTE: Final = 1e6


@dataclass(slots=True)
class Memory:
    """The worker's resident memory at each measurement, in megabytes."""

    values: list[float] = field(default_factory=list)

    def look(self, pid: int) -> None:
        """Look now."""
        found = resident_bytes(pid)
        if found is not None:
            self.values.append(found / _MEGABYTE)


def run(place: Place, options: Options, progress: Callable[[str], None]) -> Report:
    """Run the scenario."""
    rounds = options.rounds or (3 if options.full else 2)
    seconds = (20.0 if options.full else 5.0) * options.scale
    memory = Memory()
    costs, enqueued = JobCosts(place), dict[str, int]()
    with started_engines(place, options.compare) as workers, _producers(workers) as producers:
        engines = {
            name: partial(
                _turn,
                worker,
                producers[name],
                seconds,
                memory if name == "forebay" and not options.full else None,
                backlog=_BACKLOGS.get(name, _BACKLOG),
                per_second=None,
                enqueued=partial(enqueued.__setitem__, name),
            )
            for name, worker in workers.items()
        }
        turns = {
            name: costs.counted(
                name,
                work,
                partial(_jobs, enqueued, name),
                [workers[name].pid, producers[name].pid],
            )
            for name, work in engines.items()
        }
        found = in_turns(turns, rounds, progress)
    if options.full:
        progress(f"{_fixed_rate_seconds(options):.0f} s of 100,000 jobs a minute")
        with started_engines(place, ()) as workers, _producers(workers) as producers:
            _turn(
                workers["forebay"],
                producers["forebay"],
                _fixed_rate_seconds(options),
                memory,
                backlog=_BACKLOG,
                per_second=_FIXED_RATE_PER_SECOND,
            )
    return _report(found, memory, costs, options, rounds)


def _jobs(enqueued: Mapping[str, int], name: str, _rate: float) -> float:
    """Return how many jobs the last turn of an engine had."""
    return enqueued[name]


def _fixed_rate_seconds(options: Options) -> float:
    """Return how long the full form measures memory: ten minutes, unless scaled."""
    return max(5.0, _FIXED_RATE_SECONDS * options.scale)


@contextlib.contextmanager
def _producers(workers: dict[str, Runner]) -> Iterator[dict[str, Runner]]:
    """Yield a second process for each engine, on the same database."""
    producers = {name: Runner(name, worker.dsn) for name, worker in workers.items()}
    try:
        yield producers
    finally:
        for producer in producers.values():
            producer.close()


def _turn(
    worker: Runner,
    producer: Runner,
    seconds: float,
    memory: Memory | None,
    *,
    backlog: int,
    per_second: float | None,
    enqueued: Callable[[int], None] = lambda _: None,
) -> float:
    """Let both work; return how many jobs a second were handled, and report how many there were
    in all.
    """
    with Counters() as counters:
        worker.send("serve", path=counters.path)
        producer.send(
            "produce",
            path=counters.path,
            seconds=seconds,
            batch=_BATCH,
            backlog=backlog,
            per_second=per_second,
        )
        wait_until(lambda: counters.handled > 0, _START_SECONDS, "the first job is handled")
        time.sleep(seconds * _WARM_UP_SHARE)
        before, began = counters.handled, time.monotonic()
        length = seconds * (1 - _WARM_UP_SHARE) * 0.9
        pause = length / _SAMPLES_PER_RUN
        while time.monotonic() < began + length:
            if memory is not None:
                memory.look(worker.pid)
            time.sleep(pause)
        rate = (counters.handled - before) / (time.monotonic() - began)
        count = producer.read_message()
        wait_until(lambda: counters.handled >= count, _END_SECONDS, "the queue is empty")
        counters.stop = True
        worker.read_message()
        if counters.handled != count:
            raise ForebayError(f"{counters.handled} jobs were handled, of {count}")
        enqueued(count)
    return rate


def _report(
    found: dict[str, list[float]],
    memory: Memory,
    costs: JobCosts,
    options: Options,
    rounds: int,
) -> Report:
    spreads = {name: Spread.of(values) for name, values in found.items()}
    peers = [name for name in found if name != "forebay"]
    first, last, most = _first_last_most(memory.values)
    figures: dict[str, Any] = {
        "ours_per_s": round_figure(spreads["forebay"].median),
        "rss_mb_first": round_figure(first),
        "rss_mb_last": round_figure(last),
        "rss_mb_max": round_figure(most),
        "peers": {name: round_figure(spreads[name].median) for name in peers},
        "cpu_us": costs.figures(),
    }
    rows = [
        (
            "Forebay" if name == "forebay" else name,
            f"{spread.median:,.0f}",
            f"{spread.low:,.0f} to {spread.high:,.0f}",
            *costs.cells(name),
        )
        for name, spread in spreads.items()
    ]
    bars = [
        Bar(
            "against pgqueuer",
            ratio_of_rounds(found["forebay"], found["pgqueuer"]) if "pgqueuer" in found else None,
            at_least=2.5,
        ),
        Bar("memory of Forebay's worker, in MB", most, at_most=150),
    ]
    if options.full:
        growth = None if first is None or last is None else last / first
        watched = f"memory after {_fixed_rate_seconds(options):.0f} s, against the beginning"
        bars.append(Bar(watched, growth, at_most=1.05))
    columns = ["", "jobs/s", f"{rounds} rounds", *COLUMNS]
    tables = [Table(columns, rows, right=columns[1:])]
    if first is not None and last is not None and most is not None:
        tables.append(
            Table(
                ["memory of Forebay's worker", "MB"],
                [("at first", f"{first:.0f}"), ("last", f"{last:.0f}"), ("most", f"{most:.0f}")],
                right=["MB"],
            )
        )
    return Report(
        figures,
        tables,
        bars,
        notes=[
            (
                f"one producer and one worker process; {_BATCH} jobs a transaction, at most "
                f"{_BACKLOG:,} wait, 200 for procrastinate"
            ),
            CPU_NOTE + ", here of both processes",
            (
                "on two cores the producer, the worker and the server share them: a cheaper "
                "enqueue leaves more for the worker"
            ),
            (
                f"ours runs {_ours.CONCURRENCY} jobs at a time on asyncio's own event loop, as "
                f"forebay worker does"
            ),
            f"memory: {_fixed_rate_seconds(options):.0f} s of 100,000 jobs a minute"
            if options.full
            else "memory: during these few seconds; --full measures it for ten minutes",
            *(peer.NOTE for peer in installed(options.compare)),
        ],
        draw=partial(_draw, spreads),
    )


def _first_last_most(
    values: Sequence[float],
) -> tuple[float | None, float | None, float | None]:
    """Return the medians of the first and the last tenth, and the largest value."""
    if not values:
        return None, None, None
    tenth = max(1, len(values) // 10)
    return statistics.median(values[:tenth]), statistics.median(values[-tenth:]), max(values)


def _draw(spreads: dict[str, Spread], figure: Figure) -> None:
    from forebay_bench.plot import rates  # noqa: PLC0415 - imports matplotlib

    rates(
        figure,
        "A producer and a worker at the same time",
        {
            "Forebay" if name == "forebay" else name: (spread, name)
            for name, spread in spreads.items()
        },
    )
