"""processes: one worker with 16 handler processes, one job at a time in each, and handlers that do nothing.

``forebay worker --processes 16`` claims under one lease for all its processes; a coroutine and a plain function are measured. ``classic``
is 16 processes that claim one row, delete it, and claim the next, as a queue with a connection for each process does. Measured once with no
snapshot held, and once while a session keeps a REPEATABLE READ snapshot, after 20,000 jobs (80,000 with ``--full``) have been enqueued
and ended under it.
"""

from __future__ import annotations

import contextlib
import time
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import psycopg

from forebay_bench._measure import Spread, in_turns, ratio_of_rounds, round_figure
from forebay_bench._processes import connections_for_workers, scripts, wait_until, workers
from forebay_bench._report import Bar, Report, Table
from forebay_bench.scenarios import fleet

if TYPE_CHECKING:
    from collections.abc import Callable

    from forebay_bench._place import Place
    from forebay_bench._processes import Workers
    from forebay_bench._run import Options

_PROCESSES: Final = 16
_JOBS: Final = 12_000
_FULL_FACTOR: Final = 5

#: Queues of ``jobs`` whose handlers do nothing, and their labels.
_QUEUES: Final = {"noop": "coroutine", "noop_thread": "plain function"}

_FILL: Final = """
select forebay.enqueue_many(%(queue)s, array(select jsonb_build_object('number', i) from generate_series(1, %(count)s) i), %(queue)s)
"""

_LEFT: Final = "select coalesce(sum(ready + claimed + running), 0)::integer from forebay.depth(%s)"

_TURN_SECONDS: Final = 300.0


def run(place: Place, options: Options, progress: Callable[[str], None]) -> Report:
    """Run the scenario."""
    rounds = options.rounds or (5 if options.full else 3)
    factor = options.scale * (_FULL_FACTOR if options.full else 1)
    count = max(50, int(_JOBS * factor))
    ended_while_held = max(100, int((80_000 if options.full else 20_000) * min(1.0, options.scale)))
    processes = min(
        _PROCESSES, connections_for_workers(place.dsn) * 5, 2 if options.scale < 0.2 else _PROCESSES
    )
    rates: dict[str, list[float]] = {}
    with contextlib.ExitStack() as stack:
        dsn = stack.enter_context(place.database("processes"))
        rival = stack.enter_context(fleet._classic(place))
        runner = stack.enter_context(
            workers(
                dsn,
                concurrency=1,
                settings={"FOREBAY_PROCESSES": str(processes), "FOREBAY_QUEUE": ",".join(_QUEUES)},
            )
        )
        progress(f"{2 * processes} processes start")
        runner.start()
        claimers = stack.enter_context(
            scripts(
                "forebay_bench._claimers",
                *([str(number), f"classic={rival.dsn}"] for number in range(processes)),
            )
        )
        conn = stack.enter_context(psycopg.connect(dsn, autocommit=True))
        for queue in _QUEUES:  # processes, connections and plans
            _turn(runner, conn, queue, 50 * processes)
        for held in (False, True):
            if held:
                stack.enter_context(fleet._snapshot(dsn))
                stack.enter_context(fleet._snapshot(rival.dsn))
                progress(f"{ended_while_held:,} jobs under a snapshot")
                _turn(runner, conn, "noop", ended_while_held)
                fleet._end_many(rival, claimers[0], ended_while_held)
            turns: dict[str, Callable[[], float]] = {
                queue + "_held" * held: partial(_turn, runner, conn, queue, count)
                for queue in _QUEUES
            }
            seconds = 0.8 * factor
            turns["classic" + "_held" * held] = partial(fleet._turn, rival, claimers, seconds)
            rates |= in_turns(turns, rounds, progress)
    return _report(rates, processes, rounds, ended_while_held)


def _turn(runner: Workers, conn: psycopg.Connection[Any], queue: str, count: int) -> float:
    """Let the worker end this number of jobs; return how many it ended in a second."""
    conn.execute(_FILL, {"queue": queue, "count": count})
    began = time.monotonic()

    def is_empty() -> bool:
        runner.raise_when_one_ended()
        row = conn.execute(_LEFT, [queue]).fetchone()
        return row == (0,)

    wait_until(is_empty, _TURN_SECONDS, "the worker ends all jobs")
    return count / (time.monotonic() - began)


def _report(
    rates: dict[str, list[float]], processes: int, rounds: int, ended_while_held: int
) -> Report:
    labels = {queue: f"Forebay, {label}" for queue, label in _QUEUES.items()} | {
        "classic": "classic"
    }
    spreads = {name: Spread.of(values) for name, values in rates.items()}
    rows = []
    for name, label in labels.items():
        for held, suffix in (("", ""), ("_held", ", held")):
            spread = spreads[name + held]
            cells = (f"{spread.median:,.0f}", f"{spread.low:,.0f} to {spread.high:,.0f}")
            rows.append((label + suffix, *cells))
    is_measured = processes == _PROCESSES

    def ratio(queue: str, held: str = "") -> float | None:
        ours, classic = rates[queue + held], rates["classic" + held]
        return ratio_of_rounds(ours, classic) if is_measured else None

    bars = [
        Bar(f"{label}, against classic", ratio(queue), at_least=3.0)
        for queue, label in _QUEUES.items()
    ] + [
        Bar(f"{label}, both held, against classic", ratio(queue, "_held"), at_least=6.0)
        for queue, label in _QUEUES.items()
    ]
    columns = [f"{processes} processes", "jobs/s", f"{rounds} rounds"]
    return Report(
        {f"{name}_per_s": round_figure(spread.median) for name, spread in spreads.items()}
        | {"processes": processes, "rounds": rounds},
        [Table(columns, rows, right=columns[1:])],
        bars,
        notes=[
            "Forebay: one worker, one lease, one call at a time in each process; classic: one claim and one delete for each job",
            "our settlement and both statements of classic wait for the disk",
            f"held: a REPEATABLE READ snapshot under which {ended_while_held:,} jobs ended before anything is measured",
        ],
    )
