"""Flag sequences of known lanes: they save the look into the registry, and never name a lane
that readers could not find.

Invariant "known is committed": a flag sequence names a lane only after its row in the registry was
committed. Each way to break it has a mutant without the guard, in which a committed job is found by
nobody.
"""

import psycopg
import pytest

from tests.support.engine import Reader, connect, enqueue, lane_of, one
from tests.support.fix_db import make_migrated
from tests.support.mutant import break_function, violation

#: Each enqueue into a lane that is noted and not known makes it known with a chance of 3 %: less
#: than one in 10^13 is not.
OFTEN = 1000


def is_known(conn, queue: str = "default") -> bool:
    return one(conn, "select forebay._is_known(%s)", lane_of(queue, conn))


def make_known(conn, queue: str = "default") -> None:
    enqueue(conn, queue=queue)
    conn.execute(
        "select forebay.enqueue('work', '{}', %s) from generate_series(1, %s)", [queue, OFTEN]
    )
    assert is_known(conn, queue)


def assert_found(dsn: str, job: int) -> None:
    with Reader(dsn) as reader:
        assert job in [i for batch in reader.claim_all() for i in batch.job_ids]


def without_the_age(dsn: str) -> None:
    """Take a row of the registry for committed because it is seen."""
    break_function(dsn, "_is_recorded", ("age(l.xmin) > 0 and s.is_seen", "s.is_seen"))


def test_a_lane_in_use_becomes_known_and_the_registry_is_not_read(database, conn):
    """
    A session that only enqueues into a known lane does not touch the registry.
    """
    enqueue(conn)
    assert not is_known(conn)
    make_known(conn)
    with connect(database) as producer, producer.transaction():
        enqueue(producer)
        read = (
            "select pg_stat_get_xact_numscans(oid) from pg_class where relname in ('lane', "
            "'lane_by_id')"
        )
        assert producer.execute(read).fetchall() == [(0,), (0,)]


def test_a_lane_that_the_own_transaction_noted_is_not_known(database, conn):
    """
    It becomes known when others see it; when the transaction is rolled back, whoever comes next
    notes it again.
    """
    with connect(database) as producer:
        with producer.transaction(force_rollback=True):
            for _ in range(OFTEN):
                enqueue(producer)
            assert not is_known(conn)
        job = enqueue(producer)
    assert_found(database, job)


def test_a_lane_that_the_own_transaction_noted_is_not_known_breaks_without_its_age(database, conn):
    """Without the look at the row's age the flag sequence outlives the row."""
    without_the_age(database)
    with violation():
        test_a_lane_that_the_own_transaction_noted_is_not_known(database, conn)


def test_a_lane_that_a_savepoint_noted_is_not_known(database, conn):
    """
    Its row goes with the savepoint, and the transaction commits a job of the lane.
    """
    with connect(database) as producer, producer.transaction():
        producer.execute("create temporary table first_write ()")
        with producer.transaction(force_rollback=True):
            for _ in range(OFTEN):
                enqueue(producer)
        job = enqueue(producer)
    assert_found(database, job)


def test_a_lane_that_a_savepoint_noted_is_not_known_breaks_without_its_age(database, conn):
    """Without the look at the row's age the flag sequence outlives the row."""
    without_the_age(database)
    with violation():
        test_a_lane_that_a_savepoint_noted_is_not_known(database, conn)


def test_a_lane_that_a_prepared_transaction_noted_is_not_known(database, conn):
    """
    The transaction may yet be rolled back, by somebody else.
    """
    with psycopg.connect(database) as producer:
        for _ in range(OFTEN):
            enqueue(producer)
        producer.execute("prepare transaction 'noted'")
        producer.rollback()
        assert not is_known(conn)
        for _ in range(OFTEN):
            enqueue(producer)
        producer.rollback()
        conn.execute("rollback prepared 'noted'")
        job = enqueue(producer)
        producer.commit()
    assert_found(database, job)


def test_an_old_snapshot_that_does_not_see_the_row_enqueues_into_the_known_lane(database, conn):
    """
    A transaction that began before the lane was noted: its job is found, and no second row is
    noted.
    """
    with psycopg.connect(database) as producer:
        producer.execute("set transaction isolation level repeatable read")
        producer.execute("select 1 from forebay.lane")
        make_known(conn)
        job = enqueue(producer)
        producer.commit()
    assert (
        one(conn, "select count(*) from forebay.lane where lane = %s", lane_of("default", conn))
        == 1
    )
    assert_found(database, job)


def test_an_emptied_registry_makes_what_was_known_unknown(database, conn):
    """
    Tests of applications truncate all tables they find.
    """
    make_known(conn)
    conn.execute("truncate forebay.lane")
    assert not is_known(conn)
    assert_found(database, enqueue(conn))


@pytest.mark.slow
def test_a_flag_sequence_of_another_database_says_nothing(server, database, conn):
    """
    A dump takes sequences as they are when it comes to them, and the registry as it was when it
    began: a lane that was noted meanwhile is in a flag sequence and not in the registry.
    """
    make_known(conn)
    with connect(server.dsn(make_migrated(server, "restored"))) as restored:
        for number in range(16):
            value = one(conn, f"select pg_sequence_last_value('forebay.known_{number}')")
            if value is not None:
                restored.execute(f"select setval('forebay.known_{number}', %s)", [value])
        assert not is_known(restored)
        job = enqueue(restored)
        assert_found(restored.info.dsn, job)


@pytest.mark.slow
def test_a_restarted_server_knows_no_lane_nor_its_cluster(own_server):
    """
    What stands in a data folder may be a restored one. An idle poll finds out that the schema is at
    home.
    """
    dsn = own_server.dsn(make_migrated(own_server, "known"))
    with Reader(dsn) as reader:
        make_known(reader.conn)
        assert one(reader.conn, "select forebay._is_same_cluster()")
    own_server.stop()
    own_server.start()
    with connect(dsn) as conn:
        assert not is_known(conn)
        assert not one(conn, "select forebay._is_same_cluster()")
        make_known(conn)
        conn.execute("select * from forebay.ready_v1('{}', 1000)")
        assert one(conn, "select forebay._is_same_cluster()")


def test_two_lanes_of_one_flag_sequence_do_not_fight_for_it(conn):
    """
    The flag sequence changes hands now and then, and not at every job.
    """
    first = lane_of("default", conn)
    second = one(
        conn,
        "select q from generate_series(1, 1000) i, lateral (select 'other_' || i as q) o"
        " where forebay._lane_flag(forebay._lane_id(q, 100, 0)) = forebay._lane_flag(%s) limit 1",
        first,
    )
    enqueue(conn)
    enqueue(conn, queue=second)
    changes, before = 0, None
    for _ in range(200):
        for queue in ("default", second):
            enqueue(conn, queue=queue)
        now = is_known(conn), is_known(conn, second)
        changes += before is not None and now != before
        before = now
        assert now != (True, True)
    assert changes < 50


def test_limits_and_shards_are_read_in_a_known_lane(conn):
    """
    What is said of a queue later holds for the next job.
    """
    make_known(conn)
    conn.execute("select forebay.limit_queue('default', max_waiting => %s)", [OFTEN])
    with pytest.raises(psycopg.errors.ConfigurationLimitExceeded):
        for _ in range(OFTEN):
            enqueue(conn)
    conn.execute("select forebay.limit_queue('default', remove => '{all}')")
    conn.execute("select forebay.shard_queue('default', 4)")
    for _ in range(200):
        enqueue(conn)
    assert one(conn, "select count(distinct lane) from forebay.lane where queue = 'default'") == 4
