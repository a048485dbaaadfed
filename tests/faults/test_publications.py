"""A publication of all tables, as for an upgrade or a warehouse, and a subscriber that follows
it.
"""

import pytest

import forebay
from forebay import RetryPolicy
from forebay.config import Settings, WorkerSettings
from forebay.embedded import temporary_server
from tests.support.engine import connect, one, shift_clock, small_segments
from tests.support.fix_db import fast_folder
from tests.support.fix_worker import run_until_idle, running
from tests.support.least_privilege import as_login, make_least
from tests.support.subscriber import SETTINGS, subscriber
from tests.support.waiting import wait_for_async
from tests.support.worker_process import FAST

pytestmark = pytest.mark.anyio

#: The kinds of rows that are trimmed.
PARTS = (
    "deferred", "late_deferred", "promotions", "batches", "key_runs", "limiters", "waiting",
    "heartbeats", "leases", "failures",
    "events", "guard_events", "dead_letters", "tombstones", "results", "progress", "mirror_counts",
    "mirror_samples", "mirror_breakers",
    "mirror_audits", "unique_keys", "published", "replays",
)  # fmt: skip

#: What maintenance does.
DUTIES = (
    "extend_v1()", "seal_v1()", "promote_v1(1000)", "sweep_v1(null)", "retain_v1()",
    *(f"trim_v1('{part}')" for part in PARTS),
    "summarize_v1()", "renew_counters_v1()", "drop_segments_v1()", "forget_v1()", "close_groups()",
)  # fmt: skip


def repeat(conn, duty: str) -> None:
    """Run a duty until nothing is left to do."""
    for _ in range(1000):
        row = conn.execute(f"select * from forebay.{duty}").fetchone()
        # Of retention one step each time: the copy does not have the segments that are made later.
        if row is None or not row[0]:
            return
    pytest.fail(f"{duty} does not end")


def without_identity(conn) -> list[str]:
    """Return the tables of which a publication could not tell the updated and the deleted rows."""
    rows = conn.execute(
        "select c.oid::regclass::text from pg_class c"
        " where c.relnamespace = 'forebay'::regnamespace and c.relkind in ('r', 'p')"
        " and c.relname !~ '^lock_'"  # locks hold no rows
        " and not (c.relreplident = 'f'"
        "     or c.relreplident = 'i' and exists (select from pg_index i where i.indrelid "
        "= c.oid and i.indisreplident)"
        "     or c.relreplident = 'd' and exists (select from pg_index i where i.indrelid "
        "= c.oid and i.indisprimary))"
        " order by 1"
    )
    return [table for (table,) in rows]


@pytest.mark.direct
def test_every_table_has_a_replica_identity(conn):
    """
    Without one, UPDATE and DELETE fail from the moment a publication contains the table:
    maintenance would stop. Segments that are made later have one too.
    """
    segments = "select count(*) from forebay.segment"
    before = one(conn, segments)
    small_segments(conn)
    assert one(conn, segments) > before
    assert without_identity(conn) == []


@pytest.mark.direct
def test_a_subscriber_can_compare_each_column_of_an_identity_that_is_the_whole_row(conn):
    """A subscriber finds the row of a DELETE by all columns.

    It stops at a type without an equality operator.
    """
    rows = conn.execute(
        "select c.relname || '.' || a.attname from pg_class c join pg_attribute a on "
        "a.attrelid = c.oid and a.attnum > 0"
        " where c.relnamespace = 'forebay'::regnamespace and c.relkind in ('r', 'p') and "
        "c.relreplident = 'f'"
        "   and not a.attisdropped"
        "   and not exists (select from pg_opclass o join pg_am m on m.oid = o.opcmethod"
        "     where m.amname in ('btree', 'hash') and o.opcdefault"
        "       and o.opcintype in (a.atttypid, (select t.typbasetype from pg_type t where "
        "t.oid = a.atttypid)))"
        "   and (select t.typcategory not in ('A', 'E', 'S') from pg_type t where t.oid = "
        "a.atttypid)"
        " order by 1"
    )
    assert [column for (column,) in rows] == []


@pytest.mark.slow
async def test_maintenance_and_a_subscriber_keep_up_with_each_other(pg_bin):
    """
    Jobs of every fate are worked while all tables are published; then months of maintenance, by
    roles with no more rights than they need. Dead letters are trimmed, segments are dropped, lanes
    are forgotten and a group is closed. No duty fails, and the copy has the same rows, except those
    that retention truncated in the log.
    """
    with (
        temporary_server(
            pg_bin, parent=fast_folder(), extra_settings=SETTINGS | {"fsync": "off"}
        ) as server,
        connect(dsn := make_least(server, "source")) as conn,
        connect(as_login(dsn, "least_worker")) as maintainer,
        connect(as_login(dsn, "least_operator")) as operator,
        subscriber(server, dsn) as copy,
    ):
        app = forebay.App(
            as_login(dsn, "least_worker"), settings=Settings(worker=WorkerSettings(**FAST))
        )

        @app.job(keep_result=True, retry=RetryPolicy(max_attempts=2, base_seconds=0.01))
        async def work(n: int) -> int:
            if n % 10 == 0:
                raise ValueError(n)
            return n

        small_segments(conn)
        async with running(app) as worker:
            for n in range(40):
                work.using(delay=0.05).enqueue(conn, n)
                work.enqueue(conn, n)
                work.using(unique=forebay.Coalesce(f"key {n % 3}")).enqueue(conn, n)
            one(operator, "select forebay.cancel(%s)", work.using(delay=60).enqueue(conn, 1))
            await wait_for_async(lambda: worker.stats.done >= 72)
        await run_until_idle(app)
        copy.wait()
        assert copy.errors() == 0
        assert copy.differing() == []
        assert one(conn, "select count(*) from forebay.dead_letter") > 0
        segments = one(conn, "select count(*) from forebay.segment")
        one(operator, "select forebay.keep_dead(days => 30)")
        for days in (1, 40, 80, 120):
            shift_clock(conn, days * 86_400)
            for duty in DUTIES:
                repeat(maintainer, duty)
            if days == 80:
                operator.execute("select forebay.close_group('default', 'default', true)")
        assert one(conn, "select count(*) from forebay.dead_letter") == 0
        assert one(conn, "select count(*) from forebay.segment") < segments
        assert one(conn, "select count(*) from forebay.closed_group where lanes is null") == 1
        copy.wait()
        assert copy.errors() == 0
        assert set(copy.differing()) <= {"forebay.log"}
        assert one(conn, "select count(*) from forebay.failure") == 0
        assert one(copy.conn, "select count(*) from forebay.deferred") == one(
            conn, "select count(*) from forebay.deferred"
        )
