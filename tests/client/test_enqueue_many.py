"""Bulk enqueuing: any number of jobs, bounded memory, one transaction."""

import tracemalloc
from dataclasses import dataclass
from resource import RUSAGE_SELF, getrusage

import psycopg
import pytest

from forebay import App, Client, Job, Once
from forebay.errors import InvalidJob, PayloadTooLarge
from forebay.ops.enqueue import CHUNK_BYTES, Call, Chunks

app = App()


@app.job(queue="mail")
def send(user_id: int, locale: str = "en") -> None: ...


@app.job(expires_in=60)
def brief(user_id: int) -> None: ...


@dataclass
class Row:
    document_id: int


@app.batch_job(queue="search", size=500)
def index(rows: list[Row]) -> None: ...


@app.batch_job(queue="free")
def free(jobs: list[Job]) -> None: ...


@pytest.fixture
def conn(database):
    with psycopg.connect(database) as conn:
        yield conn


def args_of(conn):
    return [job.args for job in reversed(Client().jobs(conn=conn, limit=1000))]


def count(conn):
    return conn.execute("select count(*) from forebay.log").fetchone()[0]


def _each(rows):
    for (number,) in rows:
        yield {"user_id": number}


def test_items_may_be_written_in_several_ways(conn):
    """
    A call, a dict, a tuple and a single value are the same job.
    """
    items = [send.call(1), {"user_id": 2}, (3, "it"), 4]
    assert send.enqueue_many(conn, items) == 4
    assert args_of(conn) == [
        {"user_id": 1},
        {"user_id": 2},
        {"user_id": 3, "locale": "it"},
        {"user_id": 4},
    ]


def test_items_of_batch_handlers_are_their_values(conn):
    """
    A batch handler of rows takes rows, one of free jobs takes arguments by name.
    """
    index.enqueue_many(conn, [Row(1), {"document_id": 2}])
    free.enqueue_many(conn, [{"anything": True}])
    assert args_of(conn) == [{"document_id": 1}, {"document_id": 2}, {"anything": True}]


def test_calls_of_several_kinds_and_options_keep_their_order(conn):
    """
    One bulk may mix kinds, queues, priorities and delays; jobs get their numbers in its order.
    """
    calls = [
        send.call(1),
        index.call(Row(2)),
        send.using(priority=1, tag="t", headers={"a": "b"}, correlation_id="c").call(3),
        send.using(delay=60).call(4),
        brief.call(5),
    ]
    assert app.enqueue_many(conn, calls, chunk=2) == 5
    newest_first = Client().jobs(conn=conn)
    assert [(job.kind, job.priority, job.tag, job.state) for job in reversed(newest_first)] == [
        ("send", 100, None, "ready"),
        ("index", 100, None, "ready"),
        ("send", 1, "t", "ready"),
        ("send", 100, None, "scheduled"),
        ("brief", 100, None, "ready"),
    ]
    third, last = newest_first[2], newest_first[0]
    assert (third.headers, third.correlation_id) == ({"a": "b"}, "c")
    assert 50 < (last.expires_at - last.enqueued_at).total_seconds() <= 60


@pytest.mark.slow
def test_a_generator_is_sent_in_chunks_and_nothing_is_kept(conn):
    """
    Ten thousand jobs from a generator take the memory of one chunk.
    """
    send.enqueue_many(conn, range(1000))
    tracemalloc.start()
    try:
        assert send.enqueue_many(conn, (n for n in range(10_000)), chunk=500) == 10_000
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert count(conn) == 11_000
    assert peak < 500_000


@pytest.mark.slow
@pytest.mark.nightly
def test_a_million_jobs_from_an_iterator(database, conn):
    """
    The same holds for a million: the process grows by some megabytes at most. They are all there
    after the commit and none before.
    """
    send.enqueue_many(conn, range(20_000))
    conn.rollback()
    before = getrusage(RUSAGE_SELF).ru_maxrss
    assert send.enqueue_many(conn, iter(range(1_000_000))) == 1_000_000
    grown_kilobytes = getrusage(RUSAGE_SELF).ru_maxrss - before
    with psycopg.connect(database) as other:
        assert count(other) == 0
        conn.commit()
        assert count(other) == 1_000_000
    assert grown_kilobytes < 16_000


@pytest.mark.parametrize("bad", [0, 3, 7], ids=["first", "second chunk", "last"])
def test_a_bad_item_is_named_by_its_place_in_the_whole(database, conn, bad):
    """
    The index counts over all items, and a rollback leaves nothing of the bulk.
    """
    items = [n if n != bad else "seven" for n in range(8)]
    with pytest.raises(InvalidJob) as caught:
        send.enqueue_many(conn, items, chunk=2)
    assert caught.value.index == bad
    assert caught.value.message.startswith(f"job {bad}: send: user_id ")
    written = bad - bad % 2
    assert count(conn) == written
    assert (f"{written} jobs" in caught.value.detail) if written else caught.value.detail is None
    conn.rollback()
    assert count(conn) == 0


def test_what_the_database_refuses_is_counted_over_the_whole_too(conn):
    """
    Its function counts within one chunk; the error counts from the start of the bulk.
    """
    conn.execute("select forebay.configure('args_bytes_max', 1024)")
    items = [(n, "x" * (2000 if n == 7 else 1)) for n in range(10)]
    with pytest.raises(PayloadTooLarge) as caught:
        send.enqueue_many(conn, items, chunk=3)
    assert caught.value.index == 7
    assert caught.value.message.startswith("job 7: ")


def test_an_exception_of_the_iterator_passes(conn):
    """
    What the caller's own generator raises is the caller's.
    """

    def items():
        yield 1
        raise LookupError("no more rows")

    with pytest.raises(LookupError, match="no more rows"):
        send.enqueue_many(conn, items())


def test_what_the_iterator_does_on_the_connection_comes_after_the_chunks_before_it(conn):
    """
    A generator inserts a row under a savepoint for each job, and undoes some of them: no chunk that
    was under way meanwhile is undone with it.
    """
    conn.execute("create table document (id int primary key check (id % 3 > 0))")

    def documents():
        for n in range(600):
            try:
                with conn.transaction():
                    conn.execute("insert into document values (%s)", [n])
            except psycopg.errors.CheckViolation:
                continue
            yield n

    assert send.enqueue_many(conn, documents(), chunk=5) == 400
    kept = conn.execute("select array_agg(id order by id) from document").fetchone()[0]
    assert len(kept) == 400
    enqueued = conn.execute("select array_agg(args -> 'user_id' order by seq) from forebay.log")
    assert enqueued.fetchone()[0] == kept


def test_of_two_errors_the_earlier_jobs_is_told(conn):
    """
    A chunk that the database refuses, while a later item is refused here or the iterator fails.
    """
    conn.execute("select forebay.configure('args_bytes_max', 1024)")
    conn.commit()
    large = (2, "x" * 2000)
    for later in (["seven"], (1 / 0 for _ in range(1))):

        def items(later=later):
            yield from [large, 1, 2]
            yield from later

        with pytest.raises(PayloadTooLarge, match=r"^job 0: "):
            send.enqueue_many(conn, items(), chunk=3)
        conn.rollback()
    assert send.enqueue_many(conn, range(7), chunk=3) == 7


def test_an_interrupted_bulk_stops_the_statement_under_way(database, conn):
    """
    Ctrl-C does not wait for a chunk that waits for somebody: it is cancelled, and the connection
    can be rolled back.
    """
    with psycopg.connect(database) as other:
        other.execute("lock table forebay.log in access exclusive mode")

        def items():
            yield from range(3)
            yield from range(3)
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            send.enqueue_many(conn, items(), chunk=4)
        conn.rollback()
        assert conn.execute("select 1").fetchone() == (1,)


def test_an_empty_bulk_sends_nothing(conn):
    """
    No items, no statement: not even a transaction begins.
    """
    assert send.enqueue_many(conn, []) == 0
    assert conn.info.transaction_status == psycopg.pq.TransactionStatus.IDLE


@pytest.mark.parametrize("chunk", [0, -1, 1_000_000, "many", True])
def test_a_chunk_has_bounds(conn, chunk):
    """
    A size out of range is refused before the first item is taken.
    """
    with pytest.raises(InvalidJob, match="chunk"):
        send.enqueue_many(conn, iter([1]), chunk=chunk)


def test_the_app_takes_calls_only(conn):
    """
    Plain arguments say nothing of their kind.
    """
    with pytest.raises(InvalidJob, match="job 1: call must be") as caught:
        app.enqueue_many(conn, [send.call(1), {"user_id": 2}])
    assert caught.value.index == 1


def test_large_arguments_end_a_chunk_early():
    """
    A chunk is bounded in bytes as well as in jobs.
    """
    text = '{"text":"' + "x" * 1_000_000 + '"}'
    for kinds, parameter in ((["k"], "args"), (["k", "l"], "jobs")):
        chunks = Chunks(5000)
        sent = [chunks.add(Call(kind=kinds[n % len(kinds)], args=text)) for n in range(10)]
        assert sum(operation is not None for operation in sent) == 1
        assert max(len(o.params[parameter]) for o in sent if o) < CHUNK_BYTES + 1_100_000


@pytest.mark.anyio
async def test_asynchronous_items_on_an_asynchronous_connection(database):
    """
    An asynchronous generator is taken as it comes; a bad item is named the same way.
    """

    async def items(*found):
        for item in found:
            yield item

    async with await psycopg.AsyncConnection.connect(database) as conn:
        assert await send.aenqueue_many(conn, items(1, (2,), {"user_id": 3}), chunk=2) == 3
        assert await app.aenqueue_many(conn, [send.call(4), brief.call(5)]) == 2
        with pytest.raises(InvalidJob) as caught:
            await send.aenqueue_many(conn, items(1, 2, 3, "x"), chunk=2)
        assert caught.value.index == 3
        await conn.commit()
    with psycopg.connect(database) as conn:
        assert len(args_of(conn)) == 7


def keyed(*numbers):
    return [send.using(unique=Once(f"user {number}")).call(number) for number in numbers]


def test_a_bulk_call_says_which_jobs_are_new(conn):
    """
    The list gets an id for each item, over all chunks: of the new job, or of the one that has the
    key.
    """
    before, ids, plain = [], [], []
    assert app.enqueue_many(conn, keyed(1, 2), ids=before) == 2
    assert app.enqueue_many(conn, [*keyed(2, 3, 3), send.call(4)], chunk=2, ids=ids) == 4
    assert [one.is_new for one in before + ids] == [True, True, False, True, False, True]
    assert ids[0] == before[1]
    assert ids[1] == ids[2]
    assert send.enqueue_many(conn, [5, 6], ids=plain) == 2
    assert [args["user_id"] for args in args_of(conn)] == [1, 2, 3, 4, 5, 6]
    assert all(one.is_new for one in plain)
    assert [Client().job(one, conn=conn)[0].args["user_id"] for one in plain] == [5, 6]


@pytest.mark.anyio
async def test_the_asynchronous_form_says_it_too(database):
    """
    On an asynchronous connection, with the same list.
    """
    ids = []
    async with await psycopg.AsyncConnection.connect(database) as conn:
        assert await app.aenqueue_many(conn, keyed(1, 1), ids=ids) == 2
        assert await send.aenqueue_many(conn, [7], ids=ids) == 1
    assert [one.is_new for one in ids] == [True, False, True]


STREAM = "select n from generate_series(1, 5) n"


@pytest.mark.parametrize(
    "wrapped",
    [iter, lambda rows: (row[0] for row in rows), lambda rows: map(len, rows), _each],
    ids=["itself", "expression", "map", "generator"],
)
def test_items_of_a_stream_of_the_connection_are_refused(conn, wrapped):
    """
    The connection is busy until the stream ends: the next statement would wait for ever.
    """
    with pytest.raises(InvalidJob, match="items come from stream"):
        send.enqueue_many(conn, wrapped(conn.cursor().stream(STREAM)), chunk=2)


def test_items_of_a_stream_of_another_connection_are_taken(conn, database):
    """
    So are those of a stream that ends before the first statement.
    """
    with psycopg.connect(database) as other:
        assert send.enqueue_many(conn, other.cursor().stream(STREAM), chunk=2) == 5
    assert send.enqueue_many(conn, conn.cursor().stream(STREAM)) == 5


@pytest.mark.anyio
async def test_items_of_an_asynchronous_stream_are_refused(database):
    """
    As those of a synchronous one.
    """
    async with await psycopg.AsyncConnection.connect(database) as conn:
        rows = (row[0] async for row in conn.cursor().stream(STREAM))
        with pytest.raises(InvalidJob, match="items come from stream"):
            await send.aenqueue_many(conn, rows, chunk=2)
