"""latency: from the commit of a job to the start of its handler, and the cost of idle workers
for the server.

One worker process with its default settings, ``forebay worker``, and handlers that only record the
time. Producers commit at random moments (exponential gaps, so that no commit pattern is in step
with the polls), each job in a separate transaction. The clock starts when the producer learns that
its commit is done, and stops in the first line of the handler; both read the monotonic clock of the
same machine.

- ``listen``: the wake-up is on, as it is by default where transactions cannot be prepared.
- ``poll``: the wake-up is off, so that only the worker's polls find jobs.
- ``slow_commit``: the wake-up is on, and each transaction stays open for 100 ms after its enqueue.
  Counted from the commit. From 200 transactions a second on each has several jobs, so that some
  twenty are open at a time.

The clock starts only when the commit is known: a worker that is faster than the answer to the
producer gives a figure near zero, or just below it.

The idle cost is the CPU time of the workers' sessions in the server, as a share of one core, while
workers poll without finding jobs.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import random
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import psycopg
from psycopg import sql

from forebay.embedded import temporary_server
from forebay.errors import ForebayError
from forebay.upgrade.migrate import migrate
from forebay_bench._child import sleep_until
from forebay_bench._idle_cost import idle_cost
from forebay_bench._journal import Journal
from forebay_bench._measure import percentile, round_figure
from forebay_bench._place import SERVER_SETTINGS, Place
from forebay_bench._processes import (
    CONNECTIONS_OF_WORKER,
    connections_for_workers,
    scripts,
    wait_until,
    workers,
)
from forebay_bench._report import Bar, Report, Table

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from forebay_bench._run import Options

_ENQUEUE: Final = (
    "select forebay.enqueue('record_start', jsonb_build_object('number', %s::bigint), 'pickup')"
)

WAYS: Final = {
    "listen": "LISTEN",
    "poll": "polling only",
    "slow_commit": "committed 100 ms later",
}

#: Jobs a second, and for how long in a quick and in a full round.
RATES: Final = {10: (4.0, 30.0), 200: (2.0, 15.0), 2000: (1.5, 10.0)}

_HOLD_SECONDS: Final = 0.1

#: Most transactions a second when each stays open; at higher rates each has several jobs.
_HELD_PER_SECOND_MAX: Final = 200

_IDLE_WORKERS: Final = 200
_IDLE_WORKERS_PER_PROCESS: Final = 50

_ARRIVAL_SECONDS: Final = 30.0


@dataclass(frozen=True, slots=True)
class Idle:
    """The cost of some idle workers for the server."""

    workers: int
    core_share: float | None
    transactions_per_s: float


@dataclass(slots=True)
class Case:
    """One way and rate, and the figures of its rounds."""

    way: str
    per_s: int
    waits: list[float] = field(default_factory=list)
    jobs: int = 0
    seconds: float = 0.0

    def figures(self) -> dict[str, Any]:
        """Return it for the report."""
        return {
            "case": self.way,
            "per_s": self.per_s,
            "reached_per_s": round_figure(self.jobs / self.seconds),
            "jobs": self.jobs,
            **{f"p{share}_ms": round_figure(self.millis(share)) for share in (50, 95, 99)},
        }

    def millis(self, share: int) -> float:
        """Return a percentile of the waits."""
        return percentile(self.waits, share / 100) * 1000


def run(place: Place, options: Options, progress: Callable[[str], None]) -> Report:
    """Run the scenario."""
    rounds = options.rounds or (3 if options.full else 1)
    cases = [Case(way, rate) for rate in RATES for way in WAYS]
    idle_seconds = (10.0 if options.full else 2.5) * min(1.0, max(0.2, options.scale))
    with tempfile.TemporaryDirectory(prefix="forebay-bench-") as folder:
        notes = Journal(Path(folder) / "notes")
        settings = {"FOREBAY_QUEUE": "pickup", **notes.environment}
        with place.database("latency") as dsn, workers(dsn, settings=settings) as worker_processes:
            progress("one idle worker")
            worker_processes.start()
            idle = [_measure_idle(place, dsn, 1, idle_seconds)]
            numbers = itertools.count()
            _load(dsn, Case("listen", 50), 0.3, numbers, notes)  # nothing is cold then
            for number in range(rounds):
                for case in cases if number % 2 == 0 else reversed(cases):
                    progress(f"round {number + 1} of {rounds}: {case.per_s}/s, {WAYS[case.way]}")
                    seconds = RATES[case.per_s][options.full] * options.scale
                    _load(dsn, case, seconds, numbers, notes)
                    worker_processes.raise_when_one_ended()
    idle.append(_many_idle(place, options, idle_seconds, progress))
    return _report(cases, idle, rounds)


# --- pickup ---


def _load(dsn: str, case: Case, seconds: float, numbers: Iterator[int], notes: Journal) -> None:
    """Let producers commit jobs at the case's rate; add the figures to the case."""
    set_wakeup(dsn, on=case.way != "poll")
    is_held = case.way == "slow_commit"
    jobs_each = math.ceil(case.per_s / _HELD_PER_SECOND_MAX) if is_held else 1
    transactions_per_s = case.per_s / jobs_each
    connections = 2 + math.ceil(
        transactions_per_s * _HOLD_SECONDS * 1.5 if is_held else min(8.0, case.per_s / 100)
    )
    before = notes.count
    committed: dict[int, float] = {}
    moments = arrivals(transactions_per_s, seconds)
    failures: list[BaseException] = []
    turns = iter(moments)
    lock = threading.Lock()
    ready = threading.Barrier(connections + 1)
    began = 0.0

    def produce() -> None:
        try:
            with psycopg.connect(dsn, autocommit=True) as conn:
                with conn.transaction(force_rollback=True):
                    for _ in range(7):
                        conn.execute(_ENQUEUE, [-1], prepare=True)
                ready.wait()
                ready.wait()
                while True:
                    with lock:
                        due = next(turns, None)
                        mine = [next(numbers) for _ in range(jobs_each)]
                    if due is None:
                        return
                    sleep_until(began + due)
                    if is_held:
                        with conn.transaction():
                            for number in mine:
                                conn.execute(_ENQUEUE, [number], prepare=True)
                            time.sleep(_HOLD_SECONDS)
                    else:
                        conn.execute(_ENQUEUE, mine, prepare=True)
                    now = time.monotonic()
                    committed.update(dict.fromkeys(mine, now))
        except BaseException as error:
            failures.append(error)
            ready.abort()

    threads = [threading.Thread(target=produce, daemon=True) for _ in range(connections)]
    for thread in threads:
        thread.start()
    try:
        ready.wait()
        began = time.monotonic()
        ready.wait()
    except threading.BrokenBarrierError:
        raise ForebayError(f"a producer failed: {failures[0]}") from failures[0]
    for thread in threads:
        thread.join()
    if failures:
        raise ForebayError(f"a producer failed: {failures[0]}") from failures[0]
    wait_until(
        lambda: notes.count - before >= len(committed), _ARRIVAL_SECONDS, "all handlers started"
    )
    case.waits += [at - committed[number] for number, at in notes.read(before)]
    case.jobs += len(committed)
    case.seconds += max(committed.values()) - began


def arrivals(per_s: float, seconds: float) -> list[float]:
    """Return random moments, at least four of them."""
    rng = random.Random(f"{per_s} {seconds}")
    moments: list[float] = []
    at = 0.0
    while at < seconds or len(moments) < 4:
        at += rng.expovariate(per_s)
        moments.append(at)
    return moments


def set_wakeup(dsn: str, *, on: bool) -> None:
    """Set for sessions that begin from now on whether enqueues notify."""
    with psycopg.connect(dsn, autocommit=True) as conn:
        statement = sql.SQL("alter database {} set forebay.wakeup = {}").format(
            sql.Identifier(conn.info.dbname), sql.Literal("on" if on else "off")
        )
        conn.execute(statement)


# --- idle workers ---


def _many_idle(
    place: Place, options: Options, seconds: float, progress: Callable[[str], None]
) -> Idle:
    """Measure many idle workers, on a server with enough connections."""
    count = max(2, round(_IDLE_WORKERS * min(1.0, options.scale)))
    connections = connections_for_workers(place.dsn)
    with contextlib.ExitStack() as stack:
        if count > connections and place.is_own:
            progress("a server with more connections")
            connections = count * CONNECTIONS_OF_WORKER + 100
            server = stack.enter_context(
                temporary_server(
                    place.bin_dir,
                    extra_settings=SERVER_SETTINGS | {"max_connections": str(connections)},
                )
            )
            place = Place(server.dsn(), is_own=True, postmaster_pid=server.pid)
            dsn = place.dsn
            migrate(dsn)
        else:
            count = min(count, max(2, connections))
            dsn = stack.enter_context(place.database("idle"))
        progress(f"{count} idle workers")
        shares = [
            min(_IDLE_WORKERS_PER_PROCESS, count - first)
            for first in range(0, count, _IDLE_WORKERS_PER_PROCESS)
        ]
        stack.enter_context(
            scripts("forebay_bench._idle", *([dsn, str(share)] for share in shares))
        )
        return _measure_idle(place, dsn, count, seconds)


def _measure_idle(place: Place, dsn: str, count: int, seconds: float) -> Idle:
    # By then the start is over, and the workers know their number.
    cost = idle_cost(place, dsn, wait=min(12.0, 4.8 * seconds), seconds=seconds)
    share = None if cost.cpu_ms is None else cost.cpu_ms / 1000
    return Idle(count, share, cost.transactions)


# --- the report ---


def _report(cases: Sequence[Case], idle: Sequence[Idle], rounds: int) -> Report:
    many = idle[-1]
    share = None if many.core_share is None or many.workers != _IDLE_WORKERS else many.core_share
    at_200 = {case.way: case for case in cases if case.per_s == 200}
    notes = [
        (
            "the clock starts when the producer learns that its commit is done, and stops in "
            "the handler's first line"
        ),
        (
            "jobs come at random moments; a worker process with default settings looks for "
            "work every 50 ms"
        ),
        f"each case in {rounds} round{'s' * (rounds > 1)}, all waits together",
        "with few jobs the 99th percentile is nearly the longest wait",
        "committed 100 ms later, at 2,000/s: transactions of ten jobs each",
        (
            "idle workers share a few Python processes: the CPU time of their sessions in the "
            "server is measured, not theirs"
        ),
    ]
    if many.core_share is None:
        notes.append(
            "the server's CPU time is known only on Linux, for a server that the benchmark started"
        )
    elif many.workers != _IDLE_WORKERS:
        notes.append(f"idle_core_share is that of {many.workers} workers, not of {_IDLE_WORKERS}")
    figures = {
        "cases": [case.figures() for case in cases],
        "idle_core_share": round_figure(many.core_share),
        "idle": [
            {
                "workers": each.workers,
                "core_share": round_figure(each.core_share),
                "transactions_per_s": round_figure(each.transactions_per_s),
            }
            for each in idle
        ],
    }
    tables = [
        Table(
            ["jobs/s", "", "reached", "median ms", "95 % ms", "99 % ms"],
            [
                (
                    f"{case.per_s:,}",
                    WAYS[case.way],
                    f"{case.jobs / case.seconds:,.0f}",
                    *(f"{case.millis(share):.2f}" for share in (50, 95, 99)),
                )
                for case in cases
            ],
            right=["jobs/s", "reached", "median ms", "95 % ms", "99 % ms"],
        ),
        Table(
            ["idle workers", "of a server core", "transactions/s"],
            [
                (
                    f"{each.workers:,}",
                    "unknown" if each.core_share is None else f"{each.core_share:.1%}",
                    f"{each.transactions_per_s:,.0f}",
                )
                for each in idle
            ],
            right=["idle workers", "of a server core", "transactions/s"],
        ),
    ]
    bars = [
        Bar("at 200/s with LISTEN, median ms", at_200["listen"].millis(50), at_most=2.0),
        Bar("at 200/s with LISTEN, 99 % ms", at_200["listen"].millis(99), at_most=10.0),
        Bar("at 200/s polling only, 99 % ms", at_200["poll"].millis(99), at_most=60.0),
        Bar(
            "at 200/s committed 100 ms later, 99 % ms after the commit",
            at_200["slow_commit"].millis(99),
            at_most=60.0,
        ),
        Bar(f"{_IDLE_WORKERS} idle workers, of a server core", share, at_most=0.05),
    ]
    return Report(figures, tables, bars, notes)
