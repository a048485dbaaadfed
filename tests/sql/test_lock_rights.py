"""Locks that any role may take: none of them stops a claim, a maintenance task, a unique join or
a migration.
"""

import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta

import psycopg
import pytest

from forebay.embedded import EmbeddedServer
from forebay.upgrade import _stepping as stepping
from forebay.upgrade.migrate import migrate, upgrade
from tests.sql.test_roles import acting_as
from tests.sql.test_unique import ask
from tests.support.engine import Reader, connect, enqueue, one, shift_clock, small_segments, trim
from tests.support.least_privilege import as_login

pytestmark = pytest.mark.direct

#: "fore" and "bay" in ASCII: the name of the library as two integers, and as one.
NAME = (0x666F7265, 0x626179)
FIRST_KEYS = range(41)


@contextmanager
def every_advisory_lock(dsn: str, *numbers: int) -> Iterator[psycopg.Connection]:
    """A role that may only log in holds each advisory lock that could be meant: of tasks, lanes,
    groups and migrators.
    """
    with acting_as(dsn) as stranger:
        classes = [one(stranger, "select 'forebay'::regnamespace::oid::int")]
        classes += [NAME[0], zlib.crc32(b"forebay") >> 1, 0, 1]
        hashed = (
            "select hashint8(n) from unnest(%s::bigint[]) n union select hashint8(m # n)"
            " from unnest(%s::bigint[]) m, unnest(%s::bigint[]) n"
            " union select hashint8(hashtextextended(w, n))"
            " from unnest('{limiter,keys}'::text[]) w, unnest(%s::bigint[]) n"
        )
        keys = {key for (key,) in stranger.execute(hashed, [list(numbers)] * 4)}
        keys |= {*FIRST_KEYS, NAME[1]}
        held = stranger.execute(
            "select count(pg_advisory_lock(c, k)) from unnest(%s::int[]) c, unnest(%s::int[]) k",
            [classes, sorted(keys)],
        )
        assert held.fetchone() == (len(classes) * len(keys),)
        wide = {
            *FIRST_KEYS,
            *numbers,
            *keys,
            *(c << 32 | k & 0xFFFFFFFF for c in classes for k in keys),
        }
        stranger.execute(
            "select count(pg_advisory_lock(k)) from unnest(%s::bigint[]) k", [sorted(wide)]
        )
        yield stranger


@pytest.fixture
def conn(database):
    with connect(database) as conn:
        conn.execute("set lock_timeout = '2s'")
        yield conn


def lanes(conn: psycopg.Connection) -> list[int]:
    return [lane for (lane,) in conn.execute("select distinct lane from forebay.lane")]


def test_an_advisory_lock_of_a_stranger_stops_no_claim(database, conn):
    """Plain, keyed and limited lanes.

    The settlement of keyed jobs waits no more than the claims do.
    """
    conn.execute("select forebay.limit_queue('limited', concurrency => 10)")
    for queue in ("plain", "keyed", "limited"):
        for _ in range(3):
            enqueue(conn, queue=queue, **({"ordering_key": "k"} if queue == "keyed" else {}))
    enqueue(conn, queue="limited", limit_key="tenant")
    readers = [Reader(database, queue) for queue in ("plain", "keyed", "limited")]
    groups = [reader.group_id for reader in readers]
    with every_advisory_lock(database, *groups, *lanes(conn)):
        for reader, jobs in zip(readers, (3, 3, 4), strict=True):
            with reader:
                reader.conn.execute("set lock_timeout = '2s'")
                batches = reader.claim_all()
                assert sum(len(batch.jobs) for batch in batches) == jobs
                for batch in batches:
                    reader.finish(batch)


def test_an_advisory_lock_of_a_stranger_stops_no_maintenance(database, conn):
    """Each task returns what it has done.

    While another session has its lock it would return nothing.
    """
    small_segments(conn, rows=300)
    for _ in range(310):
        enqueue(conn, queue="q")
    enqueue(conn, queue="q", delay="1 millisecond")
    conn.execute("select forebay.configure('retention_days', 1)")
    with Reader(database, "q") as reader:
        assert one(conn, "select forebay.promote_v1()") == 1
        for batch in reader.claim_all():
            reader.finish(batch)
        enqueue(conn, queue="q", delay="1 millisecond")
        enqueue(conn, queue="q", expires_at=datetime.now(UTC) + timedelta(hours=1))
        conn.execute("select forebay.configure('reserve_rows', 10000)")
        with every_advisory_lock(database, reader.group_id, *lanes(conn)):
            assert one(conn, "select forebay.extend_v1()") > 0
            assert one(conn, "select forebay.seal_v1()") > 0
            assert one(conn, "select forebay.promote_v1()") == 1
            assert one(conn, "select forebay.lead_v1(1, array[0, %s], 5)", reader.group_id) == [
                0,
                reader.group_id,
            ]
            one(conn, "select forebay.summarize_v1()")
            assert sampled(conn)
            shift_clock(conn, 40 * 86400)
            assert one(conn, "select expired from forebay.sweep_v1()") > 0
            assert trim(conn) > 0
            for batch in reader.claim_all():
                reader.finish(batch)
            assert one(conn, "select emptied from forebay.retain_v1()") is not None


def sampled(conn: psycopg.Connection) -> bool:
    return one(conn, "select forebay.sample_mirror('m', 'q', 'default', 60, '{}', 100)")


def test_an_advisory_lock_of_a_stranger_stops_no_unique_join(database, conn):
    """The claim of a job that an open transaction has joined makes its successor."""
    made = ask(conn, {"coalesce": "k"})
    with psycopg.connect(database) as late, Reader(database) as reader:
        assert ask(late, {"coalesce": "k"}).job_id == made.job_id
        with every_advisory_lock(database, reader.group_id, *lanes(conn)):
            reader.conn.execute("set lock_timeout = '2s'")
            assert reader.claim(10).job_ids == [made.job_id]


@pytest.mark.slow
def test_an_advisory_lock_of_a_stranger_stops_no_migration(database, conn, release, monkeypatch):
    """Neither alone nor in a transaction of the caller."""
    owner = one(conn, "select nspowner::regrole::text from pg_namespace where nspname = 'forebay'")
    as_owner = as_login(database, owner)
    monkeypatch.setattr(stepping, "MIGRATOR_WAIT_SECONDS", 2)
    first, second = release(
        ("one", "-- locks: lane\nalter table forebay.lane add column one integer;"),
        ("two", "alter table forebay.lane add column two integer;"),
    )
    with every_advisory_lock(database):
        assert upgrade(as_owner).applied == [first, second]
        *_, third = release(("three", "alter table forebay.lane add column three integer;"))
        with psycopg.connect(as_owner) as caller:
            caller.execute("set lock_timeout = '2s'")
            assert migrate(caller) == [third]


@pytest.mark.slow
def test_an_advisory_lock_of_a_stranger_stops_no_installation(
    empty_database, monkeypatch, server: EmbeddedServer
):
    """In a database without the schema."""
    monkeypatch.setattr(stepping, "MIGRATOR_WAIT_SECONDS", 2)
    with psycopg.connect(empty_database) as stranger:
        stranger.execute("create role only_login login")
        stranger.execute("set local role only_login")
        stranger.execute(f"select pg_advisory_lock({NAME[0]}, {NAME[1]})")
        stranger.rollback()
        assert [step.version for step in migrate(empty_database)] == [1]


def test_a_stranger_cannot_take_our_locks(database, conn):
    """The right to lock is the right to write: neither PUBLIC nor a role of ours has it."""
    names = [
        name
        for (name,) in conn.execute(
            "select relname::text from pg_class where relnamespace = 'forebay'::regnamespace"
            " and relname like 'lock\\_%'"
        )
    ]
    assert len(names) > 100
    for roles in ((), ("forebay_producer", "forebay_worker", "forebay_operator", "forebay_reader")):
        with acting_as(database, *roles) as stranger:
            for name in names:
                for mode in ("row exclusive", "share update exclusive", "share row exclusive"):
                    with (
                        pytest.raises(psycopg.errors.InsufficientPrivilege),
                        stranger.transaction(),
                    ):
                        stranger.execute(f"lock table only forebay.{name} in {mode} mode")


def test_no_function_of_ours_takes_an_advisory_lock(conn):
    """Any role could hold it."""
    assert not conn.execute(
        "select p.proname from pg_proc p where p.pronamespace = 'forebay'::regnamespace"
        " and p.prosrc ~ 'advisory_(xact_)?lock'"
    ).fetchall()


def test_a_lock_draws_no_transaction_id_and_leaves_no_row(database, conn):
    """An idle task, and a claim that finds nothing, cost the cluster no transaction id.

    The lock tables have no file.
    """
    with Reader(database) as reader:
        enqueue(conn)
        reader.finish(reader.claim(10))
        reader.claim(10)
        next_xid = "select pg_snapshot_xmax(pg_current_snapshot())::text::bigint"
        before = one(conn, next_xid)
        for _ in range(20):
            assert reader.claim(10).jobs == []
            for task in ("promote_v1", "seal_v1", "extend_v1", "retain_v1", "sweep_v1"):
                one(conn, f"select forebay.{task}()")
        # The server may draw a few itself, for autovacuum; each of these calls would draw twenty.
        assert one(conn, next_xid) - before < 20
    assert one(
        conn,
        "select bool_and(relfilenode = 0 and relfrozenxid = '0') from pg_class"
        " where relnamespace = 'forebay'::regnamespace and relname like 'lock\\_%'",
    )
