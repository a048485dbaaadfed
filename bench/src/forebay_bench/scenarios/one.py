"""one: single committed enqueues, on one connection and on eight.

The rival is the cheapest alternative: the same row into a plain table with the same columns and the
same index, in a separate transaction. Both are prepared statements of psycopg with the same
arguments, each connection in a separate process.

The peers are compared with Forebay's enqueue in Python, ``handler.enqueue(conn, ...)``, since
theirs is in Python too: it checks and encodes arguments.
"""

from __future__ import annotations

import contextlib
import time
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import psycopg

from forebay_bench._cpu import COLUMNS, CPU_NOTE, JobCosts
from forebay_bench._engine import runner
from forebay_bench._measure import Spread, in_turns, ratio_of_rounds, round_figure
from forebay_bench._processes import scripts
from forebay_bench._report import Bar, Report, Table
from forebay_bench.engines import plain
from forebay_bench.peers import installed

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from matplotlib.figure import Figure

    from forebay_bench._place import Place
    from forebay_bench._processes import Script
    from forebay_bench._run import Options

_CONNECTIONS: Final = 8

_LABELS: Final = {
    "ours": "Forebay",
    "python": "Forebay, from Python",
    "plain": "plain table",
    "ours8": "Forebay, 8 connections",
    "plain8": "plain table, 8 connections",
}


def run(place: Place, options: Options, progress: Callable[[str], None]) -> Report:
    """Run the scenario."""
    # Many short turns: a shared machine changes its speed within a second, whichever engine has its
    # turn.
    rounds = options.rounds or (50 if options.full else 12)
    seconds = (1.0 if options.full else 0.35) * options.scale
    peers = installed(options.compare)
    costs = JobCosts(place)

    def jobs(rate: float) -> float:
        return rate * seconds

    def counted(name: str, processes: Sequence[Script]) -> Callable[[], float]:
        work = partial(_turn, name.removesuffix("8"), processes, seconds)
        return costs.counted(name, work, jobs, [process.pid for process in processes])

    with contextlib.ExitStack() as stack:
        ours = stack.enter_context(place.database("one"))
        other = stack.enter_context(place.database("plain", migrated=False))
        with psycopg.connect(other, autocommit=True) as conn:
            plain.create(conn)
        worker_processes = stack.enter_context(
            scripts("forebay_bench._enqueuers", *([[ours, other]] * _CONNECTIONS))
        )
        engines: dict[str, Callable[[], float]] = {
            "ours": counted("ours", worker_processes[:1]),
            "plain": counted("plain", worker_processes[:1]),
            "python": counted("python", worker_processes[:1]),
        }
        for peer in peers:
            process = stack.enter_context(runner(peer.NAME, place, create=peer.create))
            work = partial(process.call, "enqueue", seconds=seconds)
            engines[peer.NAME] = costs.counted(peer.NAME, work, jobs, [process.pid])
        engines["ours8"] = counted("ours8", worker_processes)
        engines["plain8"] = counted("plain8", worker_processes)
        found = in_turns(engines, rounds, progress)
    return _report(
        found, [peer.NAME for peer in peers], [peer.NOTE for peer in peers], rounds, costs
    )


def _turn(name: str, worker_processes: Sequence[Script], seconds: float) -> float:
    """Let the processes enqueue at the same time; return their commits per second in all."""
    begins = time.monotonic() + 0.05
    until = begins + seconds
    for script in worker_processes:
        script.send({"name": name, "from": begins, "until": until})
    return sum(int(script.read_message()) for script in worker_processes) / seconds


def _plain_of(name: str) -> str:
    """Return the plain insert with as many connections as an engine has."""
    return "plain8" if name.endswith("8") else "plain"


def _report(
    found: dict[str, list[float]],
    peers: Sequence[str],
    notes: Sequence[str],
    rounds: int,
    costs: JobCosts,
) -> Report:
    spreads = {name: Spread.of(values) for name, values in found.items()}
    figures: dict[str, Any] = {
        f"{name}_per_s": round_figure(spreads[name].median) for name in _LABELS
    }
    figures["peers"] = {name: round_figure(spreads[name].median) for name in peers}
    figures["cpu_us"] = costs.figures()
    order = ["ours", "python", "plain", *peers, "ours8", "plain8"]
    rows = [
        (
            _LABELS.get(name, name),
            f"{spreads[name].median:,.0f}",
            f"{spreads[name].low:,.0f} to {spreads[name].high:,.0f}",
            f"{ratio_of_rounds(found[name], found[_plain_of(name)]):.2f}",
            *costs.cells(name),
        )
        for name in order
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
            "one connection, from Python, against pgqueuer",
            ratio_of_rounds(found["python"], found["pgqueuer"]) if "pgqueuer" in found else None,
            at_least=1.1,
        ),
    ]
    columns = ["", "enqueues/s", f"{rounds} rounds", "of plain", *COLUMNS]
    return Report(
        figures,
        [Table(columns, rows, right=columns[1:])],
        bars,
        notes=[
            (
                "every enqueue is a transaction that waits for the disk; no worker runs, so "
                "nothing notifies"
            ),
            (
                "peers enqueue on one connection from Python or Node.js, as 'Forebay, from "
                "Python' does"
            ),
            CPU_NOTE,
            "the plain row names its lane itself, checks nothing and is not consumed",
            *notes,
        ],
        draw=partial(_draw, spreads, order),
    )


def _draw(spreads: dict[str, Spread], order: Sequence[str], figure: Figure) -> None:
    from forebay_bench.plot import rates  # noqa: PLC0415 - imports matplotlib

    whose = {"ours": "forebay", "python": "forebay", "ours8": "forebay", "plain8": "plain"}
    rates(
        figure,
        "Committed enqueues, one at a time",
        {_LABELS.get(name, name): (spreads[name], whose.get(name, name)) for name in order},
    )
