"""What a handler enqueues has its job as parent, and its correlation id."""

import psycopg
import pytest

import forebay
from forebay.errors import InvalidJob
from tests.support.engine import enqueue, one, sqlstate, state
from tests.support.fix_worker import run_retries

pytestmark = pytest.mark.anyio


def made(conn, kind):
    """Return parent and correlation id of the jobs of a kind, in their order."""
    rows = conn.execute(
        "select headers ->> 'forebay-parent', correlation_id from forebay.log where kind = %s"
        " order by seq",
        [kind],
    ).fetchall()
    return [(row[0] and int(row[0]), row[1]) for row in rows]


@pytest.mark.parametrize("flavour", ["async", "thread", "transaction", "step"])
async def test_what_a_handler_enqueues_knows_its_parent(app, conn, flavour):
    """One by one and in bulk, on whatever connection; and a correlation id that is given stays."""

    @app.job()
    def child(n: int) -> None: ...

    def enqueue_on(connection) -> None:
        child.enqueue(connection, 1)
        child.using(correlation_id="own", headers={"a": "b"}).enqueue(connection, 2)
        child.enqueue_many(connection, [3, 4])

    if flavour == "async":

        @app.job()
        async def parent() -> None:
            async with await psycopg.AsyncConnection.connect(app.dsn) as other:
                await child.aenqueue(other, 1)
                await child.using(correlation_id="own", headers={"a": "b"}).aenqueue(other, 2)
                await child.aenqueue_many(other, [3, 4])
    elif flavour == "transaction":

        @app.job(transaction=True)
        def parent(ctx: forebay.TransactionContext) -> None:
            enqueue_on(ctx.conn)
    elif flavour == "step":

        @app.job()
        async def parent(ctx: forebay.Context) -> None:
            await ctx.step("enqueue", enqueue_on, conn)
    else:

        @app.job()
        def parent() -> None:
            enqueue_on(conn)

    job = parent.using(correlation_id="order-7").enqueue(conn)
    await run_retries(app, conn)
    assert made(conn, "child") == [
        (job, "order-7"), (job, "own"), (job, "order-7"), (job, "order-7"),
    ]  # fmt: skip
    assert one(conn, "select count(*) from forebay.log where headers ? 'a'") == 1


async def test_outside_of_handlers_nothing_is_added(app, conn):
    """Neither before a worker, nor behind it, nor to the next job of the same thread."""

    @app.job()
    def child(n: int) -> None: ...

    @app.job()
    async def parent() -> None:
        child.enqueue(conn, 1)

    @app.batch_job(size=10)
    def batch(jobs: list[forebay.Job]) -> None:
        child.enqueue(conn, 2)

    parent.enqueue(conn)
    await run_retries(app, conn)
    child.enqueue(conn, 3)
    batch.enqueue(conn)
    await run_retries(app, conn)
    assert [parent is None for parent, _ in made(conn, "child")] == [False, True, True]
    assert one(conn, "select count(*) from forebay.log where headers is not null") == 1


async def test_a_full_set_of_headers_is_left_as_it_is(app, conn):
    """An enqueue that is possible outside of a handler is possible inside."""
    many = {f"h{n}": "x" for n in range(64)}
    large = {"h": "x" * 8100}

    @app.job()
    def child() -> None: ...

    @app.job(max_attempts=1)
    def parent() -> None:
        child.using(headers=many).enqueue(conn)
        child.using(headers=large).enqueue(conn)

    parent.enqueue(conn)
    await run_retries(app, conn)
    assert [parent for parent, _ in made(conn, "child")] == [None, None]


async def test_headers_that_are_passed_on_make_no_job_a_part_of_anything(app, conn):
    """
    A callback, a child and what they enqueue: the names of the library are of one job.
    """

    @app.job()
    def plain() -> None: ...

    @app.job()
    def child(ctx: forebay.Context) -> None:
        plain.using(headers=dict(ctx.job.headers) | {"mine": "1"}).enqueue(conn)

    @app.job()
    def whole(ctx: forebay.Context) -> None:
        plain.using(headers=ctx.job.headers).enqueue(conn)

    job = forebay.gather(conn, child.calls([{}]), then=whole)
    await run_retries(app, conn)
    jobs = "select array_agg(seq order by seq) from forebay.log where kind = "
    assert [state(conn, each) for each in one(conn, f"{jobs} 'plain'")] == ["done", "done"]
    ran = [parent for parent, _ in made(conn, "plain")]
    assert ran == [*one(conn, f"{jobs} 'child'"), job]
    kept = "select array_agg(distinct k order by k) from forebay.log, jsonb_object_keys(headers) k"
    assert one(conn, f"{kept} where kind = 'plain'") == ["forebay-parent", "mine"]


def found(app, job):
    family = app.client().family(job)
    assert family.is_complete
    return (family.parent and family.parent.job_id), {one.kind for one in family.children}


async def test_a_family_is_shown_both_ways(app, conn):
    """Enqueued, gathered, followed up; scheduled too; before and after the log is summarized."""

    @app.job(on_done="after")
    def child(n: int) -> int:
        return n

    @app.job(name="after")
    def after() -> None: ...

    @app.job()
    def later() -> None: ...

    @app.job()
    def whole() -> None: ...

    @app.job()
    def part() -> None: ...

    @app.job()
    def parent(ctx: forebay.Context) -> None:
        ctx.once("later", later.using(delay=3600).enqueue)
        ctx.gather("children", child.calls([1]))
        ctx.once("gather", forebay.gather, [part.call()], then=whole)

    job = parent.using(correlation_id="order-7").enqueue(conn)
    enqueue(conn, headers='{"forebay-parent": "nonsense"}')
    await run_retries(app, conn)

    def check() -> None:
        assert found(app, job) == (None, {"child", "later", "whole"})
        by_kind = {one.kind: one for one in app.client().family(job).children}
        gathered = by_kind["child"].job_id
        assert found(app, gathered) == (job, {"after"})
        assert found(app, by_kind["later"].job_id) == (job, set())
        assert found(app, by_kind["whole"].job_id) == (job, {"part"})
        followed = app.client().family(gathered).children[0]
        assert followed.state == "done"
        assert found(app, followed.job_id) == (gathered, set())
        assert app.client().where(job).family == app.client().family(job)

    check()
    block = "select forebay._summarize_block(s.segment_id, 1, 4097) from forebay.segment s limit 1"
    conn.execute(block)
    check()
    same = "select count(*) from forebay.log where correlation_id = 'order-7' and job_id is null"
    assert one(conn, same) == 4  # with the parent; what waits first has another row


def test_a_search_that_is_not_complete_says_so(conn, app):
    """The newest 20,000 rows are looked at, where the log is not summarized."""
    job = enqueue(conn)
    enqueue(conn, headers=f'{{"forebay-parent": "{job}"}}')
    conn.execute(
        "insert into forebay.log (lane, enqueued_at, kind, args) select l.lane, now(), 'work', '{}'"
        " from forebay.lane l, generate_series(1, 30000) limit 30000"
    )
    family = app.client().family(job)
    assert (family.children, family.is_complete) == ([], False)
    assert one(conn, "select count(*) from forebay.family(null)") == 0
    assert sqlstate(conn, "select forebay.family(1, 0)") == "JQ001"
    with pytest.raises(InvalidJob):
        app.client().family(job, most=101)
