"""A standby that is promoted as soon as it has the schema, or a group: every call works there.

Up to PostgreSQL 15.18, and the releases of its time, an unlogged sequence cannot be read on such a
server: its first page is copied from the disk at the promotion, and a standby writes it there only
at a restart point.
"""

import psycopg
import pytest

from tests.support.engine import Reader, connect, enqueue, one, state
from tests.support.fix_db import make_migrated
from tests.support.standby import primary_and_standby, wait_until_replayed

#: The standby makes no restart point.
_WITHOUT_CHECKPOINTS = {"checkpoint_timeout": "1h", "max_wal_size": "10GB"}

_WAKEUPS = "select oid::regclass::text from pg_class where relname ~ '^wakeup_[0-9]+$' order by oid"


def queues_of_all_wakeups(conn: psycopg.Connection) -> list[str]:
    """Return queue names, one for each flag sequence of the wake-ups."""
    flags = [row[0] for row in conn.execute(_WAKEUPS).fetchall()]
    chosen = (
        "select distinct on (1) forebay._wakeup(q)::text, q from (select 'q' || n from "
        "generate_series(1, 1000) n) s (q)"
    )
    named = dict(conn.execute(chosen).fetchall())
    assert sorted(named) == sorted(flags)
    assert len(flags) == 16
    return list(named.values())


@pytest.mark.crash
@pytest.mark.slow
def test_every_call_works_on_a_standby_promoted_right_after_the_migration(pg_bin):
    """
    Enqueues of every wake-up, polls that set them, leadership of maintenance and of a new group, a
    caller that waits for a result.
    """
    with primary_and_standby(pg_bin, _WITHOUT_CHECKPOINTS) as (primary, standby):
        name = make_migrated(primary, "test")
        with connect(primary.dsn(name)) as conn:
            queues = queues_of_all_wakeups(conn)
            groups = [one(conn, "select forebay.open_group(%s)", queue) for queue in queues]
        wait_until_replayed(primary, standby)
        primary.kill()
        with connect(standby.dsn()) as conn:
            assert one(conn, "select pg_promote(true, 60)")
        dsn = standby.dsn(name)
        with connect(dsn) as conn:
            jobs = [enqueue(conn, queue=queue) for queue in queues]
            duties = [0, *groups]
            for _ in range(2):
                held = one(conn, "select forebay.lead_v1(7, %s, 60)", duties)
                assert sorted(held) == sorted(duties)
            asked = "select h.leaderless from forebay.heartbeat_v1('{}', '{}', %s) h"
            assert one(conn, asked, duties) == []
            one(conn, "select forebay.resign_v1(7, %s)", duties)
            assert one(conn, asked, duties) == duties
            waiting = "select r.state from forebay.result(%s, wait_millis => 1000) r"
            assert one(conn, waiting, jobs[0]) == "ready"
            for queue in queues:
                with Reader(dsn, queue=queue) as reader:
                    for batch in reader.claim_all():
                        reader.finish(batch)
            assert [state(conn, job) for job in jobs] == ["done"] * len(jobs)
            asleep = "select count(*) from forebay.ready_v1(%s, 60000)"
            assert one(conn, asleep, groups) == 0
            awaited = "select forebay._is_awaited(q) from unnest(%s::text[]) q"
            assert conn.execute(awaited, [queues]).fetchall() == [(True,)] * len(queues)


def test_no_relation_of_the_schema_but_the_ballast_is_unlogged(conn):
    """
    Neither those of the migration nor that of a group. What the ballast has means nothing.
    """
    one(conn, "select forebay.open_group('mail')")
    query = (
        "select count(*), min(relname) from pg_class where relnamespace = "
        "'forebay'::regnamespace and relpersistence <> 'p' and relname <> 'ballast'"
    )
    assert conn.execute(query).fetchone() == (0, None)
