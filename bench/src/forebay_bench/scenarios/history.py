"""history: how fast ended jobs are found, and how fast they are replayed.

Jobs are enqueued, worked off and summarized: 1,000,000, in the full run 10,000,000. Then jobs are
looked up by id and by correlation id, a filter and a text look for their first matches, ``where``
answers for ready jobs, and a tenth of the jobs, in the full run 1,000,000, is replayed to a new
group, in turns with ``enqueue_many`` of as many jobs.
"""

from __future__ import annotations

import contextlib
import json
import random
import time
from typing import TYPE_CHECKING, Any, Final

from forebay.client import Client
from forebay_bench._maintenance import maintenance
from forebay_bench._report import Bar, Report, Table
from forebay_bench.engines.forebay_log import Log

if TYPE_CHECKING:
    from collections.abc import Callable

    from forebay_bench._place import Place
    from forebay_bench._run import Options

_BATCH_ROWS: Final = 10_000
_LOOKUPS: Final = 100

_ENQUEUE: Final = """
select cardinality(forebay.enqueue_many(jsonb_agg(jsonb_build_object(
    'kind', 'kind_' || i %% 7, 'queue', 'bench', 'args', jsonb_build_object('i', i), 'tag',
        'day ' || i / 100000,
    'correlation_id', 'order-' || i / 2))))
from generate_series(%s::bigint, %s::bigint) i
"""


def run(place: Place, options: Options, progress: Callable[[str], None]) -> Report:
    """Run the scenario."""
    count = max(2 * _BATCH_ROWS, int((10_000_000 if options.full else 1_000_000) * options.scale))
    count -= count % _BATCH_ROWS
    with contextlib.ExitStack() as stack:
        dsn = stack.enter_context(place.database("history"))
        log = Log(dsn)
        stack.callback(log.conn.close)
        with maintenance(dsn):
            progress(f"{count:,} jobs are enqueued and worked off")
            for low in range(0, count, _BATCH_ROWS):
                log.conn.execute(_ENQUEUE, [low, low + _BATCH_ROWS - 1])
                log.empty(_BATCH_ROWS)
        progress("the log is summarized")
        began = time.perf_counter()
        blocks = _summarize(log)
        summary = time.perf_counter() - began
        figures: dict[str, Any] = {
            "jobs": count,
            "blocks": blocks,
            "summary_ms_per_block": 1000 * summary / max(blocks, 1),
        }
        progress("jobs are looked up")
        figures |= _lookups(dsn, count)
        progress("jobs are replayed, and as many enqueued")
        figures |= _replay(log, count)
    return _report(figures)


def _summarize(log: Log) -> int:
    """Summarize what maintenance has not reached; return how many blocks there are."""
    idle = 0
    while idle < 2:
        (made,) = log.conn.execute("select forebay.archive_v1(16)").fetchone() or (0,)
        idle = 0 if made else idle + 1
    (blocks,) = log.conn.execute(
            "select count(*) from forebay.archive_block where row_count > "
            "0"
            ).fetchone() or (0,)  # fmt: skip
    return int(blocks)


def _lookups(dsn: str, count: int) -> dict[str, float]:
    """Return medians and maxima of look-ups, in milliseconds."""
    client, draw = Client(dsn), random.Random(1)
    ids = [draw.randrange(1, count) for _ in range(_LOOKUPS)]
    works: dict[str, list[Callable[[], object]]] = {
        "where_id": [lambda job=job: client.where(job) for job in ids],  # type: ignore[misc]
        "where_correlation_id": [
            lambda job=job: client.where(f"order-{job // 2}")  # type: ignore[misc]
            for job in ids
        ],
        "search_kind_state": [lambda: client.search_jobs(state="done", limit=1)] * 5,
    }
    found: dict[str, float] = {}
    for name, calls in works.items():
        times = sorted(_seconds(call) for call in calls)
        found[f"{name}_p50_ms"] = 1000 * times[len(times) // 2]
        found[f"{name}_max_ms"] = 1000 * times[-1]
    # The oldest tag: all blocks but the last ones are skipped.
    query = "select cardinality(job_ids) from forebay.search_jobs(%s::jsonb, most => 1)"
    with Log(dsn).conn as conn:
        found["filter_first_ms"] = 1000 * _seconds(
            lambda: conn.execute(query, [json.dumps({"tag": "day 0"})]).fetchall()
        )
        text = "select cardinality(job_ids) from forebay.search_jobs(contains => %s, most => 1)"
        found["text_call_ms"] = 1000 * _seconds(
            lambda: conn.execute(text, ["no such text"]).fetchall()
        )
    return found


def _replay(log: Log, count: int) -> dict[str, Any]:
    """Replay an interval to a new group, and enqueue as many jobs.

    Return both rates, and what was replayed.
    """
    wanted = min(1_000_000, count // 10 if count < 10_000_000 else 1_000_000)
    low, high = 100_000, 100_000 + wanted
    if high > count:
        low, high = 0, wanted
    conn = log.conn
    conn.execute("select forebay.open_group('bench', 'replayed')")
    bounds = conn.execute(
        (
            # enqueued_before leaves out the instant itself.
            "select min(enqueued_at), max(enqueued_at) + interval '1 microsecond'"
            " from forebay.log where args ->> 'i' in (%s, %s) and headers is null"
        ),
        [str(low), str(high - 1)],
    ).fetchone()
    assert bounds is not None
    (first, last) = bounds
    chosen = {"queue": "bench", "enqueued_after": str(first), "enqueued_before": str(last)}
    options = json.dumps({"group": "replayed"})
    began = time.perf_counter()
    plan = conn.execute(
        "select token, jobs from forebay.plan_replay(%s::jsonb, %s::jsonb)",
        [json.dumps(chosen), options],
    ).fetchone()
    assert plan is not None
    planned = time.perf_counter() - began
    began = time.perf_counter()
    replay_id, total, is_over = None, 0, False
    while not is_over:
        row = conn.execute(
            (
                "select replay_id, total, is_over from forebay.replay_jobs(%s::jsonb, "
                "%s::jsonb, token => %s, replay_id => %s)"
            ),
            [json.dumps(chosen), options, plan[0], replay_id],
        ).fetchone()
        assert row is not None
        replay_id, total, is_over = row
    replayed = time.perf_counter() - began
    began = time.perf_counter()
    for start in range(0, total, _BATCH_ROWS):
        conn.execute(_ENQUEUE, [start, min(start + _BATCH_ROWS, total) - 1])
    enqueued = time.perf_counter() - began
    check = conn.execute(
        (
            "select count(*), count(distinct headers ->> 'forebay-replayed-from') from "
            "forebay.log where headers ->> 'forebay-replay' = %s"
        ),
        [str(replay_id)],
    ).fetchone()
    assert check is not None
    return {
        "replay_jobs": total,
        "planned_jobs": plan[1],
        "replayed_once": check == (total, total) and total == plan[1],
        "plan_s": planned,
        "replay_per_s": total / replayed,
        "enqueue_many_per_s": total / enqueued,
    }


def _seconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def _report(figures: dict[str, Any]) -> Report:
    bars = [
        Bar("where, by id, ms, slowest of 100", figures["where_id_max_ms"], at_most=50),
        Bar(
            "where, by correlation id, ms, median",
            figures["where_correlation_id_p50_ms"],
            at_most=50,
        ),
        Bar("first match of a filter, ms", figures["filter_first_ms"], at_most=1000),
        Bar(
            "replay, against enqueue_many",
            figures["replay_per_s"] / figures["enqueue_many_per_s"],
            at_least=0.4,
        ),
        Bar("replayed exactly the planned jobs, once", float(figures["replayed_once"]), at_least=1),
    ]
    rows = [
        (name, f"{value:,.1f}" if isinstance(value, float) else str(value))
        for name, value in figures.items()
    ]
    notes = [
        "where opens a connection for each of its two calls",
        "enqueue_many gets JSON of 10,000 jobs a call; a step of the replay copies 20,000",
    ]
    return Report(figures, [Table(["", ""], rows, right=[""])], bars, notes)
