"""one: a committed enqueue at a time, on one connection and on eight.

The rival is the cheapest thing that could be done instead: the same row into a plain table with the same columns and
the same index, in a transaction of its own.
"""

from __future__ import annotations

import contextlib
import threading
import time
from typing import TYPE_CHECKING, Any, Final

import psycopg

from forebay.bench._measure import Spread, in_turns, ratio_of_rounds, round_figure
from forebay.bench._report import Bar, Report, Table
from forebay.bench.engines import plain
from forebay.bench.peers import installed

if TYPE_CHECKING:
    from collections.abc import Callable

    from forebay.bench._place import Place
    from forebay.bench._run import Options

_ENQUEUE: Final = "select forebay.enqueue(%s, %s, %s)"
_ARGS: Final = '{"user_id": 42, "template": "welcome"}'


def run(place: Place, options: Options, progress: Callable[[str], None]) -> Report:
    """Run the scenario."""
    rounds = options.rounds or (5 if options.full else 3)
    seconds = (8.0 if options.full else 2.0) * options.scale
    with contextlib.ExitStack() as stack:
        ours = stack.enter_context(place.database("one"))
        other = stack.enter_context(place.database("plain", migrated=False))
        with psycopg.connect(other, autocommit=True) as conn:
            plain.create(conn)
        peers = {
            peer.NAME: stack.enter_context(peer.enqueuer(place))
            for peer in installed(options.compare)
        }
        contestants: dict[str, Callable[[], float]] = {}
        for connections, suffix in ((1, ""), (8, "8")):
            contestants["ours" + suffix] = _single(
                ours, _ENQUEUE, ["noop", _ARGS, "bench"], connections, seconds
            )
            contestants["plain" + suffix] = _single(
                other, plain.INSERT, [1, "noop", _ARGS], connections, seconds
            )
        for name, enqueue_for in peers.items():
            contestants[name] = _peer(enqueue_for, seconds)
        found = in_turns(contestants, rounds, progress)
    spreads = {name: Spread.of(values) for name, values in found.items()}
    figures: dict[str, Any] = {
        f"{name}_per_s": round_figure(spreads[name].median)
        for name in ("ours", "plain", "ours8", "plain8")
    }
    figures["peers"] = {name: round_figure(spreads[name].median) for name in peers}
    labels = {
        "ours": "Forebay",
        "plain": "plain table",
        "ours8": "Forebay, 8 connections",
        "plain8": "plain table, 8 connections",
    }
    rows = [
        (
            labels.get(name, name),
            f"{spread.median:,.0f}",
            f"{spread.low:,.0f} to {spread.high:,.0f}",
            f"{ratio_of_rounds(found[name], found['plain8' if name.endswith('8') else 'plain']):.2f}",
        )
        for name, spread in spreads.items()
    ]
    bars = [
        Bar(
            "one connection, against the plain table",
            ratio_of_rounds(found["ours"], found["plain"]),
            at_least=0.65,
        ),
        Bar(
            "8 connections, against the plain table",
            ratio_of_rounds(found["ours8"], found["plain8"]),
            at_least=0.65,
        ),
        Bar(
            "one connection, against pgqueuer",
            ratio_of_rounds(found["ours"], found["pgqueuer"]) if "pgqueuer" in found else None,
            at_least=1.1,
        ),
    ]
    return Report(
        figures,
        [
            Table(
                ["", "enqueues/s", f"{rounds} rounds", "of plain"],
                rows,
                right=["enqueues/s", f"{rounds} rounds", "of plain"],
            )
        ],
        bars,
        notes=["peers enqueue on one connection, one job a transaction"],
    )


def _single(
    dsn: str, statement: str, parameters: list[Any], connections: int, seconds: float
) -> Callable[[], float]:
    """Return a round: the statement as often as it goes on so many connections, each on its own thread."""

    def run_round() -> float:
        counts = [0] * connections
        ready = threading.Barrier(connections + 1)

        def work(number: int) -> None:
            with psycopg.connect(dsn, autocommit=True) as conn:
                for _ in range(20):
                    conn.execute(statement, parameters, prepare=True)
                ready.wait()
                end = time.perf_counter() + seconds
                count = 0
                while time.perf_counter() < end:
                    conn.execute(statement, parameters, prepare=True)
                    count += 1
                counts[number] = count

        threads = [threading.Thread(target=work, args=(i,)) for i in range(connections)]
        for thread in threads:
            thread.start()
        ready.wait()
        started = time.perf_counter()
        for thread in threads:
            thread.join()
        return sum(counts) / (time.perf_counter() - started)

    return run_round


def _peer(enqueue_for: Callable[[float], int], seconds: float) -> Callable[[], float]:
    def run_round() -> float:
        started = time.perf_counter()
        return enqueue_for(seconds) / (time.perf_counter() - started)

    return run_round
