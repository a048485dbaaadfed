"""backfill: a job for each row of a table, beside the bare INSERT ... SELECT of the same rows, alone and under load.

The rows are those of a table with an id and some text. Bare is ``insert into ... select`` into the plain table of the other
scenarios, with Forebay's columns and index; and, to show the cost of an index, into one without any. Forebay's is ``forebay.backfill`` in
one statement, with the token of a dry run, and in chunks.

Under load a producer commits 200 jobs a second at random moments in another queue, and a worker process runs them, while
either statement runs. The time from the commit to the handler's start is measured, for the jobs committed meanwhile.

A dry run comes first: its count is compared with the enqueued jobs, and its token must be refused after a row changed.
"""

from __future__ import annotations

import contextlib
import random
import tempfile
import threading
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import psycopg

from forebay.client import Client
from forebay.errors import BackfillChanged, ForebayError
from forebay.model.backfill import Rows
from forebay_bench._journal import Journal
from forebay_bench._measure import (
    Spread,
    in_turns,
    per_second,
    percentile,
    ratio_of_rounds,
    round_figure,
)
from forebay_bench._processes import wait_until, workers
from forebay_bench._report import Bar, Report, Table
from forebay_bench.engines import plain

if TYPE_CHECKING:
    from collections.abc import Callable

    from matplotlib.figure import Figure

    from forebay_bench._place import Place
    from forebay_bench._run import Options

_ROWS: Final = """
create table document (id bigint primary key, site integer not null, body text not null);
insert into document select i, i % 100, 'a text of some length, number ' || i from generate_series(1, {count}) i;
analyze document;
create table heap_job (like plain_job including defaults including identity);
"""

_SELECT: Final = " (lane, kind, args, tag) select 1, 'noop', jsonb_build_object('id', id), 'backfill' from document"

_ENQUEUE: Final = (
    "select forebay.enqueue('record_start', jsonb_build_object('number', %s::bigint), 'pickup')"
)

_QUEUE: Final = "backfill"
_CHUNK: Final = 50_000

_LABELS: Final = {
    "ours": "Forebay",
    "token": "Forebay, with a token",
    "chunks": f"Forebay, in chunks of {_CHUNK:,}",
    "plain": "plain table, INSERT ... SELECT",
    "no_index": "the same without an index",
}

_LOAD_PER_S: Final = 200
_ARRIVAL_SECONDS: Final = 30.0


def run(place: Place, options: Options, progress: Callable[[str], None]) -> Report:
    """Run the scenario."""
    rounds = options.rounds or 3
    count = max(1, int((2_000_000 if options.full else 100_000) * options.scale))
    with contextlib.ExitStack() as stack:
        dsn = stack.enter_context(place.database("backfill"))
        conn = stack.enter_context(psycopg.connect(dsn, autocommit=True))
        plain.create(conn)
        progress(f"a table of {count:,} rows")
        conn.execute(_ROWS.format(count=count))
        client = Client(dsn)
        rows = Rows("document")
        found, loaded = _rounds(
            dsn, conn, client, rows, count=count, rounds=rounds, progress=progress
        )
        progress("a dry run, and a token that is refused")
        proof = _prove(conn, client, rows)
    return _report(found, loaded, proof, count, rounds)


def _rounds(
    dsn: str,
    conn: psycopg.Connection[Any],
    client: Client,
    rows: Rows,
    *,
    count: int,
    rounds: int,
    progress: Callable[[str], None],
) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
    """Measure rates alone, and waits under load; return both by engine."""
    ours = partial(client.backfill, "noop", rows, queue=_QUEUE)
    token = client.plan_backfill("noop", rows, queue=_QUEUE).token

    def bare(table: str) -> None:
        conn.execute(f"insert into {table} {_SELECT}")

    work: dict[str, Callable[[], object]] = {
        "ours": ours,
        "token": partial(ours, token=token),
        "chunks": partial(ours, chunk=_CHUNK),
        "plain": partial(bare, "plain_job"),
        "no_index": partial(bare, "heap_job"),
    }

    def measured(name: str) -> float:
        conn.execute("truncate heap_job, plain_job")
        conn.execute("checkpoint")
        return per_second(count, work[name])

    found = in_turns({name: partial(measured, name) for name in work}, rounds, progress)

    loaded: dict[str, list[float]] = {"ours": [], "plain": []}
    with tempfile.TemporaryDirectory(prefix="forebay-bench-") as folder:
        notes = Journal(Path(folder) / "notes")
        settings = {"FOREBAY_QUEUE": "pickup", **notes.environment}
        with workers(dsn, settings=settings) as worker_processes:
            worker_processes.start()
            _waits_beside(dsn, notes, lambda: time.sleep(0.3))  # nothing is cold then

            def waited(name: str) -> float:
                conn.execute("truncate heap_job, plain_job")
                conn.execute("checkpoint")
                waits = _waits_beside(dsn, notes, work[name])
                loaded[name] += waits
                return percentile(waits, 0.99)

            in_turns(
                {name: partial(waited, name) for name in loaded},
                rounds,
                lambda line: progress(f"under load, {line}"),
            )
            worker_processes.raise_when_one_ended()
    return found, loaded


def _waits_beside(dsn: str, notes: Journal, work: Callable[[], object]) -> list[float]:
    """Let a producer commit jobs during some work; return how long those jobs waited for their start."""
    before = notes.count
    committed: dict[int, float] = {}
    is_over = threading.Event()
    ready = threading.Event()
    failures: list[BaseException] = []
    rng = random.Random(7)

    def produce() -> None:
        try:
            with psycopg.connect(dsn, autocommit=True) as conn:
                due = time.monotonic()
                while not is_over.is_set():
                    due += rng.expovariate(_LOAD_PER_S)
                    time.sleep(max(0.0, due - time.monotonic()))
                    conn.execute(_ENQUEUE, [len(committed)], prepare=True)
                    committed[len(committed)] = time.monotonic()
                    ready.set()
        except BaseException as error:  # raised by the scenario
            failures.append(error)
            ready.set()

    producer = threading.Thread(target=produce, daemon=True)
    producer.start()
    ready.wait()
    began = min(committed.values(), default=0.0)
    try:
        work()
    finally:
        ended = time.monotonic()
        is_over.set()
        producer.join()
    if failures:
        raise ForebayError(f"the producer failed: {failures[0]}") from failures[0]
    wait_until(
        lambda: notes.count - before >= len(committed), _ARRIVAL_SECONDS, "all handlers started"
    )
    return [
        at - committed[number]
        for number, at in notes.read(before)
        if began <= committed[number] <= ended
    ]


def _prove(conn: psycopg.Connection[Any], client: Client, rows: Rows) -> dict[str, Any]:
    """Return the count of a dry run, the enqueued jobs, and whether its token is refused after a change."""
    plan = client.plan_backfill("prove", rows, queue=_QUEUE)
    client.backfill("prove", rows, queue=_QUEUE, token=plan.token)
    row = conn.execute("select count(*) from forebay.log where kind = 'prove'").fetchone()
    assert row is not None
    conn.execute("update document set id = -1 where id = 1")
    try:
        client.backfill("prove", rows, queue=_QUEUE, token=plan.token)
    except BackfillChanged:
        refused = True
    else:
        refused = False
    return {
        "dry_run_jobs": plan.jobs,
        "dry_run_seconds": plan.seconds,
        "enqueued_jobs": int(row[0]),
        "refused_after_a_change": refused,
    }


def _report(
    found: dict[str, list[float]],
    loaded: dict[str, list[float]],
    proof: dict[str, Any],
    count: int,
    rounds: int,
) -> Report:
    spreads = {name: Spread.of(values) for name, values in found.items()}
    p99 = {name: percentile(waits, 0.99) for name, waits in loaded.items()}
    figures: dict[str, Any] = {
        **{f"{name}_per_s": round_figure(spreads[name].median) for name in _LABELS},
        "start_p99_ms_beside_ours": round_figure(p99["ours"] * 1000),
        "start_p99_ms_beside_plain": round_figure(p99["plain"] * 1000),
        **proof,
    }
    rates = [
        (
            _LABELS[name],
            f"{spreads[name].median:,.0f}",
            f"{spreads[name].low:,.0f} to {spreads[name].high:,.0f}",
            f"{ratio_of_rounds(found[name], found['plain']):.2f} of plain",
        )
        for name in _LABELS
    ]
    waits = [
        (
            f"beside {_LABELS[name]}",
            f"{len(values):,}",
            *(f"{percentile(values, share / 100) * 1000:.2f}" for share in (50, 99)),
        )
        for name, values in loaded.items()
    ]
    bars = [
        Bar(
            "one statement, against INSERT ... SELECT into the plain table",
            ratio_of_rounds(found["ours"], found["plain"]),
            at_least=0.5,
        ),
        Bar(
            "99 % of the load's jobs start, against beside INSERT ... SELECT",
            p99["ours"] / max(p99["plain"], 1e-4),
            at_most=1.5,
        ),
        Bar(
            "jobs enqueued, of those that the dry run counted",
            proof["enqueued_jobs"] / max(proof["dry_run_jobs"], 1),
            at_least=1.0,
            at_most=1.0,
        ),
        Bar(
            "a token is refused when a row changed",
            float(proof["refused_after_a_change"]),
            at_least=1.0,
        ),
    ]
    return Report(
        figures,
        [
            Table(["", "rows/s", f"{rounds} rounds", ""], rates, right=["rows/s"]),
            Table(
                ["a job's start", "jobs", "median ms", "99 % ms"],
                waits,
                right=["jobs", "median ms", "99 % ms"],
            ),
        ],
        bars,
        [
            f"{count:,} rows at a time; the plain tables are emptied before each turn, the log grows",
            f"the load is {_LOAD_PER_S} jobs a second of another queue, in all rounds together",
            "the plain table has Forebay's columns and index, and checks nothing",
        ],
        draw=partial(_draw, spreads),
    )


def _draw(spreads: dict[str, Spread], figure: Figure) -> None:
    from forebay_bench.plot import rates  # noqa: PLC0415 - imports matplotlib

    rates(
        figure,
        "A job for each row",
        {
            _LABELS[name]: (spread, "plain" if name in {"plain", "no_index"} else "forebay")
            for name, spread in spreads.items()
        },
    )
