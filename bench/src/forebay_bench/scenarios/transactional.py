"""transactional: handlers that update one row, in the transaction that completes their job, and
by hand.

By hand is what a handler does without ``transaction=True``: it takes a connection of the
application's pool and commits its update there; the worker settles the job afterwards, together
with others. Its update may therefore happen twice. Both run 20 at a time, on the event loop and in
threads, each in a drain of a full queue, in turns. The peers run the same handler by hand, in
autocommit on a pool of 20 connections: none of them completes a job in the transaction of its
handler.
"""

from __future__ import annotations

import contextlib
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import psycopg

from forebay_bench import _ours
from forebay_bench._cpu import COLUMNS, CPU_NOTE, JobCosts
from forebay_bench._drains import Drains
from forebay_bench._engine import started_engines
from forebay_bench._measure import Spread, in_turns, ratio_of_rounds, round_figure
from forebay_bench._report import Bar, Report, Table
from forebay_bench.peers import installed

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from matplotlib.figure import Figure

    from forebay_bench._place import Place
    from forebay_bench._run import Options

_JOBS: Final = 3_000
_FULL_JOBS: Final = 15_000

#: A peer's share of the jobs, so that slow peers do not take all the time.
_SHARES: Final = {"procrastinate": 0.25}

_LABELS: Final = {
    "update": "transaction=True",
    "update_by_hand": "by hand",
    "update_autocommit": "by hand, autocommit",
    "update_in_thread": "transaction=True, thread",
    "update_in_thread_by_hand": "by hand, thread",
}


def run(place: Place, options: Options, progress: Callable[[str], None]) -> Report:
    """Run the scenario."""
    rounds = options.rounds or (5 if options.full else 3)
    count = max(20, int((_FULL_JOBS if options.full else _JOBS) * options.scale))
    costs = JobCosts(place)
    with contextlib.ExitStack() as stack:
        runners = stack.enter_context(started_engines(place, options.compare))
        for engine in runners.values():
            _ours.create_effects(engine.dsn)
        ours = Drains(runners.pop("forebay"), costs, "")
        conn = stack.enter_context(psycopg.connect(ours.engine.dsn, autocommit=True))
        engines: dict[str, Callable[[], float]] = {}
        for name in _LABELS:
            _turn(
                ours, conn, name, min(count, 100), counted=False
            )  # connections, threads and plans
            engines[name] = partial(_turn, ours, conn, name, count)
        for name, peer in runners.items():
            drains = Drains(peer, costs, name)
            _peer_turn(drains, min(count, 100), counted=False)
            engines[name] = partial(_peer_turn, drains, max(20, int(count * _SHARES.get(name, 1))))
        rates = in_turns(engines, rounds, progress)
    return _report(rates, list(runners), costs, options, rounds)


def _turn(
    ours: Drains,
    conn: psycopg.Connection[Any],
    handler: str,
    count: int,
    *,
    counted: bool = True,
) -> float:
    """Drain a queue; return jobs a second."""
    _ours.fill(conn, handler, count)
    return ours.drain(handler, count, counted=counted)


def _peer_turn(peer: Drains, count: int, *, counted: bool = True) -> float:
    peer.engine.call("fill", count=count)
    return peer.drain("update", count, counted=counted)


def _report(
    rates: dict[str, list[float]],
    peers: Sequence[str],
    costs: JobCosts,
    options: Options,
    rounds: int,
) -> Report:
    figures: dict[str, Any] = {}
    spreads = {name: Spread.of(values) for name, values in rates.items()}
    rows = []
    for name in (*_LABELS, *peers):
        spread = spreads[name]
        server, worker = costs.micros(name)
        found = {
            "per_s": round_figure(spread.median),
            "server_cpu_us": round_figure(server),
            "worker_cpu_us": round_figure(worker),
        }
        if name in peers:
            figures.setdefault("peers", {})[name] = found
        else:
            figures |= {f"{name}_{what}": value for what, value in found.items()}
        label = _LABELS.get(name, f"{name}, by hand, autocommit")
        cells = (f"{spread.median:,.0f}", f"{spread.low:,.0f} to {spread.high:,.0f}")
        rows.append((label, *cells, *costs.cells(name)))

    def ratio(ours: str, rival: str) -> float | None:
        return ratio_of_rounds(rates[ours], rates[rival]) if rival in rates else None

    columns = ["one update", "jobs/s", f"{rounds} rounds", *COLUMNS]
    bars = [
        Bar(
            "transaction=True, against the same handler by hand",
            ratio("update", "update_by_hand"),
            at_least=0.9,
        ),
        Bar(
            "the same in threads",
            ratio("update_in_thread", "update_in_thread_by_hand"),
            at_least=0.9,
        ),
        Bar("by hand, against pgqueuer", ratio("update_autocommit", "pgqueuer"), at_least=1.1),
        Bar(
            "by hand, against graphile-worker",
            ratio("update_autocommit", "graphile-worker"),
            at_least=0.9,
        ),
    ]
    return Report(
        figures,
        [Table(columns, rows, right=columns[1:])],
        bars,
        notes=[
            f"{_ours.EFFECT_CONCURRENCY} handlers at a time",
            CPU_NOTE,
            (
                "by hand: the handler's connection and transaction, those of the peers in "
                "autocommit; its job is settled afterwards, and the update may be repeated"
            ),
            *(peer.NOTE for peer in installed(options.compare)),
        ],
        draw=partial(_draw, spreads),
    )


def _draw(spreads: dict[str, Spread], figure: Figure) -> None:
    from forebay_bench.plot import COLOURS, rates  # noqa: PLC0415 - imports matplotlib

    rates(
        figure,
        "Handlers that update one row, 20 at a time",
        {
            _LABELS.get(name, f"{name}, by hand, autocommit"): (
                spread,
                name if name in COLOURS else "forebay",
            )
            for name, spread in spreads.items()
        },
    )
