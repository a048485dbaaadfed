"""Very many savepoints in a transaction, and very many transactions that lock the row of one
lease.
"""

import time
from contextlib import ExitStack

import psycopg
import pytest

import forebay
from tests.sql.test_flat_cost import pages
from tests.support.engine import Reader, enqueue, lane_of
from tests.support.fix_worker import make_effect_table, running
from tests.support.proxy import Proxy
from tests.support.waiting import wait_for_async


def claim_pages(conn, reader: Reader, lane: int) -> int:
    """Return how many pages a claim of one new job touches, the median of seven."""
    seen = []
    for _ in range(7):
        enqueue(conn)
        reader.claim_no += 1
        seen.append(
            pages(
                reader.conn,
                "select forebay.claim_v1(%s, %s, %s, %s, %s, 10)",
                *[reader.lease_id, reader.claim_no, reader.claim_no, reader.group_id, lane],
            )
        )
        assert reader.settle(reader.claim_no) == "settled"
    return sorted(seen)[3]


def test_a_producer_with_hundreds_of_savepoints_slows_no_claim(database, conn):
    """
    More than a session keeps in shared memory (64), so that others have to look them up: open
    claims cost what they did, and of its jobs those exist whose savepoints were kept.
    """
    lane = lane_of("default", conn)
    with Reader(database) as reader, psycopg.connect(database) as producer:
        claim_pages(conn, reader, lane)
        before = claim_pages(conn, reader, lane)
        kept = []
        for n in range(300):
            producer.execute(f"savepoint s{n}")
            job = enqueue(producer)
            if n % 3 == 0:
                producer.execute(f"rollback to savepoint s{n}")
            else:
                kept.append(job)
        during = claim_pages(conn, reader, lane)
        producer.commit()
        print(f"{before} pages before, {during} while they are open")
        assert during < 1.5 * before + 10
        handed = [job for batch in reader.claim_all() for job in batch.job_ids]
        assert sorted(handed) == kept


@pytest.mark.slow
def test_a_lease_under_which_forty_transactions_have_settled_claims_as_fast(database, conn):
    """
    Handlers in transactions share the lock of their lease's row until they commit. However many do
    at a time, the next claim and settlement under it take about as long.
    """

    def milliseconds(reader: Reader) -> float:
        took = []
        for _ in range(15):
            enqueue(conn)
            began = time.monotonic()
            reader.finish(reader.claim(1))
            took.append((time.monotonic() - began) * 1000)
        return sorted(took)[7]

    with Reader(database) as reader, ExitStack() as stack:
        batches = []
        for _ in range(40):
            enqueue(conn)
            batches.append(reader.claim(1))
        handlers = [stack.enter_context(psycopg.connect(database)) for _ in batches]
        for handler in handlers:
            # So many open transactions have a price of their own: each is looked for.
            handler.execute("select pg_current_xact_id()")
        milliseconds(reader)
        before = milliseconds(reader)
        for handler, batch in zip(handlers, batches, strict=True):
            assert reader.settle(batch.claim_no, [1], flush_no=-1, conn=handler) == "settled"
        during = milliseconds(reader)
        print(f"{before:.1f} ms beside forty transactions, {during:.1f} ms when they have settled")
        assert during < 4 * before + 5


@pytest.mark.anyio
async def test_no_job_costs_a_savepoint(app, conn, database):
    """
    Neither a plain handler nor one in a transaction, done, failed or snoozed: the worker's
    statements have none.
    """
    make_effect_table(conn)

    def end(n: int) -> object:
        if n % 3 == 1:
            raise ValueError(n)
        return forebay.Snooze(3600) if n % 3 == 2 else None

    @app.job(max_attempts=1)
    async def work(n: int) -> object:
        return end(n)

    @app.job(transaction=True, max_attempts=1)
    async def write(ctx: forebay.Context, n: int) -> object:
        await ctx.conn.execute("insert into effect values (%s, %s)", [n, ctx.job.job_id])
        return end(n)

    @app.job(transaction=True, max_attempts=1)
    def write_in_thread(ctx: forebay.Context, n: int) -> object:
        ctx.conn.execute("insert into effect values (%s, %s)", [n, ctx.job.job_id])
        return end(n)

    with Proxy(database) as proxy:
        async with running(app, dsn=proxy.dsn) as worker:
            for kind in (work, write, write_in_thread):
                kind.enqueue_many(conn, [(n,) for n in range(9)])
            await wait_for_async(lambda: worker.stats.claimed == 27 and worker._executor.is_idle)
        statements = [statement.lower() for statement in proxy.statements]
    assert any("settle_v1" in statement for statement in statements)
    made = ("savepoint", "release", "rollback to")
    assert [statement for statement in statements if statement.startswith(made)] == []
