"""The schema belongs to a role with LOGIN and nothing else, and each part has a login role: what
then may not be seen.
"""

from concurrent.futures import ThreadPoolExecutor

import pytest

from forebay.upgrade._blockers import moment, session_running_since
from forebay.upgrade.migrate import upgrade
from tests.support.engine import Reader, connect, enqueue, lane_of, one
from tests.support.least_privilege import as_login, least_database
from tests.support.waiting import wait_for


@pytest.fixture
def least(server):
    with least_database(server, "least") as dsn:
        yield dsn


@pytest.fixture
def admin(least):
    with connect(least) as conn:
        yield conn


def revoked(conn) -> list[int]:
    return [lease for (lease,) in conn.execute("select lease_id from forebay.revoke_lost_v1()")]


@pytest.mark.slow
def test_a_new_session_revokes_no_lease_where_the_owner_cannot_see_its_age(least, admin):
    """
    After a restart of the server every session is new, and every lease looks silent: a session that
    has not watched for suspect_seconds must not judge. PostgreSQL hides from the owner when the
    session of the caller began.
    """
    with connect(as_login(least, "least_worker")) as worker:
        enqueue(worker)
        reader = Reader(least, conn=worker)
        assert len(reader.claim(1, lane_of("default", admin)).jobs) == 1
    admin.execute("update forebay.heartbeat set heartbeat_at = heartbeat_at - interval '1 hour'")
    admin.execute("update forebay.batch set claimed_at = claimed_at - interval '1 hour'")
    with connect(as_login(least, "least_worker")) as worker:
        age = one(
            admin,
            (
                "select extract(epoch from clock_timestamp() - backend_start) from "
                "pg_stat_activity where pid = %s"
            ),
            worker.info.backend_pid,
        )
        assert age < one(admin, "select suspect_seconds from forebay.lease")
        assert revoked(worker) == []
        assert revoked(worker) == []
        # As if it had watched for long enough.
        admin.execute("update forebay.lease set suspect_seconds = 0.01, lease_seconds = 0.02")
        assert wait_for(lambda: revoked(worker)) == [reader.lease_id]


@pytest.mark.slow
def test_the_time_that_a_session_watched_cannot_come_from_a_default(least, admin):
    """A default of the role would make a new session look old."""
    with connect(as_login(least, "least_worker")) as worker:
        enqueue(worker)
        reader = Reader(least, conn=worker)
        assert len(reader.claim(1, lane_of("default", admin)).jobs) == 1
    admin.execute("update forebay.heartbeat set heartbeat_at = heartbeat_at - interval '1 hour'")
    admin.execute("update forebay.batch set claimed_at = claimed_at - interval '1 hour'")
    admin.execute("alter role least_worker set forebay.observes_since = '1 1'")
    try:
        with connect(as_login(least, "least_worker")) as worker:
            assert revoked(worker) == []
    finally:
        admin.execute("alter role least_worker reset all")


@pytest.mark.slow
def test_a_migration_waits_for_statements_that_its_role_cannot_see(least, admin):
    """
    What a post migration removes may be in use by a statement that began before; PostgreSQL hides
    statements of other roles. A transaction without a statement, and one that began later, do not
    count.
    """
    with (
        connect(as_login(least, "least_owner")) as owner,
        connect(as_login(least, "least_worker")) as busy,
        connect(as_login(least, "least_worker")) as idle,
        connect(as_login(least, "least_worker")) as later,
        ThreadPoolExecutor() as threads,
    ):
        admin.execute("select pg_advisory_lock(1)")
        idle.execute("begin")
        waiting = threads.submit(busy.execute, "select pg_advisory_lock(1)")
        wait_for(lambda: one(admin, "select count(*) from pg_locks where not granted") == 1)
        since = moment(owner)
        later.execute("begin isolation level repeatable read")
        later.execute("select from pg_class")
        found = session_running_since(owner, since)
        assert found is not None
        assert f"pid {busy.info.backend_pid} " in found
        admin.execute("select pg_advisory_unlock(1)")
        waiting.result()
        assert session_running_since(owner, since) is None


@pytest.mark.slow
def test_the_owner_upgrades_its_schema_while_workers_are_connected(least, admin, release):
    """
    A migration takes the locks of maintenance and of tables, alters what belongs to the owner, and
    grants to the four roles, all with no right but the ownership. A worker's next calls use the new
    schema, and its session need not end.
    """
    with connect(as_login(least, "least_worker")) as worker:
        enqueue(worker)
        with Reader(least, conn=worker) as reader:
            call = "create function forebay.two() returns integer language sql return 2;"
            steps = release(
                ("one", "-- locks: lane\nalter table forebay.lane add column one integer;"),
                ("two", f"{call}\ngrant execute on function forebay.two() to forebay_worker;"),
            )
            assert upgrade(as_login(least, "least_owner")).applied == list(steps)
            assert len(reader.claim(1, lane_of("default", admin)).jobs) == 1
            assert one(worker, "select forebay.two()") == 2
