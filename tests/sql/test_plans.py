"""No plan depends on statistics: the pages that each hot or maintenance function reads are
bounded by what its header states.

A header says ``-- pages: 60 + 12 a job``: at most 60 pages for a call, and 12 more for each job.
The units of a call stand in ``tests/support/plans.py``.
"""

import re
from contextlib import ExitStack, nullcontext

import pytest

from tests.support.engine import connect, enqueue, lane_of, one
from tests.support.mutant import break_function
from tests.support.plans import (
    SCHEMA,
    Call,
    Session,
    fill,
    held,
    keep_up,
    open_transactions,
    pages,
    stated_pages,
    without_autovacuum,
)

_MODES = ("force_custom_plan", "force_generic_plan")
_STATISTICS = ("never", "when empty", "when full")


def build(dsn: str, lanes: int, modes=_MODES) -> list[Session]:
    """Return sessions that made each call once in an empty database."""
    queues = [f"q{number}" for number in range(lanes)]
    with connect(dsn) as conn:
        for queue in [*queues, "idle", "behind", "full"]:
            enqueue(conn, queue=queue)
        enqueue(conn, queue="keyed", ordering_key="k")
        enqueue(conn, queue="shared", limit_key="k")
        one(conn, "select forebay.limit_queue('full', 1000000)::text")
        one(conn, "select forebay.create_event_type('order.paid')")
        one(
            conn,
            "select forebay.create_endpoint('shop', 'http', '{\"url\": \"https://a.example\"}')",
        )
        one(conn, "select forebay.subscribe('shop', 'order.paid')")
    sessions = [Session(dsn, queues, mode) for mode in modes]
    for session in sessions:
        session.job = 1
        measure([session], times=1)
    return sessions


def measure(sessions: list[Session], times: int = 2) -> list[tuple[str, Call, int]]:
    """Return the pages of each call in each session: the least of two, unless a call changes
    what the next one reads.
    """
    waiting = one(sessions[0].conn, "select sum(ready + scheduled) from forebay.depth()")
    least: dict[tuple[str, str, int], tuple[str, Call, int]] = {}
    for battery in (Session.hot, lambda session: session.maintenance(waiting)):
        for session in sessions:
            for _ in range(times):
                for number, call in enumerate(battery(session)):
                    count = pages(session.conn, call.query, call.params)
                    key = (str(id(session)), call.function, number)
                    if key not in least or (count < least[key][2] and not call.once):
                        least[key] = session.mode, call, count
    return list(least.values())


def exceeded(found: list[tuple[str, Call, int]]) -> list[str]:
    """Return a line for each call that read more than its header states."""
    stated = stated_pages()
    return [
        (
            f"{call.function} read {count} pages, {call.allowed(stated)} stated, {mode}: "
            f"{call.query} {call.units}"
        )
        for mode, call, count in found
        if count > call.allowed(stated)
    ]


#: Functions that every worker calls all the time: their bounds are near to what they read.
_CLOSE = ("maintain_v1", "poll_v1")


def loose(found: list[tuple[str, Call, int]]) -> list[str]:
    """Return a line for each of these functions that states more than three times what its largest
    call read.
    """
    stated = stated_pages()
    problems = []
    for function in _CLOSE:
        read, allowed = max(
            (count, call.allowed(stated)) for _, call, count in found if call.function == function
        )
        if allowed > 3 * read:
            problems.append(f"{function} states {allowed} pages where it read {read}")
    return problems


def no_call_reads_more_than_stated(dsn: str, rows: int, lanes: int, statistics: str) -> None:
    """Fill a log beside sessions that know it empty.

    Measure them, and new ones, without and with open transactions.
    """
    without_autovacuum(dsn)
    if statistics == "when empty":
        with connect(dsn) as conn:
            conn.execute("analyze")
    sessions = build(dsn, lanes)
    assert exceeded(measure(sessions)) == []
    found = []
    with ExitStack() as stack:
        stack.enter_context(held(dsn))
        fill(dsn, rows, sessions)
        if statistics == "when full":
            with connect(dsn) as conn:
                conn.execute("analyze")
        new = Session(dsn, sessions[0].queues, "auto")
        new.job = sessions[0].job
        for others in (nullcontext(), open_transactions(dsn, rows)):
            with others:
                found += measure([*sessions, new])
    found += measure(sessions)
    # With one lane, most of what is stated is room for the largest case.
    problems = [*exceeded(found), *(loose(found) if lanes > 1 else [])]
    for session in [*sessions, new]:
        session.close()
    assert problems == [], "\n".join(problems)


@pytest.mark.slow
@pytest.mark.parametrize("statistics", _STATISTICS)
def test_no_plan_depends_on_statistics(database, statistics):
    """
    Whatever the planner knows of the tables, and whatever transactions are open, no call reads more
    pages than its header states: 60,000 jobs in one lane.
    """
    no_call_reads_more_than_stated(database, 60_000, 1, statistics)


@pytest.mark.slow
@pytest.mark.parametrize("statistics", _STATISTICS)
def test_no_plan_depends_on_statistics_with_many_lanes(database, statistics):
    """The same with 1,000 queues, each with its group: a poll must not read them all."""
    no_call_reads_more_than_stated(database, 60_000, 1000, statistics)


#: What a function that finds rows by other indexes sets, and what servers with fast disks have.
_OF_CALLERS = {
    "none": [],
    "in order": ["enable_seqscan = off", "enable_bitmapscan = off"],
    "no bitmap": ["enable_bitmapscan = off"],
    "fast disk": ["random_page_cost = 1.1"],
}


@pytest.mark.slow
@pytest.mark.parametrize("look", ["_rows_of", "_job_id_of"])
@pytest.mark.parametrize("settings", _OF_CALLERS.values(), ids=_OF_CALLERS)
def test_a_row_is_found_by_its_number_under_every_callers_settings(database, settings, look):
    """
    A function keeps the planner settings of its callers that it does not choose itself. Without the
    index on numbers such a look reads the whole index of the claims, which has an entry for each
    job.
    """
    without_autovacuum(database)
    with connect(database) as conn:
        lane = lane_of("default", conn)
        # Few jobs share a transaction: no plan gains by skipping from one to the next.
        conn.execute(
            f"do $$ begin for i in 1..4000 loop"
            f" insert into forebay.log (lane, enqueued_at, kind, args)"
            f" select {lane}, now(), 'work', '{{}}' from generate_series(1, 10); commit;"
            f" end loop; end $$"
        )
        keep_up(conn)
        index = one(conn, "select pg_relation_size('forebay.log_0_lane_xid_seq_idx') / 8192")
        assert index > 150
        for setting in settings:
            conn.execute(f"set {setting}")
        for seq in (20_000, 20_001):
            read = pages(conn, f"select * from forebay.{look}(%s)", [seq])
    assert read < 100


@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.parametrize("lanes", [1, 1000])
@pytest.mark.parametrize("statistics", _STATISTICS)
def test_no_plan_depends_on_statistics_of_two_million_jobs(database, statistics, lanes):
    """The same with 2,000,000 jobs, in one lane and in 1,000 lanes."""
    no_call_reads_more_than_stated(database, 2_000_000, lanes, statistics)


def each_segment(dsn: str, function: str, *substitutions: tuple[str, str]) -> None:
    """Replace pieces of a function of each segment.

    ``#`` in a piece is the number of the segment.
    """
    with connect(dsn) as conn:
        segments = conn.execute("select segment_id from forebay.segment").fetchall()
    for (segment,) in segments:
        pairs = [tuple(text.replace("#", str(segment)) for text in pair) for pair in substitutions]
        break_function(dsn, f"{function}_{segment}", *pairs)


def _late_rows_by_join(dsn: str) -> None:
    each_segment(
        dsn,
        "_moved",
        (
            (
                "late (xid), lateral (\n"
                "                    select from forebay.log_# l where l.lane = p.lane"
                " and l.xid = late.xid limit 1) f\n"
                "                where pg_visible_in_snapshot(late.xid, p_now)"
                " and pg_xact_status(late.xid) is distinct from 'aborted')"
            ),
            (
                "late (xid)\n                where exists (select from forebay.log_# l"
                " where l.lane = p.lane and l.xid = late.xid))"
            ),
        ),
    )


def _polls_of_one_range(dsn: str) -> None:
    break_function(
        dsn,
        "ready_v1",
        (
            "v_ended := forebay._xid_ranges('1:1:', v_now);",
            "v_ended := array[row('1', pg_snapshot_xmax(v_now))::forebay._xid_range];",
        ),
    )


def _claims_of_one_range(dsn: str) -> None:
    break_function(
        dsn,
        "_xid_ranges",
        (
            "if pg_snapshot_xmin(p_to) <> pg_snapshot_xmax(p_to) then",
            (
                "if pg_snapshot_xmax(p_from) = '1' and pg_snapshot_xmin(p_to) <> "
                "pg_snapshot_xmax(p_to) then"
            ),
        ),
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("break_it", "function"),
    [
        pytest.param(_late_rows_by_join, "ready_v1", id="late transactions by a join"),
        pytest.param(_polls_of_one_range, "ready_v1", id="polls that read open transactions"),
        pytest.param(_claims_of_one_range, "claim_v1", id="claims that read open transactions"),
    ],
)
def test_no_plan_depends_on_statistics_breaks_without(database, break_it, function):
    """Each guard taken out is seen: the function reads more than it states."""
    break_it(database)
    without_autovacuum(database)
    sessions = build(database, 1, ["force_generic_plan"])
    with held(database):
        fill(database, 60_000, sessions)
        with open_transactions(database, 60_000):
            problems = exceeded(measure(sessions))
    for session in sessions:
        session.close()
    assert any(problem.startswith(f"{function} read ") for problem in problems), problems


#: Tables with a row for each job, claim, lease or period, and what a call that reads one needs.
_GROWING = [
    "log",
    "deferred",
    "promotion",
    "batch",
    "settlement",
    "suspect_start",
    "lease",
    "heartbeat",
    "failure",
    "tombstone",
    "dead_letter",
    "unique_key",
    "key_run",
    "parked",
    "counter_waiting",
    "counter_change",
    "withdrawn",
    "limiter",
    "result",
    "published",
    "endpoint_activity",
    "progress",
    "mirror_count",
    "mirror_sample",
    "mirror_breaker",
    "mirror_audit",
    "guard_event",
    "event",
]

#: Public functions that are called now and then, by a person or once in the life of a database.
_OCCASIONAL = {
    "adopt_v1": "reads everything, once",
}


def functions() -> dict[str, str]:
    """Return the text of each function, without its comment."""
    found = {}
    for file in sorted((SCHEMA / "functions").rglob("*.sql")):
        for part in re.split(
            r"^(?=create function )", file.read_text(encoding="utf-8"), flags=re.MULTILINE
        )[1:]:
            name = re.match(r"create function forebay\.(\w+?)(?:_\{segment\})?\(", part)[1]
            found[name] = found.get(name, "") + part.partition("\n$$;")[0]
    return found


def reads_growing_table(name: str, texts: dict[str, str], seen: set[str]) -> bool:
    """Return whether a function, or one that it calls, reads a table that grows."""
    seen.add(name)
    if re.search(
        rf"(?:from|join|using|update) forebay\.(?:{'|'.join(_GROWING)}|log_%s)\b", texts[name]
    ):
        return True
    called = set(re.findall(r"forebay\.(\w+?)_?(?:\(|')", texts[name])) & texts.keys()
    return any(
        reads_growing_table(other, texts, seen)
        for other in sorted(called - seen)
        if "\n-- planner: " not in texts[other]
    )


def test_each_regular_call_states_its_pages_and_its_planner_settings():
    """A function that reads a growing table has planner settings with indexes first, and a bound
    in pages.
    """
    texts = functions()
    stated = stated_pages()
    problems = []
    for name, text in texts.items():
        if name.startswith("_") or not reads_growing_table(name, texts, set()):
            continue
        if "\n-- planner: " not in text:
            problems.append(f"{name}: no planner settings")
        if name.endswith("_v1") and name not in stated and name not in _OCCASIONAL:
            problems.append(f"{name}: no pages")
    assert problems == []
