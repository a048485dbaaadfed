"""stats: what ``forebay stats`` costs beside very many jobs, and what counting costs.

Reading: jobs of ten kinds and ten tags wait, and as many have ended. The time of
``forebay.stats()`` is measured alone, and again while a session holds a snapshot and jobs are
enqueued, claimed, settled and folded.

Counting: two databases take turns; in one of them the function that folds the counters does
nothing. A queue is drained by a worker, whose maintenance folds every second; and jobs are enqueued
one by one while the same maintenance runs.
"""

from __future__ import annotations

import contextlib
import time
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import psycopg

from forebay_bench import _ours
from forebay_bench._engine import runner
from forebay_bench._maintenance import maintenance
from forebay_bench._measure import Spread, in_turns, percentile, ratio_of_rounds, round_figure
from forebay_bench._processes import scripts
from forebay_bench._report import Bar, Report, Table
from forebay_bench.engines import plain
from forebay_bench.engines.forebay_log import Log, extend

if TYPE_CHECKING:
    from collections.abc import Callable

    from forebay_bench._place import Place
    from forebay_bench._run import Options

_FULL_JOBS: Final = 10_000_000
_QUICK_JOBS: Final = 300_000
_BATCH: Final = 10_000
_CALLS: Final = 100
_HELD_STEPS: Final = 200
_DRAINED: Final = 250_000
_ENQUEUE_SECONDS: Final = 3.0

_STOP_FOLDING: Final = """
create or replace function forebay.fold_v1(p_most bigint default 10000,
    p_is_forced boolean default false) returns integer
language sql security definer set search_path = pg_catalog, pg_temp as 'select 0'
"""
_ENQUEUE: Final = """
select forebay.enqueue_many(jsonb_agg(jsonb_build_object(
    'kind', 'kind_' || i %% 10, 'tag', 'tag ' || i / 10 %% 10, 'queue', 'bench', 'args',
        jsonb_build_object('i', i))))
from generate_series(1, %s) i
"""


def run(place: Place, options: Options, progress: Callable[[str], None]) -> Report:
    """Run the scenario."""
    jobs = max(_BATCH, int((_FULL_JOBS if options.full else _QUICK_JOBS) * options.scale))
    rounds = options.rounds or (6 if options.full else 3)
    reading = _reading(place, jobs, progress)
    costs = _counting(place, options, rounds, progress)
    drain = ratio_of_rounds(costs["drain, counted"], costs["drain"])
    one = ratio_of_rounds(costs["enqueue, counted"], costs["enqueue"])
    figures: dict[str, Any] = {
        "stats": reading
        | {f"{name}_per_s": round_figure(Spread.of(v).median) for name, v in costs.items()}
        | {"drain_ratio": drain, "enqueue_ratio": one}
    }
    rows = [
        (f"stats(), {jobs:,} wait and {jobs:,} have ended", f"{reading['p50_ms']:.1f} ms"),
        ("p99", f"{reading['p99_ms']:.1f} ms"),
        ("under a held snapshot, at the end of the load", f"{reading['held_p50_ms']:.1f} ms"),
        ("drain, counted and not", f"{drain:.3f}"),
        ("one-by-one enqueue, counted and not", f"{one:.3f}"),
    ]
    return Report(
        figures,
        [Table(["", "p50 or ratio"], rows, right=["p50 or ratio"])],
        [
            Bar("stats(), p50 in ms", reading["p50_ms"], at_most=20),
            Bar(
                "under a held snapshot, against before",
                reading["held_p50_ms"] / reading["held_before_p50_ms"],
                at_most=1.5,
            ),
            Bar("drain, counted against not counted", drain, at_least=0.95),
            Bar("one-by-one enqueue, counted against not counted", one, at_least=0.95),
        ],
        notes=[
            (
                f"{reading['cells']} combinations of kind and tag; {_CALLS} calls; {rounds} "
                f"rounds of each turn"
            ),
            "without counting the fold is an empty function; all other maintenance runs in both",
        ],
    )


def _reading(place: Place, jobs: int, progress: Callable[[str], None]) -> dict[str, Any]:
    """Measure a read beside this number of waiting and of ended jobs."""
    with contextlib.ExitStack() as stack:
        dsn = stack.enter_context(place.database("stats"))
        log = Log(dsn)
        stack.callback(log.conn.close)
        for part in ("ended", "waiting"):
            for first in range(0, jobs, _BATCH):
                progress(f"{part}: {first:,} of {jobs:,} jobs")
                log.conn.execute(_ENQUEUE, [min(_BATCH, jobs - first)], prepare=True)
                extend(log.conn)
                if part == "ended":
                    log.empty(_BATCH)
                if first // _BATCH % 10 == 0:
                    log.conn.execute("select forebay.seal_v1()")
                    log.conn.execute("select forebay.fold_v1()")
        while _fold(log):
            pass
        log.conn.execute("vacuum analyze")
        found: dict[str, Any] = {"jobs": jobs, "cells": _cells(log)}
        times = _read(log)
        found["p50_ms"], found["p99_ms"] = percentile(times, 0.5), percentile(times, 0.99)
        progress("beside a held snapshot")
        holder = stack.enter_context(psycopg.connect(dsn))
        holder.execute("set transaction isolation level repeatable read")
        holder.execute("select 1")
        found["held_before_p50_ms"] = percentile(_read(log), 0.5)
        for _ in range(_HELD_STEPS):
            log.conn.execute(_ENQUEUE, [100], prepare=True)
            log.claim_and_settle(100)
            _fold(log)
        found["held_p50_ms"] = percentile(_read(log), 0.5)
    return found


def _fold(log: Log) -> int:
    row = log.conn.execute("select forebay.fold_v1()").fetchone()
    assert row is not None
    return int(row[0])


def _cells(log: Log) -> int:
    row = log.conn.execute("select count(*) from forebay.stats()").fetchone()
    assert row is not None
    return int(row[0])


def _read(log: Log) -> list[float]:
    times = []
    for _ in range(_CALLS):
        began = time.perf_counter()
        log.conn.execute("select * from forebay.stats()", prepare=True).fetchall()
        times.append((time.perf_counter() - began) * 1000)
    return times


def _counting(
    place: Place, options: Options, rounds: int, progress: Callable[[str], None]
) -> dict[str, list[float]]:
    """Drain and enqueue in turns, with and without counting."""
    count = max(100, int(_DRAINED * options.scale * (2 if options.full else 1)))
    seconds = _ENQUEUE_SECONDS * min(1.0, options.scale)
    with contextlib.ExitStack() as stack:
        other = stack.enter_context(place.database("plain", migrated=False))
        with psycopg.connect(other, autocommit=True) as conn:
            plain.create(conn)
        engines: dict[str, Callable[[], float]] = {}
        for suffix in (", counted", ""):
            ours = stack.enter_context(runner("forebay", place, migrated=True))
            conn = stack.enter_context(psycopg.connect(ours.dsn, autocommit=True))
            if not suffix:
                conn.execute(_STOP_FOLDING)
            script = stack.enter_context(scripts("forebay_bench._enqueuers", [ours.dsn, other]))
            engines[f"drain{suffix}"] = partial(_drain, ours, conn, count)
            engines[f"enqueue{suffix}"] = partial(_enqueue, ours.dsn, script, seconds)
        return in_turns(engines, rounds, progress)


def _drain(ours: Any, conn: psycopg.Connection[Any], count: int) -> float:
    _ours.fill(conn, "async", count)
    return count / float(ours.call("drain", handler="async")["seconds"])


def _enqueue(dsn: str, script: Any, seconds: float) -> float:
    with maintenance(dsn):
        begins = time.monotonic() + 0.2
        script[0].send({"name": "ours", "from": begins, "until": begins + seconds})
        return int(script[0].read_message()) / seconds
