"""Post migrations take away what code of the release before calls: not while it runs."""

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest

from forebay.db.own import run_own
from forebay.errors import SchemaError
from forebay.ops import protocol
from forebay.ops.schema import require_version, schema_version
from forebay.sql import latest_version, required_version
from forebay.upgrade import _stepping as stepping
from forebay.upgrade.migrate import LockPolicy, migrate, migration_sql, upgrade
from tests.support.engine import connect, one
from tests.support.mutant import break_function, violation
from tests.support.next_release import next_migrations
from tests.support.waiting import wait_for

PRE = (
    "claim_v2",
    "create function forebay.claim_v2() returns int language plpgsql as 'begin return 2; end';",
)
POST = ("post_drop_v1", "drop function forebay.missing_batches_v1(bigint, bigint[]);")
LATER = ("more", "create table forebay.more (id bigint);")


def open_lease(conn, version: int | None) -> int:
    return one(conn, "select forebay.open_lease_v1('shop-1:4711', 30, 5, %s)", version)


def test_a_post_migration_waits_for_the_last_worker_of_an_older_version(database, release):
    """
    It is held back and the worker is named, with the version its code was made for; pre migrations
    are applied. When the worker has ended, the next call applies it.
    """
    version = latest_version()
    with connect(database) as conn:
        lease = open_lease(conn, version)
        pre, post = release(PRE, POST)
        done = upgrade(database)
        assert (done.applied, done.held_back) == ([pre], [post])
        assert done.reason.message.startswith("1 worker of an older version still runs")
        assert done.reason.detail == f"shop-1:4711, made for version {version}"
        assert migrate(database) == []

        open_lease(conn, post.version)  # a worker of the new version does not matter
        one(conn, "select forebay.close_lease_v1(%s)", lease)
        assert migrate(database) == [post]


@pytest.mark.parametrize("silent", [False, True])
def test_a_worker_that_has_fallen_silent_holds_nothing_up(database, release, silent):
    """
    A lease that had no heartbeat for its whole length is lost already; one that had may live.
    """
    with connect(database) as conn:
        lease = open_lease(conn, latest_version())
        _, post = release(PRE, POST)
        if silent:
            conn.execute("update forebay.lease set opened_at = opened_at - interval '31 s'")
            conn.execute(
                "update forebay.heartbeat set heartbeat_at = heartbeat_at - interval '31 s'"
            )
        else:
            conn.execute("update forebay.lease set opened_at = opened_at - interval '1 day'")
            conn.execute("select forebay.heartbeat_v1(array[%s::bigint])", [lease])
    assert (post in upgrade(database).applied) is silent


def a_worker_that_comes_meanwhile(dsn: str, release) -> None:
    """Let a worker of the older version open its lease while a post migration is at work."""
    version = latest_version()
    _, post = release(PRE, POST)
    with psycopg.connect(dsn) as migrator, connect(dsn) as conn, ThreadPoolExecutor(1) as threads:
        migrate(migrator, only_pre=True)
        with migrator.transaction():
            migrator.execute("select 1")
            assert migrate(migrator) == [post]
            opening = threads.submit(open_lease, conn, version)
            wait_for(
                lambda: (
                    opening.done()
                    or migrator.execute(
                        "select from pg_locks where not granted"
                        " and relation = 'forebay.lease'::regclass"
                    ).fetchall()
                )
            )
        with pytest.raises(psycopg.DatabaseError) as caught:
            opening.result(timeout=10)
        assert caught.value.sqlstate == "JQ020"
        assert f"code made for version {post.version} or later" in str(caught.value)
        facts = {"found": post.version, "needed": version}
        assert json.loads(caught.value.diag.message_detail) == facts
        assert one(conn, "select count(*) from forebay.lease") == 0
        open_lease(conn, post.version)


def test_a_worker_that_comes_while_it_runs_is_refused(database, release):
    """
    Who opens a lease in that moment waits until the post migration has committed, and is then told
    that the schema does not serve it any more.
    """
    a_worker_that_comes_meanwhile(database, release)


def test_without_the_lock_on_the_leases_it_would_be_let_in(database, release):
    """
    The mutant that only looks at the leases lets a worker in that then finds its functions gone.
    """
    break_function(database, "_require_gone", ("lock table forebay.lease in share mode;", ""))
    with violation():
        a_worker_that_comes_meanwhile(database, release)


@pytest.mark.slow
def test_a_worker_of_an_older_version_is_refused_before_it_claims(database, release):
    """
    After the post migration a worker of the version before ends at once, with an error that says
    what to do; the schema's version alone is no reason.
    """
    version = latest_version()
    release(PRE)
    migrate(database)
    release()
    require_version(run_own(database, schema_version()), newer_is_fine=True)
    run_own(database, protocol.open_lease("w", lease_seconds=30, suspect_seconds=5))
    with connect(database) as conn:
        conn.execute("update forebay.lease set closed_at = now(), closed_as = 'closed'")

    release(PRE, POST)
    migrate(database)
    release()
    with pytest.raises(SchemaError, match=f"made for {version}") as caught:
        run_own(database, protocol.open_lease("w", lease_seconds=30, suspect_seconds=5))
    assert "Install a newer version" in str(caught.value.hint)
    ended = subprocess.run(
        [sys.executable, "-m", "forebay", "worker", "tests.support.worker_app:app", "--dsn",
            database],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert ended.returncode == 3
    assert f"this worker was made for {version}" in ended.stderr


def test_new_code_works_while_its_post_migration_is_pending_and_not_before_its_pre_migration(
    database, release
):
    """
    A worker needs the newest pre migration; what comes behind it may follow later.
    """
    pre, post = release(PRE, POST)
    assert (required_version(), latest_version()) == (pre.version, post.version)
    with pytest.raises(SchemaError) as caught:
        require_version(run_own(database, schema_version()), newer_is_fine=True)
    assert caught.value.needed == pre.version
    assert "forebay migrate" in str(caught.value.hint)

    assert migrate(database, only_pre=True) == [pre]
    require_version(run_own(database, schema_version()), newer_is_fine=True)


def test_what_the_library_needs_is_not_left_behind_a_post_migration_in_silence(database, release):
    """
    A pre migration behind one that has to wait: the upgrade fails, and says that a release was left
    out.
    """
    with connect(database) as conn:
        open_lease(conn, latest_version())
    _, post, later = release(PRE, POST, LATER)
    with pytest.raises(SchemaError) as caught:
        upgrade(database)
    assert f"migration {post.version}" in caught.value.message
    assert f"needs version {later.version}" in str(caught.value.detail)
    assert "the release in between" in str(caught.value.hint)


def test_an_upgrade_can_wait_for_older_workers(database, release):
    """
    With a time to wait it says whom it waits for, and goes on when they have ended.
    """
    said: list[str] = []
    with connect(database) as conn, ThreadPoolExecutor(1) as threads:
        lease = open_lease(conn, latest_version())
        pre, post = release(PRE, POST)
        running = threads.submit(
            upgrade, database, wait_seconds=30, lock_policy=LockPolicy(report=said.append)
        )
        wait_for(lambda: said)
        one(conn, "select forebay.close_lease_v1(%s)", lease)
        assert running.result(timeout=20).applied == [pre, post]
    assert "1 worker of an older version still runs" in said[0]


def test_in_somebody_elses_transaction_and_as_a_script_it_is_held_back_too(database, release):
    """
    Django's migrate and a DBA's psql take away no more than the command does.
    """
    version = latest_version()
    with connect(database) as conn:
        lease = open_lease(conn, version)
        pre, post = release(PRE, POST)
        with psycopg.connect(database) as caller:
            caller.execute("select 1")
            assert migrate(caller) == [pre]
            caller.commit()
        assert "drop function" not in migration_sql(version, only_pre=True)
        script = migration_sql(pre.version)
        with pytest.raises(psycopg.DatabaseError, match="still runs"):
            conn.execute(script)
        conn.execute("rollback")
        one(conn, "select forebay.close_lease_v1(%s)", lease)
        conn.execute(script)
    assert run_own(database, schema_version()) == post.version


def drop_what_a_statement_uses(dsn: str, release) -> None:
    """Take away a function, in a post migration, while a statement is about to call it."""
    _, post = release(PRE, ("post_drop_v2", "drop function forebay.claim_v2();"))
    migrate(dsn, only_pre=True)
    said: list[str] = []
    with connect(dsn) as conn, connect(dsn) as watcher, ThreadPoolExecutor(2) as threads:
        conn.execute("set application_name = 'report'")
        calling = threads.submit(
            conn.execute, "do 'begin perform pg_sleep(2); perform forebay.claim_v2(); end'"
        )
        wait_for(
            lambda: watcher.execute(
                "select from pg_stat_activity where application_name = 'report' and state "
                "= 'active'"
                " and query like '%pg_sleep%'"
            ).fetchall()
        )
        upgrading = threads.submit(upgrade, dsn, lock_policy=LockPolicy(report=said.append))
        calling.result(timeout=20)
        assert upgrading.result(timeout=20).applied == [post]
    assert "(report) runs a statement that began" in said[0]


@pytest.mark.slow
def test_a_post_migration_waits_for_statements_that_began_before_it(database, release):
    """
    A statement may be within a function as it was a moment ago, or about to call one: it ends
    first, and is named.
    """
    drop_what_a_statement_uses(database, release)


@pytest.mark.slow
def test_without_waiting_for_them_one_would_fail(database, release, monkeypatch):
    """
    The mutant that does not wait takes away a function before a statement that is under way comes
    to call it.
    """
    monkeypatch.setattr(stepping, "session_running_since", lambda *_, **__: None)
    with violation(psycopg.Error):
        drop_what_a_statement_uses(database, release)


def test_a_public_function_gains_a_parameter_under_statements_that_call_it(database, release):
    """
    ``forebay._set_aside``: a statement that began with the old function goes on with it, and the
    next one finds the new one; there are never two to choose from, and never none.
    """
    name, text = next(step for step in next_migrations() if step[0] == "source_of_an_enqueue")
    release((name, text))
    with connect(database) as conn, connect(database) as watcher, ThreadPoolExecutor(1) as threads:
        for _ in range(8):  # until the statement is prepared
            conn.execute("select forebay.enqueue(%s, '{}')", ["work"])
        watcher.execute("select pg_advisory_lock(4711)")
        calling = threads.submit(
            one,
            conn,
            (
                "select count(forebay.enqueue('work', '{}')) from generate_series(1, 3) n, "
                "pg_advisory_xact_lock(4711) l"
            ),
        )
        wait_for(
            lambda: watcher.execute(
                "select from pg_locks where locktype = 'advisory' and objid = 4711 and not granted"
            ).fetchall()
        )
        assert len(migrate(database)) == 1
        assert not calling.done()
        watcher.execute("select pg_advisory_unlock(4711)")
        assert calling.result(timeout=10) == 3
        for _ in range(8):
            conn.execute("select forebay.enqueue(%s, '{}')", ["work"])
        conn.execute("select forebay.enqueue('work', '{}', source => 'shop')")
        assert one(conn, "select count(*) from forebay.log") == 20
