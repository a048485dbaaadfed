"""Other people's sessions: they may delay the freeing of disk, and nothing else."""

import threading
from contextlib import ExitStack, contextmanager

import psycopg
import pytest

from forebay.upgrade.migrate import migrate
from tests.support.engine import (
    Reader,
    connect,
    enqueue,
    enqueue_many,
    one,
    small_segments,
    sqlstate,
    state,
)
from tests.support.waiting import wait_for


@contextmanager
def idle_writer(dsn):
    """A producer that has enqueued into every kind of place and does not commit."""
    with psycopg.connect(dsn) as conn:
        enqueue(conn)
        enqueue(conn, delay="1 hour")
        enqueue(conn, priority=7)
        conn.execute("select forebay.cancel((select last_value from forebay.log_seq))")
        yield


@contextmanager
def first_user_of_a_lane(dsn):
    """A producer that was the first of a queue and a priority and does not commit."""
    with psycopg.connect(dsn) as conn:
        enqueue(conn, queue="brand_new")
        enqueue(conn, priority=55)
        yield


@contextmanager
def dump(dsn):
    """What pg_dump holds: a snapshot, and ACCESS SHARE on everything."""
    with psycopg.connect(dsn) as conn:
        conn.execute("set transaction isolation level repeatable read, read only")
        tables = conn.execute(
            "select format('%I.%I', schemaname, tablename) from pg_tables"
            " where schemaname = 'forebay'"
        ).fetchall()
        for (table,) in tables:
            conn.execute(f"lock table only {table} in access share mode")
        yield


@contextmanager
def old_snapshot(dsn):
    """A report that has read the log and keeps its snapshot."""
    with psycopg.connect(dsn) as conn:
        conn.execute("set transaction isolation level repeatable read")
        conn.execute("select count(*) from forebay.log").fetchone()
        yield


@contextmanager
def forgotten_prepared_transaction(dsn):
    """A prepared transaction with jobs in it that nobody finishes."""
    with psycopg.connect(dsn) as conn:
        enqueue(conn)
        enqueue(conn, delay="1 hour")
        conn.execute("prepare transaction 'forgotten'")
        conn.rollback()
        try:
            yield
        finally:
            conn.autocommit = True
            conn.execute("rollback prepared 'forgotten'")


@contextmanager
def open_analysis(dsn):
    """An ANALYZE of the log in a transaction that stays open: SHARE UPDATE EXCLUSIVE on it."""
    with psycopg.connect(dsn) as conn:
        conn.execute("analyze forebay.log")
        yield


STRANGERS = [
    idle_writer,
    first_user_of_a_lane,
    dump,
    old_snapshot,
    forgotten_prepared_transaction,
    open_analysis,
]


class Watch:
    """Looks all the time whether one of some sessions waits for a lock of another session."""

    def __init__(self, dsn: str, *watched: psycopg.Connection) -> None:
        self.seen: list[tuple] = []
        self._pids = [conn.info.backend_pid for conn in watched]
        self._conn = connect(dsn)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._look)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._stop.set()
        self._thread.join()
        self._conn.close()

    def _look(self) -> None:
        while not self._stop.is_set():
            self.seen += self._conn.execute(
                "select pid, pg_blocking_pids(pid), query from pg_stat_activity"
                " where pid = any (%s) and cardinality(pg_blocking_pids(pid)) > 0",
                [self._pids],
            ).fetchall()


@pytest.mark.slow
@pytest.mark.parametrize(
    "strangers",
    [*(pytest.param([s], marks=pytest.mark.nightly) for s in STRANGERS), STRANGERS],
    ids=lambda s: "+".join(x.__name__ for x in s),
)
def test_no_strangers_stall(database, strangers):
    """
    Enqueues, claims, settlements, promotions, revocations and seals go on beside any foreign
    session, and beside all of them at once, without waiting for one even briefly.
    """
    with ExitStack() as stack:
        conn = stack.enter_context(connect(database))
        small_segments(conn, rows=100, reserve=2000)
        enqueue(conn)
        reader = stack.enter_context(Reader(database))
        for batch in reader.claim_all():
            reader.finish(batch)
        for stranger in strangers:
            stack.enter_context(stranger(database))
        for session in (conn, reader.conn):
            session.execute("set lock_timeout = '50ms'")
        watch = stack.enter_context(Watch(database, conn, reader.conn))
        ids = []
        for _ in range(12):
            ids += [enqueue(conn) for _ in range(10)]
            ids += enqueue_many(conn, [{"kind": "work"} for _ in range(15)])
            ids.append(enqueue(conn, priority=55))
            soon = enqueue(conn, delay="1 microsecond")
            ids.append(soon)
            assert one(conn, "select forebay.promote_v1()") == 1
            one(conn, "select forebay.seal_v1()")
            batch = reader.claim(1000)
            ended = [{"offset": 1, "outcome": "retried"}]
            assert reader.settle(batch.claim_no, ended=ended) == "settled"
            assert reader.revoked_by(conn) == len(batch.jobs) - 1
            reader.open_lease()
        conn.execute("select forebay.cancel(%s)", [ids[0]])
        conn.execute("select forebay.heartbeat_v1(array[%s::bigint])", [reader.lease_id])
        for batch in reader.claim_all():
            reader.finish(batch)
        assert {state(conn, i) for i in ids[1::25]} == {"done"}
        assert watch.seen == []


@pytest.mark.parametrize("stranger", [s for s in STRANGERS if s is not open_analysis])
def test_room_to_write(database, stranger):
    """
    Segments are made beside any foreign session, so that enqueues always find room; an open
    ANALYZE of the log is waited for briefly and stalls nobody.
    """
    with connect(database) as conn, connect(database) as producer:
        small_segments(conn, rows=100, reserve=1000)
        producer.execute("set lock_timeout = '50ms'")
        with stranger(database):
            conn.execute("set lock_timeout = '500ms'")
            for _ in range(5):
                ids = enqueue_many(producer, [{"kind": "work"} for _ in range(150)])
                assert one(conn, "select forebay.extend_v1()") > 0
                assert enqueue(producer) > ids[-1]


@pytest.mark.slow
def test_room_to_write_without_any_maintenance(empty_database):
    """With nothing but producers, 64 million numbers find room: the schema is made with them."""
    migrate(empty_database)
    with connect(empty_database) as conn:
        assert one(conn, "select max(hi) - 1 from forebay.segment") == 64_000_000
        conn.execute("select setval('forebay.log_seq', 63999990)")
        with Reader(empty_database) as reader:
            ids = [enqueue(conn) for _ in range(10)]
            assert ids[-1] == 64_000_000
            assert reader.claim().job_ids == ids


@pytest.mark.slow
def test_making_segments_holds_up_nobody(database):
    """While segments are made in a transaction that stays open, enqueues and claims go on."""
    with (
        connect(database) as conn,
        psycopg.connect(database) as maker,
        Reader(database) as reader,
    ):
        small_segments(conn, rows=100, reserve=1000)
        conn.execute("select forebay.configure('reserve_rows', 3000)")
        assert one(maker, "select forebay.extend_v1()") > 0
        for session in (conn, reader.conn):
            session.execute("set lock_timeout = '50ms'")
        ids = [enqueue(conn) for _ in range(30)]
        assert reader.claim(100).job_ids == ids
        maker.rollback()
        assert one(conn, "select forebay.extend_v1()") > 0


@pytest.mark.slow
def test_emptying_a_segment_waits_briefly_for_its_readers_and_holds_up_nobody(database):
    """A report that reads an old segment delays its emptying; producers and claims go on."""
    with connect(database) as conn, Reader(database) as reader:
        small_segments(conn, rows=100, reserve=1000)
        conn.execute("update forebay.segment set removed_at = now() where hi - lo > 100")
        one(conn, "select forebay.configure('retention_days', 0)")
        for _ in range(3):
            enqueue_many(conn, [{"kind": "work"} for _ in range(100)])
            for batch in reader.claim_all():
                reader.finish(batch)
            one(conn, "select forebay.seal_v1()")
        reader.claim_all()
        with old_snapshot(database), connect(database) as maintenance:
            for session in (conn, reader.conn):
                session.execute("set lock_timeout = '50ms'")
            with Watch(database, conn, reader.conn) as watch:
                thread = threading.Thread(
                    target=lambda: [
                        sqlstate(maintenance, "select emptied from forebay.retain_v1()")
                        for _ in range(3)
                    ]
                )
                thread.start()
                served = 0
                while thread.is_alive():
                    enqueue(conn)
                    served += len(reader.claim().jobs)
                thread.join()
                assert served > 0
                assert watch.seen == []
            assert (
                one(
                    conn,
                    "select count(*) from forebay.segment where removed_at is not null"
                    " and hi - lo = 100",
                )
                == 0
            )
        wait_for(lambda: one(conn, "select emptied from forebay.retain_v1()") is not None)


@pytest.mark.slow
def test_a_full_notification_queue_does_not_fail_an_enqueue(own_server, tmp_path):
    """
    Somebody listens in an idle transaction until the queue of notifications is full; workers sleep,
    so that an enqueue would notify. Enqueues still succeed, and the job is found by polling.
    """
    from tests.support.fix_db import make_migrated

    dsn = own_server.dsn(make_migrated(own_server, "notify"))
    with connect(dsn) as conn:
        if sqlstate(conn, "alter system set max_notify_queue_pages = 64"):
            pytest.skip("before PostgreSQL 17 the queue takes 8 GB to fill")
    own_server.stop()
    own_server.start()
    with connect(dsn) as conn, psycopg.connect(dsn) as listener, Reader(dsn) as reader:
        listener.execute("listen anything")
        listener.commit()
        listener.execute("select 1")
        filler = (
            "select pg_notify('anything', repeat('x', 7000) || i) from generate_series(1, 20) i"
        )
        while sqlstate(conn, filler) is None:
            pass
        assert one(conn, "select pg_notification_queue_usage()") > 0.9
        conn.execute("select * from forebay.ready_v1(%s::bigint[], 60000)", [[reader.group_id]])
        assert (
            one(conn, "select max(last_value) from pg_sequences where sequencename ~ 'wakeup'") > 0
        )
        job = enqueue(conn)
        assert reader.claim_ready().job_ids == [job]


def test_a_producer_that_prepares_its_transaction_does_not_fail_because_workers_sleep(database):
    """
    A transaction that has notified cannot be prepared. Where transactions can be prepared the
    wake-up is silent unless the parameter forebay.wakeup says otherwise.
    """
    with connect(database) as conn, Reader(database) as reader, psycopg.connect(database) as caller:
        conn.execute("select * from forebay.ready_v1(%s::bigint[], 60000)", [[reader.group_id]])
        job = enqueue(caller)
        caller.execute("prepare transaction 'two phases'")
        caller.rollback()
        conn.execute("commit prepared 'two phases'")
        assert reader.claim_ready().job_ids == [job]

        caller.execute("select set_config('forebay.wakeup', 'on', false)")
        conn.execute("listen forebay_wakeup")
        enqueue(caller)
        caller.commit()
        assert [n.payload for n in conn.notifies(timeout=5, stop_after=1)] == ["default"]
