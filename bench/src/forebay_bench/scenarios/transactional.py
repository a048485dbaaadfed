"""transactional: handlers that update one row, in the transaction that completes their job, and by hand.

By hand is what a handler does without ``transaction=True``: it takes a connection of the application's pool and commits its update
there; the worker settles the job afterwards, together with others. Its update may therefore happen twice. Both run 20 at a time, on
the event loop and in threads, each in a drain of a full queue, in turns.
"""

from __future__ import annotations

import contextlib
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import psycopg

from forebay.errors import ForebayError
from forebay_bench import _ours
from forebay_bench._engine import runner
from forebay_bench._measure import (
    Spread,
    in_turns,
    ratio_of_rounds,
    round_figure,
    server_cpu_seconds,
)
from forebay_bench._report import Bar, Report, Table

if TYPE_CHECKING:
    from collections.abc import Callable

    from forebay_bench._engine import Runner
    from forebay_bench._place import Place
    from forebay_bench._run import Options

_JOBS: Final = 3_000
_FULL_JOBS: Final = 15_000

_LABELS: Final = {
    "update": "transaction=True",
    "update_by_hand": "by hand",
    "update_in_thread": "transaction=True, thread",
    "update_in_thread_by_hand": "by hand, thread",
}


def run(place: Place, options: Options, progress: Callable[[str], None]) -> Report:
    """Run the scenario."""
    rounds = options.rounds or (5 if options.full else 3)
    count = max(20, int((_FULL_JOBS if options.full else _JOBS) * options.scale))
    costs: dict[str, list[tuple[float | None, float]]] = {name: [] for name in _LABELS}
    with contextlib.ExitStack() as stack:
        ours = stack.enter_context(
            runner("forebay", place, migrated=True, create=_ours.create_effects)
        )
        conn = stack.enter_context(psycopg.connect(ours.dsn, autocommit=True))
        for name in _LABELS:  # connections, threads and plans
            _turn(place, ours, conn, name, (100, []))
        engines: dict[str, Callable[[], float]] = {
            name: partial(_turn, place, ours, conn, name, (count, found))
            for name, found in costs.items()
        }
        rates = in_turns(engines, rounds, progress)
    return _report(rates, costs, rounds)


def _turn(
    place: Place,
    ours: Runner,
    conn: psycopg.Connection[Any],
    handler: str,
    work: tuple[int, list[tuple[float | None, float]]],
) -> float:
    """Drain a queue; return jobs a second, and record the CPU seconds of server and worker for each job."""
    count, costs = work
    _ours.fill(conn, handler, count)
    before = _server_cpu(place)
    found = ours.call("drain", handler=handler)
    after = _server_cpu(place)
    if found["ended"] != count:
        raise ForebayError(f"{found['ended']} jobs ended, of {count} that waited")
    server = None if before is None or after is None else (after - before) / count
    costs.append((server, found["cpu_seconds"] / count))
    return count / float(found["seconds"])


def _server_cpu(place: Place) -> float | None:
    return None if place.postmaster_pid is None else server_cpu_seconds(place.postmaster_pid)


def _report(
    rates: dict[str, list[float]],
    costs: dict[str, list[tuple[float | None, float]]],
    rounds: int,
) -> Report:
    figures: dict[str, Any] = {}
    rows = []
    for name, label in _LABELS.items():
        spread = Spread.of(rates[name])
        servers = [server for server, _ in costs[name] if server is not None]
        server = round_figure(Spread.of(servers).median * 1e6) if servers else None
        worker = round_figure(Spread.of([worker for _, worker in costs[name]]).median * 1e6)
        figures |= {
            f"{name}_per_s": round_figure(spread.median),
            f"{name}_server_cpu_us": server,
            f"{name}_worker_cpu_us": worker,
        }
        cells = (f"{spread.median:,.0f}", f"{spread.low:,.0f} to {spread.high:,.0f}")
        shown = ("unknown" if value is None else f"{value:,.0f}" for value in (server, worker))
        rows.append((label, *cells, *shown))
    columns = ["one update", "jobs/s", f"{rounds} rounds", "server CPU us", "worker CPU us"]
    bars = [
        Bar(
            "transaction=True, against the same handler by hand",
            ratio_of_rounds(rates["update"], rates["update_by_hand"]),
            at_least=0.9,
        ),
        Bar(
            "the same in threads",
            ratio_of_rounds(rates["update_in_thread"], rates["update_in_thread_by_hand"]),
            at_least=0.9,
        ),
    ]
    return Report(
        figures,
        [Table(columns, rows, right=columns[1:])],
        bars,
        notes=[
            f"{_ours.EFFECT_CONCURRENCY} handlers at a time; the CPU time is that of one job, of all processes of the server",
            "by hand: the handler's connection and transaction; its job is settled afterwards, and the update may be repeated",
        ],
    )
