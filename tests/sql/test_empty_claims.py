"""What a poll reports, a claim clears, even where it finds no job: otherwise workers poll and
claim without an end.
"""

from contextlib import closing

import psycopg
import pytest

from tests.support.engine import Reader, connect, enqueue, one, small_segments
from tests.support.mutant import break_function

KEYS = [
    pytest.param({}, id="plain"),
    pytest.param({"ordering_key": "k"}, id="ordering key"),
    pytest.param({"limit_key": "k"}, id="limit key"),
]


def polls_until_idle(reader: Reader) -> int:
    """Return how many empty claims it takes until no lane is ready; 10 when they do not end."""
    for polls in range(10):
        lanes = reader.ready()
        if not lanes:
            return polls
        for lane in lanes:
            assert reader.claim(100, lane["lane"]).jobs == []
    return 10


def seal_two(conn: psycopg.Connection, rows: int = 300) -> None:
    """Fill segments of a hundred rows with jobs of another queue, and seal them."""
    for _ in range(rows):
        enqueue(conn, queue="other")
    assert one(conn, "select forebay.seal_v1()") >= 2


def a_late_rollback(dsn: str, keys: dict[str, str]) -> int:
    """The cursor lists a transaction of an old segment that has been rolled back since."""
    reader = Reader(dsn)
    with connect(dsn) as conn, psycopg.connect(dsn) as writer, closing(reader.conn):
        small_segments(conn, rows=100, reserve=1000)
        enqueue(writer, **keys)
        enqueue(conn, **keys)
        batch = reader.claim_ready(100)
        assert len(batch.jobs) == 1
        reader.finish(batch)
        seal_two(conn)
        seal_two(conn)
        assert polls_until_idle(reader) < 10
        writer.rollback()
        return polls_until_idle(reader)


def an_open_transaction(dsn: str, keys: dict[str, str]) -> int:
    """The one transaction between the cursor and the seals is open."""
    reader = Reader(dsn)
    with connect(dsn) as conn, psycopg.connect(dsn) as writer, closing(reader.conn):
        small_segments(conn, rows=100, reserve=1000)
        enqueue(conn, **keys)
        batch = reader.claim_ready(100)
        assert len(batch.jobs) == 1
        reader.finish(batch)
        for _ in range(150):
            enqueue(writer, queue="other")
        assert one(conn, "select forebay.seal_v1()") >= 1
        for _ in range(60):
            enqueue(writer, queue="other")
        one(conn, "select forebay.seal_v1()")
        return polls_until_idle(reader)


@pytest.mark.parametrize("keys", KEYS)
@pytest.mark.parametrize("happens", [a_late_rollback, an_open_transaction])
def test_polls_end(database, keys, happens):
    """A poll does not report a cursor that no claim would move."""
    assert happens(database, keys) < 10


@pytest.mark.slow
@pytest.mark.parametrize("keys", [KEYS[0], KEYS[2]])
def test_polls_do_not_end_without_the_guard(database, keys):
    """The control. A claim of ordering keys reads old segments, and so its cursor moves anyway."""
    break_function(database, "ready_v1", ("pg_xact_status(x) is distinct from 'aborted'", "true"))
    assert a_late_rollback(database, keys) == 10


def emptied_segments(dsn: str, keys: dict[str, str]) -> int:
    """The queue is quiet while the numbers of other queues fill segments, which are emptied."""
    reader = Reader(dsn)
    with connect(dsn) as conn, closing(reader.conn):
        small_segments(conn, rows=100, reserve=1000)
        one(conn, "select forebay.configure('retention_days', 0)")
        enqueue(conn, **keys)
        batch = reader.claim_ready(100)
        assert len(batch.jobs) == 1
        reader.finish(batch)
        assert polls_until_idle(reader) < 10
        one(conn, "select setval('forebay.log_seq', nextval('forebay.log_seq') + 350)")
        assert one(conn, "select forebay.seal_v1()") >= 2
        while one(conn, "select emptied from forebay.retain_v1()") is not None:
            pass
        return polls_until_idle(reader)


@pytest.mark.parametrize("keys", KEYS)
def test_polls_end_where_nothing_is_left_to_read(database, keys):
    """A cursor that is far behind moves, even if all segments that it would read are empty."""
    assert emptied_segments(database, keys) < 10
