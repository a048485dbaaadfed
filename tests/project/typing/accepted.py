"""Right uses. Both type checkers accept every line; nothing here is run."""

from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, assert_type

import msgspec
import psycopg
import sqlalchemy as sa
from sqlalchemy import orm
from sqlalchemy.ext import asyncio as sa_async

import forebay
from forebay import Context, Handler, Job, Outcome, RetryPolicy, Snooze, TransactionContext
from forebay.mirror import (
    Document,
    DualTarget,
    ElasticsearchTarget,
    Gone,
    GroongaTarget,
    Id,
    PostgresTarget,
    QuerySource,
    SQLiteTarget,
)
from forebay.testing import LyingTarget, perform

app = forebay.App()


jobs = forebay.Jobs()
app.include(jobs)


@jobs.job(queue="mail", keep_result=True)
def in_a_module(ctx: Context, user_id: int) -> str:
    return str(user_id)


@jobs.batch_job(size=10)
def items_in_a_module(items: list[int]) -> None: ...


def enqueue_in_a_module(conn: psycopg.Connection[Any]) -> None:
    in_a_module.enqueue(conn, user_id=1)
    jobs.enqueue_many(conn, [in_a_module.call(1), items_in_a_module.call(2)])
    assert_type(in_a_module.handle(1).result(), str)


@dataclass
class Row:
    document_id: int
    text: str = ""


@app.job
def bare(user_id: int) -> None: ...


@app.job(queue="mail", priority=10, timeout=30, retry=RetryPolicy(max_attempts=3))
async def send_welcome(user_id: int, locale: str = "en") -> None: ...


@app.job(timeout=timedelta(minutes=2), expires_in=timedelta(hours=1), max_attempts=5, tag="shop")
def with_context(ctx: Context, user_id: int, *, urgent: bool = False) -> Outcome | None:
    assert_type(ctx.attempt, int)
    return Snooze(30) if urgent else None


@app.job(transaction=True)
async def in_transaction(ctx: Context, order_id: int) -> str:
    return str(order_id)


@app.job(transaction=True)
def in_session(ctx: TransactionContext[orm.Session], order_id: int) -> str:
    assert_type(ctx.conn, orm.Session)
    return str(order_id)


@app.batch_job(transaction=True)
async def in_async_session(ctx: TransactionContext[sa_async.AsyncSession], rows: list[Row]) -> None:
    assert_type(ctx.conn, sa_async.AsyncSession)
    await send_welcome.aenqueue(ctx.conn, len(rows))


@app.batch_job(size=500)
async def index(rows: list[Row]) -> None: ...


@app.batch_job()
def index_with_context(ctx: Context, rows: Sequence[Row]) -> list[Outcome | None]:
    return [None for _ in rows]


@app.batch_job(size=10)
def free(jobs: list[Job]) -> None: ...


@app.batch_job(size=500)
async def index_text(items: list[msgspec.Raw]) -> None:
    assert_type(msgspec.json.decode(items[0], type=Row), Row)


@app.batch_job(executor="process")
def index_text_with_context(ctx: Context, items: list[msgspec.Raw]) -> None: ...


@app.batch_job(transaction=True)
def index_text_in_session(
    ctx: TransactionContext[orm.Session], items: list[msgspec.Raw]
) -> None: ...


@app.resource
async def http() -> AsyncIterator[str]:
    yield "client"


@app.resource("model")
def build_model() -> object:
    return object()


@app.job(keep_result=timedelta(hours=1), executor="process", memory_bytes=10**9, cpu_seconds=5)
def render(ctx: forebay.Context, page: int) -> Row:
    ctx.progress(0.5, "half")
    return Row(page)


@app.batch_job(size=10, executor="process")
def render_many(rows: list[Row]) -> None: ...


async def waiting_for_results() -> None:
    handle = app.handle(render.enqueue_now(1))
    assert_type(handle, forebay.JobHandle[Any])
    assert_type(handle.result(5, as_type=Row), Row)
    assert_type(handle.result(5, as_type=list[int]), list[int])
    assert_type(await handle.aresult(timeout=5), Any)
    assert_type(render.handle(1).result(timeout=10), Row)
    assert_type(await render.handle(1, group="audit").aresult(), Row)
    assert_type(in_transaction.handle(1).result(), str)
    assert_type(await in_transaction.handle(1).aresult(), str)
    assert_type(bare.handle(1).result(), None)
    assert_type(app.client().result(1, as_type=Row), Row)
    assert_type(await app.async_client().result(1, as_type=Row, timeout=1), Row)
    assert_type(app.client().result(1), Any)
    assert_type(handle.status().attempt, int)


def producing(conn: psycopg.Connection[Any], cursor: psycopg.Cursor[dict[str, Any]]) -> None:
    assert_type(send_welcome.enqueue(conn, 42), forebay.JobId)
    send_welcome.enqueue(conn, user_id=42, locale="it")
    send_welcome.enqueue(cursor, 42, "it")
    send_welcome.using(delay=3600, tag="signup").enqueue(conn, user_id=42)
    send_welcome.using(run_at=None, expires_in=timedelta(days=1), queue="slow").enqueue(conn, 42)
    bare.enqueue(conn, user_id=1)
    with_context.enqueue(conn, 1, urgent=True)
    in_transaction.enqueue(conn, order_id=1)
    in_session.enqueue(conn, order_id=1)
    in_async_session.enqueue(conn, Row(1))
    index.enqueue(conn, Row(1))
    index_with_context.enqueue(conn, Row(1, "x"))
    free.enqueue(conn, anything=1, at="all")
    index_text.enqueue(conn, document_id=1)
    index_text_with_context.enqueue(conn, document_id=1, text="x")
    index_text_in_session.enqueue(conn, document_id=1)
    index_text.enqueue_many(conn, ({"document_id": n} for n in range(9)))
    send_welcome.enqueue_now(42)
    assert_type(send_welcome.enqueue_many(conn, (send_welcome.call(n) for n in range(9))), int)
    app.enqueue_many(conn, [send_welcome.call(1), with_context.call(2), index.call(Row(3))])
    forebay.gather(conn, send_welcome.calls([1, 2]), then=send_welcome)
    forebay.gather(conn, [send_welcome.call(1)], then=send_welcome.callback(7), on_dead="collect")


async def producing_async(conn: psycopg.AsyncConnection[Any]) -> None:
    assert_type(await send_welcome.aenqueue(conn, 42), forebay.JobId)
    await with_context.using(priority=1).aenqueue(conn, 1, urgent=True)
    await in_transaction.aenqueue_now(7)


def producing_elsewhere(
    conn: sa.Connection, session: orm.Session, scoped: orm.scoped_session[orm.Session]
) -> None:
    send_welcome.enqueue(conn, 42)
    send_welcome.enqueue(session, user_id=42, locale="it")
    send_welcome.enqueue_many(scoped, [1, 2])
    app.client().cancel(1, conn=session)


async def producing_elsewhere_async(
    conn: sa_async.AsyncConnection,
    session: sa_async.AsyncSession,
    scoped: sa_async.async_scoped_session[sa_async.AsyncSession],
) -> None:
    await send_welcome.aenqueue(conn, 42)
    await send_welcome.aenqueue(session, user_id=42, locale="it")
    await send_welcome.aenqueue_many(scoped, [1, 2])
    await app.async_client().job(1, conn=session)


async def calling(ctx: Context, handler: Handler[[int], [int], None]) -> None:
    assert_type(with_context(ctx, 1), Outcome | None)
    assert_type(await in_transaction(ctx, 1), str)
    await send_welcome(1, locale="it")
    await index([Row(1)])
    assert_type(bare(user_id=1), None)
    handler(1)
    assert_type(handler.__name__, str)


def managing(conn: psycopg.Connection[Any]) -> None:
    client = forebay.Client()
    job_id = client.enqueue(conn, "mail", {"user_id": 1}, queue="mail", delay=5)
    assert_type(job_id, forebay.JobId)
    client.enqueue(conn, "mail", unique=forebay.Debounce("mail:1", wait=10, max_wait=60))
    client.cancel(1, conn=conn)
    client.jobs(state="ready", limit=10)
    assert_type([letter.errors[0].message for letter in client.dead_letters()], list[str | None])


class PlainSource:
    def read(self, ids: Sequence[Id]) -> list[Document | Gone]:
        return [Document(name, 1, {}) for name in ids]

    def scan(self, after: Id | None, limit: int) -> list[tuple[Id, int]]:
        return []


class AsyncTarget:
    async def read(self, ids: Sequence[Id]) -> dict[Id, int]:
        return {}

    async def write(self, documents: Sequence[Document]) -> dict[Id, str] | None:
        return None

    async def delete(self, gone: Sequence[Gone]) -> None: ...

    async def scan(self, after: Id | None, until: Id | None, limit: int) -> list[tuple[Id, int]]:
        return []


pages = forebay.Mirror(app, "pages", source=PlainSource(), target=AsyncTarget(), compare="hash")
forebay.Mirror(
    app,
    "files",
    source=QuerySource("", read="", scan=""),
    target=SQLiteTarget("index.db"),
    grace=timedelta(seconds=5),
    compare=lambda document, seen: document.version == seen.version,
)
forebay.Mirror(app, "more", source=PlainSource(), target=PostgresTarget(""))
forebay.Mirror(app, "lies", source=PlainSource(), target=LyingTarget())
search = ElasticsearchTarget("http://localhost:9200", "pages", id_type="keyword")
forebay.Mirror(app, "index", source=PlainSource(), target=DualTarget(search, search.successor()))
forebay.Mirror(app, "words", source=PlainSource(), target=GroongaTarget("http://localhost:10041"))


async def synchronise(conn: psycopg.Connection, other: psycopg.AsyncConnection) -> None:
    assert_type(pages.changed(conn, 1, tag="api"), forebay.JobId)
    assert_type(await pages.achanged(other, "x", force=True), forebay.JobId)
    assert_type(pages.changed_many(conn, [1, "x"]), int)
    assert_type(pages.write_now(1), bool)
    assert_type(await pages.awrite_now(1), bool)
    assert_type(pages.repair(pages.audit(settle=1)), int)


def django_aliases() -> None:
    bare.enqueue("default", user_id=1)


@app.job(unique_by=("document_id",), unique=forebay.Coalesce)
def reindex(document_id: int) -> None: ...


@app.job(unique_by=["document_id"], unique=lambda key: forebay.Debounce(key, wait=10))
def reindex_later(document_id: int) -> None: ...


class Around(forebay.Middleware):
    def enqueue(self, jobs: Sequence[forebay.NewJob]) -> Iterator[None]:
        jobs[0].headers["tenant"] = "acme"
        yield

    def attempt(self, attempt: forebay.Attempt) -> Iterator[None]:
        assert_type(attempt.job, Job)
        yield

    async def aattempt(self, attempt: forebay.Attempt) -> AsyncIterator[None]:
        yield


around = forebay.App(middleware=[Around()])


@around.on_failed
def failed(ended: forebay.AttemptEnded) -> None:
    assert_type(ended.error, BaseException | None)


@around.on_worker_lost
async def lost(worker: forebay.LostWorker) -> None: ...


def performed() -> None:
    assert_type(perform(with_context, 1, urgent=True).returned, Outcome | None)
    RetryPolicy(delay=lambda attempt, error: 60.0 * attempt, jitter=False)


@app.subject(queue="crawl", every=timedelta(hours=1))
async def crawl(ctx: Context, url: str, depth: int = 1) -> forebay.Again | None:
    ctx.state["n"] = 1
    assert_type(ctx.subject, forebay.SubjectRun | None)
    return forebay.Again("+1 week", state={"n": 2})


@app.subject(name="crawl", version=1, transaction=True)
def crawl_v1(ctx: TransactionContext[orm.Session], host: str) -> None: ...


async def subjects(
    conn: psycopg.Connection[Any], aconn: psycopg.AsyncConnection[Any], engine: sa.Connection
) -> None:
    assert_type(crawl.push(conn, "a", "https://a", depth=2), forebay.SubjectResult)
    assert_type(await crawl.apush(aconn, "a", url="https://a"), forebay.SubjectResult)
    assert_type(crawl.append(None, "https://a"), str)
    assert_type(crawl_v1.using(delay=60).upsert(engine, "a", "a.org").reason, str | None)
    assert_type(
        crawl.push_many(conn, [("a", {"url": "x"}), "b", crawl.item("c", "x")]),
        list[forebay.SubjectResult],
    )


class Line(msgspec.Struct):
    sku: str


def price(sku: str) -> int:
    return len(sku)


async def ship(sku: str) -> Line:
    return Line(sku)


def reserve(conn: object, sku: str) -> Line:
    return Line(sku)


@app.job
async def order(ctx: forebay.AsyncContext, sku: str) -> int:
    assert_type(await ctx.step("price", price, sku), int)
    assert_type(await ctx.step("ship", ship, sku, key=1), Line)
    assert_type(await ctx.once("reserve", reserve, sku), Line)
    assert_type(await ctx.wait("approval", as_type=Line), Line)
    await ctx.sleep("rest", 5)
    async for each in ctx.each("lines", ["a"], key=str):
        assert_type(each, str)
    assert_type(await ctx.done("price"), bool)
    return await ctx.step("price again", price, sku)


@app.job
def plain_order(ctx: forebay.PlainContext, sku: str) -> int:
    assert_type(ctx.once("reserve", reserve, sku), Line)
    assert_type(ctx.wait("approval", as_type=Line), Line)
    for each in ctx.each("lines", ["a"], key=str):
        assert_type(each, str)
    assert_type(ctx.done("price"), bool)
    assert_type(ctx.gather("prices", []), list[Any])
    return ctx.step("price", price, sku)


def orders(conn: psycopg.Connection[Any]) -> None:
    order.enqueue(conn, "a")
    plain_order.enqueue(conn, sku="a")
