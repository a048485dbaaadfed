"""Installing and upgrading the schema."""

import subprocess
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest

from forebay.db.drivers import run
from forebay.errors import (
    ConfigError,
    DatabaseUnavailable,
    ForebayError,
    SchemaError,
    TransactionStateError,
    WrongConnection,
)
from forebay.ops.schema import require_version, schema_version
from forebay.sql import latest_version, migrations
from forebay.upgrade.migrate import migrate, migration_sql, pending_migrations
from tests.support.engine import connect
from tests.support.waiting import wait_for


@pytest.fixture
def one_more(release):
    """The library as of the next release: a migration more, which makes one table."""
    return release(("add_later", "create table forebay.added_later (id bigint);"))[0]


CATALOG = """
select 'relation', c.relname, c.relkind::text, array_to_string(c.relacl, ' '),
       obj_description(c.oid, 'pg_class'), pg_get_partkeydef(c.oid),
       pg_get_expr(c.relpartbound, c.oid)
from pg_class c where c.relnamespace = 'forebay'::regnamespace
union all
select 'column', a.attrelid::regclass::text || '.' || a.attname, format_type(a.atttypid,
    a.atttypmod),
       a.attnotnull::text, a.attidentity::text, pg_get_expr(d.adbin, d.adrelid), a.attnum::text
from pg_attribute a join pg_class c on c.oid = a.attrelid
left join pg_attrdef d on d.adrelid = a.attrelid and d.adnum = a.attnum
where c.relnamespace = 'forebay'::regnamespace and a.attnum > 0
union all
select 'function', p.oid::regprocedure::text, md5(pg_get_functiondef(p.oid)),
       array_to_string(p.proacl, ' '), p.prosecdef::text, array_to_string(p.proconfig, ' '), null
from pg_proc p where p.pronamespace = 'forebay'::regnamespace
union all
select 'constraint', n.conrelid::regclass::text || '.' || n.conname, pg_get_constraintdef(n.oid),
       null, null, null, null
from pg_constraint n where n.connamespace = 'forebay'::regnamespace
union all
select 'index', i.indexname, i.indexdef, null, null, null, null
from pg_indexes i where i.schemaname = 'forebay'
union all
select 'schema', n.nspname, array_to_string(n.nspacl, ' '), null, null, null, null
from pg_namespace n where n.nspname = 'forebay'
order by 1, 2, 3"""


def catalog(dsn):
    with psycopg.connect(dsn) as conn:
        return conn.execute(CATALOG).fetchall()


def recorded(dsn):
    with psycopg.connect(dsn) as conn:
        return conn.execute(
            "select version, name, checksum from forebay.schema_migration order by version"
        ).fetchall()


@pytest.mark.slow
def test_an_empty_database_gets_every_migration_and_then_none(empty_database):
    """
    The first call applies and records all steps in order, the second finds nothing to do, and
    the schema tells its version.
    """
    applied = migrate(empty_database)

    assert applied == list(migrations())
    assert recorded(empty_database) == [(s.version, s.name, s.checksum) for s in migrations()]
    assert migrate(empty_database) == []
    with psycopg.connect(empty_database) as conn:
        assert run(conn, schema_version()) == latest_version()


def test_a_dry_run_tells_and_changes_nothing(empty_database):
    """
    With ``dry_run`` the pending steps come back and the database stays as it was.
    """
    assert migrate(empty_database, dry_run=True) == list(migrations())
    with psycopg.connect(empty_database) as conn:
        assert conn.execute("select to_regnamespace('forebay')").fetchone() == (None,)


@pytest.mark.slow
def test_only_what_is_missing_is_applied(database, one_more):
    """
    An upgrade applies the new step alone and records it beside the old ones.
    """
    assert migrate(database) == [one_more]
    assert recorded(database)[-1] == (one_more.version, "add_later", one_more.checksum)
    with psycopg.connect(database) as conn:
        assert conn.execute("select * from forebay.added_later").fetchall() == []


@pytest.mark.slow
def test_a_failing_migration_leaves_nothing_and_those_before_it_stay(database, release):
    """
    Each migration of an upgrade is a transaction. The next call goes on where the last one failed.
    """
    first, _ = release(("add_later", "create table forebay.added_later (id bigint);"),
                       ("broken", (
                               "create table forebay.half (id bigint); select "
                               "1/0;"
                               )))  # fmt: skip

    with pytest.raises(psycopg.errors.DivisionByZero):
        migrate(database)

    assert recorded(database)[-1] == (first.version, first.name, first.checksum)
    with psycopg.connect(database) as conn:
        assert conn.execute("select to_regclass('forebay.half')").fetchone() == (None,)
    release()
    first, mended = release(("add_later", "create table forebay.added_later (id bigint);"),
                            ("mended", "create table forebay.half (id bigint);"))  # fmt: skip
    assert migrate(database) == [mended]


@pytest.mark.slow
def test_a_failing_first_installation_leaves_an_empty_database(empty_database, release):
    """
    Before there is a schema all migrations share one transaction.
    """
    release(("broken", "select 1/0;"))

    with pytest.raises(psycopg.errors.DivisionByZero):
        migrate(empty_database)

    with psycopg.connect(empty_database) as conn:
        assert conn.execute("select to_regnamespace('forebay')").fetchone() == (None,)


@pytest.mark.slow
def test_two_migrators_at_once_apply_each_step_once(empty_database):
    """
    The second waits for the first, looks again, and finds nothing to do.
    """
    with ThreadPoolExecutor(2) as threads:
        answers = list(threads.map(lambda _: migrate(empty_database), range(2)))

    assert sorted(map(len, answers)) == [0, latest_version()]


@pytest.mark.slow
def test_a_second_migrator_sees_what_the_first_did_whatever_the_default_isolation(empty_database):
    """
    Also where transactions are REPEATABLE READ by default, the look comes after the wait.
    """
    slow = empty_database + " options='-c default_transaction_isolation=repeatable\\ read'"
    if "://" in empty_database:
        slow = empty_database + "&options=-c%20default_transaction_isolation%3Drepeatable%5C%20read"
    with (
        psycopg.connect(empty_database) as first,
        connect(empty_database) as watcher,
        ThreadPoolExecutor(1) as threads,
    ):
        first.execute("select 1")
        migrate(first)  # in a transaction: nobody else sees it yet
        waiting = threads.submit(migrate, slow)
        wait_for(
            lambda: watcher.execute(
                "select from pg_stat_activity where application_name = 'forebay migrate'"
            ).fetchall()
        )
        assert not waiting.done()
        first.commit()
        assert waiting.result(timeout=10) == []


def test_an_older_library_refuses_a_newer_database(database, one_more, release):
    """
    A schema is never downgraded: the refusal names both versions.
    """
    migrate(database)
    release()

    with pytest.raises(SchemaError) as caught:
        migrate(database)

    assert (caught.value.found, caught.value.needed) == (one_more.version, latest_version())
    assert str(one_more.version) in caught.value.message
    assert str(latest_version()) in caught.value.message


def test_a_migration_that_changed_after_its_release_is_refused(database):
    """
    The checksum of every applied step is compared: drift is an error that shows both.
    """
    with psycopg.connect(database) as conn:
        conn.execute(
            "update forebay.schema_migration set checksum = repeat('0', 64) where version = 1"
        )

    with pytest.raises(SchemaError) as caught:
        migrate(database)

    assert "migration 1" in caught.value.message
    assert "0" * 64 in str(caught.value.detail)
    assert migrations()[0].checksum in str(caught.value.detail)


def test_a_schema_of_unknown_origin_is_not_touched(empty_database):
    """
    A schema named forebay without records may be anybody's.
    """
    with psycopg.connect(empty_database) as conn:
        conn.execute("create schema forebay")

    with pytest.raises(SchemaError, match="records no migration"):
        migrate(empty_database)


@pytest.mark.slow
def test_the_script_and_the_migrator_make_the_same_schema(
    server, empty_database, template, tmp_path
):
    """
    ``psql`` running what ``forebay sql`` prints ends in the same catalog, grants included, and the
    migrator finds nothing to do afterwards.
    """
    script = tmp_path / "forebay.sql"
    script.write_text(migration_sql(), encoding="utf-8")
    subprocess.run(
        [
            server.binaries.program("psql"),
            "-qX",
            "-v",
            "ON_ERROR_STOP=1",
            "-f",
            script,
            empty_database,
        ],
        check=True,
        capture_output=True,
    )

    assert catalog(empty_database) == catalog(server.dsn(template))
    assert recorded(empty_database) == recorded(server.dsn(template))
    assert migrate(empty_database) == []


def test_the_script_for_an_upgrade_runs_in_the_tools_own_transaction(database, one_more):
    """
    Without ``begin`` and ``commit`` it is part of what Alembic has open, and sets nothing for good.
    """
    with psycopg.connect(database) as conn:
        before = conn.execute("show search_path").fetchone()
        conn.execute(migration_sql(one_more.version - 1, transaction=False))
        assert conn.execute("show search_path").fetchone() == before
        conn.rollback()
        assert pending_migrations(conn) == [one_more]
        conn.execute(migration_sql(one_more.version - 1, transaction=False))
        conn.commit()
        assert pending_migrations(conn) == []


def test_the_script_refuses_a_database_at_another_version(database, empty_database, one_more):
    """
    A script for version 0 does nothing to an installed schema, and an upgrade nothing without one.
    """
    with psycopg.connect(database, autocommit=True) as conn:
        with pytest.raises(psycopg.DatabaseError) as caught:
            conn.execute(migration_sql(0))
        assert caught.value.sqlstate == "JQ020"
    with (
        psycopg.connect(empty_database, autocommit=True) as conn,
        pytest.raises(psycopg.errors.UndefinedTable),
    ):
        conn.execute(migration_sql(one_more.version - 1))


def test_there_is_no_script_for_a_version_that_never_was():
    """
    A version out of range is a mistake, not an empty script; the newest one has nothing to do.
    """
    with pytest.raises(ConfigError):
        migration_sql(latest_version() + 1)
    assert "Nothing to do" in migration_sql(latest_version())


@pytest.mark.slow
def test_a_connection_in_a_transaction_keeps_the_decision(empty_database):
    """
    The migrations become part of the caller's transaction, who may still roll it back.
    """
    with psycopg.connect(empty_database) as conn:
        conn.execute("select 1")
        assert migrate(conn) == list(migrations())
        conn.rollback()
        assert pending_migrations(conn) == list(migrations())


def test_a_transaction_with_an_old_snapshot_is_refused(empty_database):
    """
    It could not see what another migrator did while it waited.
    """
    with psycopg.connect(empty_database) as conn:
        conn.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        conn.execute("select 1")
        with pytest.raises(TransactionStateError):
            migrate(conn)


def test_what_is_no_address_and_no_connection_is_refused():
    """
    An asynchronous connection, for example, cannot be used here.
    """
    with pytest.raises(WrongConnection):
        migrate(42)


def test_a_database_without_the_schema_says_so(empty_database):
    """
    A call of the library there is no syntax error but the advice to migrate.
    """
    with psycopg.connect(empty_database) as conn, pytest.raises(SchemaError) as caught:
        run(conn, schema_version())
    assert caught.value.found is None
    assert "forebay migrate" in str(caught.value.hint)


@pytest.mark.parametrize("found", [None, latest_version() - 1, latest_version() + 1])
def test_a_worker_refuses_a_schema_of_another_version(found):
    """
    Not installed, too old and too new are told apart by the versions in the error.
    """
    with pytest.raises(SchemaError) as caught:
        require_version(found)
    assert (caught.value.found, caught.value.needed) == (found, latest_version())
    require_version(latest_version())
    require_version(latest_version() + 1, newer_is_fine=True)


def test_every_error_of_migrating_is_ours_or_the_drivers():
    """
    A server that is not there is reported as unavailable, not as an exception of the driver.
    """
    with pytest.raises(ForebayError) as caught:
        migrate("host=/nonexistent dbname=none")
    assert isinstance(caught.value, DatabaseUnavailable)
