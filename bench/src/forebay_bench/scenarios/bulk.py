"""bulk: a million jobs at once, from an iterator in Python and by one statement of SQL.

From an iterator: ``handler.enqueue_many(conn, numbers)`` in one transaction, whose memory does not
grow with the number of jobs, beside COPY of the same rows from the same iterator into a plain table
with Forebay's columns and index. By SQL: ``forebay.enqueue_many(kind, array(select ...))`` beside
``insert into ... select`` into that table. The quick form does the same with 100,000.
"""

from __future__ import annotations

import contextlib
import os
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import psycopg

from forebay_bench import _ours
from forebay_bench._cpu import COLUMNS, CPU_NOTE, JobCosts
from forebay_bench._engine import started_engines
from forebay_bench._measure import Spread, in_turns, per_second, ratio_of_rounds, round_figure
from forebay_bench._report import Bar, Report, Table
from forebay_bench.engines import plain
from forebay_bench.peers import installed

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from matplotlib.figure import Figure

    from forebay_bench._engine import Runner
    from forebay_bench._place import Place
    from forebay_bench._run import Options

#: A peer's share of the jobs, so that slow peers do not take all the time.
_SHARES: Final = {"procrastinate": 0.1}

_LABELS: Final = {
    "ours": "Forebay, iterator",
    "copy": "plain table, COPY",
    "insert_select": "Forebay, SQL",
    "plain_insert_select": "plain table, INSERT ... SELECT",
}


def run(place: Place, options: Options, progress: Callable[[str], None]) -> Report:
    """Run the scenario."""
    rounds = options.rounds or (3 if options.full else 2)
    count = max(1, int((1_000_000 if options.full else 100_000) * options.scale))
    costs = JobCosts(place)

    def counted(name: str, work: Callable[[], float]) -> Callable[[], float]:
        return costs.counted(name, work, count, [os.getpid()])

    with contextlib.ExitStack() as stack:
        runners = stack.enter_context(started_engines(place, options.compare))
        ours = runners.pop("forebay")
        other = stack.enter_context(place.database("plain", migrated=False))
        conn = stack.enter_context(psycopg.connect(ours.dsn, autocommit=True))
        plain_conn = stack.enter_context(psycopg.connect(other, autocommit=True))
        plain.create(plain_conn)
        engines: dict[str, Callable[[], float]] = {
            "ours": costs.counted("ours", partial(_by_runner, ours, count), count, [ours.pid]),
            "copy": counted("copy", partial(_into_plain, plain_conn, plain.copy, count)),
            "insert_select": counted(
                "insert_select",
                lambda: per_second(count, lambda: _ours.fill(conn, "async", count)),
            ),
            "plain_insert_select": counted(
                "plain_insert_select",
                partial(_into_plain, plain_conn, plain.insert_select, count),
            ),
        }
        for name, peer in runners.items():
            share = max(1, int(count * _SHARES.get(name, 1.0)))
            engines[name] = costs.counted(name, partial(_by_runner, peer, share), share, [peer.pid])
        found = in_turns(engines, rounds, progress)
    return _report(found, list(runners), options, rounds, count, costs)


def _by_runner(engine: Runner, count: int) -> float:
    return count / float(engine.call("fill", count=count))


def _into_plain(
    conn: psycopg.Connection[Any],
    work: Callable[[psycopg.Connection[Any], int], None],
    count: int,
) -> float:
    conn.execute("truncate plain_job")
    return per_second(count, lambda: work(conn, count))


def _report(  # noqa: PLR0917 - one run is described by all of them
    found: dict[str, list[float]],
    peers: Sequence[str],
    options: Options,
    rounds: int,
    count: int,
    costs: JobCosts,
) -> Report:
    spreads = {name: Spread.of(values) for name, values in found.items()}
    figures: dict[str, Any] = {
        f"{name}_per_s": round_figure(spreads[name].median) for name in _LABELS
    }
    figures["peers"] = {name: round_figure(spreads[name].median) for name in peers}
    figures["cpu_us"] = costs.figures()
    rivals = {"ours": "copy", "insert_select": "plain_insert_select"}
    order = [*_LABELS, *peers]
    rows = [
        (
            _LABELS.get(name, name),
            f"{spreads[name].median:,.0f}",
            f"{spreads[name].low:,.0f} to {spreads[name].high:,.0f}",
            f"{ratio_of_rounds(found[name], found[rivals[name]]):.2f} of plain"
            if name in rivals
            else "",
            *costs.cells(name),
        )
        for name in order
    ]
    bars = [
        Bar(
            "from an iterator, against COPY into the plain table",
            ratio_of_rounds(found["ours"], found["copy"]),
            at_least=0.4,
        ),
        Bar(
            "from an iterator, against pgqueuer",
            ratio_of_rounds(found["ours"], found["pgqueuer"]) if "pgqueuer" in found else None,
            at_least=1.5,
        ),
        Bar(
            "by SQL, against INSERT ... SELECT into the plain table",
            ratio_of_rounds(found["insert_select"], found["plain_insert_select"]),
            at_least=0.6,
        ),
    ]
    columns = ["", "jobs/s", f"{rounds} rounds", "", *COLUMNS]
    notes = [
        CPU_NOTE,
        f"{count:,} jobs at a time, committed at the end",
        "the plain table is emptied before each turn; the queues grow",
        "COPY gets rows as text that is ready to send; the queues check and encode arguments",
        "pgqueuer gets lists of 5,000 in one transaction",
        "procrastinate commits each list of 5,000, and does a tenth of the jobs",
        *(peer.NOTE for peer in installed(options.compare)),
    ]
    return Report(
        figures,
        [Table(columns, rows, right=columns[1:])],
        bars,
        notes,
        draw=partial(_draw, spreads, order),
    )


def _draw(spreads: dict[str, Spread], order: Sequence[str], figure: Figure) -> None:
    from forebay_bench.plot import rates  # noqa: PLC0415 - imports matplotlib

    whose = {
        "ours": "forebay",
        "insert_select": "forebay",
        "copy": "plain",
        "plain_insert_select": "plain",
    }
    rates(
        figure,
        "Many jobs at once",
        {_LABELS.get(name, name): (spreads[name], whose.get(name, name)) for name in order},
    )
