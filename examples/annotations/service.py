"""The web service: uvicorn annotations.service:service

A request that changes something has one transaction, with the change and its job. After the commit,
the service writes the index at once, within a deadline, and the answer says whether that worked.
There are no accounts: every client that can reach this service can do everything. So it listens on
this machine only, and ``door.py`` keeps other sites out.
"""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec
import psycopg
from psycopg import AsyncConnection
from psycopg_pool import AsyncConnectionPool, PoolTimeout
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from annotations import operations, store
from annotations.app import annotations, app
from annotations.door import Door
from annotations.operations import Comparison
from annotations.search import Search, SearchUnavailableError
from annotations.store import Choice, ConflictError, Draft, NotFoundError
from forebay.errors import BackfillChanged, DatabaseUnavailable, InvalidJob

T = TypeVar("T")

_PAGE = Path(__file__).parent / "page"

#: PostgreSQL parses a query recursively: thousands of operators would exceed its stack.
_WORDS_MAX = 500

Name = Annotated[str, msgspec.Meta(min_length=1, max_length=100)]
Text = Annotated[str, msgspec.Meta(min_length=1, max_length=20_000)]
Tags = Annotated[list[Name], msgspec.Meta(max_length=20)]
Line = Annotated[int, msgspec.Meta(ge=1, le=10_000_000)]


class Creation(msgspec.Struct, forbid_unknown_fields=True):
    page: Name
    text: Text
    user: Name
    line: Line = 1
    group: Name = "all"
    tags: Tags = []


class Change(msgspec.Struct, forbid_unknown_fields=True):
    text: Text
    tags: Tags = []
    version: int | None = None


class Reindexing(msgspec.Struct, forbid_unknown_fields=True):
    user: Name | None = None
    group: Name | None = None
    page: Name | None = None
    since: datetime | None = None
    until: datetime | None = None
    ids: Annotated[list[int], msgspec.Meta(max_length=10_000)] | None = None
    force: bool = False
    dry_run: bool = False
    token: str | None = None

    def choice(self) -> Choice:
        given = [self.user, self.group, self.page, self.ids, self.since or self.until]
        if sum(each is not None for each in given) != 1:
            raise HTTPException(400, "choose one: user, group, page, ids, or since and until")
        return Choice(self.user, self.group, self.page, self.since, self.until, self.ids)


class Comparing(msgspec.Struct, forbid_unknown_fields=True):
    repair: bool = False


# --- requests and answers ---


def answer(content: Any, status: int = 200) -> Response:
    return Response(msgspec.json.encode(content), status, media_type="application/json")


async def sent(request: Request, model: type[T]) -> T:
    """Return the request's content.

    Only JSON is accepted, which a form of another site cannot send.
    """
    if request.headers.get("content-type", "").partition(";")[0] != "application/json":
        raise HTTPException(415, "send application/json")
    try:
        return msgspec.json.decode(await request.body(), type=model)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise HTTPException(400, str(error)) from error


def transaction(request: Request) -> contextlib.AbstractAsyncContextManager[AsyncConnection[Any]]:
    """Return a connection with a transaction: committed at the end of the block, or rolled back."""
    pool: AsyncConnectionPool[AsyncConnection[Any]] = request.app.state.pool
    return pool.connection()


def named(request: Request) -> int:
    """Return the annotation's id from the path; ids beyond PostgreSQL's bigint do not exist."""
    name: int = request.path_params["id"]
    if name >= 2**63:
        raise NotFoundError(f"there is no annotation {name}")
    return name


async def changed(found: dict[str, Any], status: int = 200) -> Response:
    """Write the index at once, if possible, and answer. Call it after the commit."""
    return answer(found | {"indexed": await annotations.awrite_now(found["id"])}, status)


# --- pages and annotations ---


async def index(_: Request) -> Response:
    # The page shows what people wrote as text only. If that ever fails, this policy keeps the
    # browser from running it. And no other site may show it in a frame, where a person could be led
    # to click.
    policy = (
        "default-src 'self'; img-src 'self' data:; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'none'"
    )
    return FileResponse(
        _PAGE / "index.html",
        headers={"Content-Security-Policy": policy, "X-Frame-Options": "DENY"},
    )


async def list_pages(request: Request) -> Response:
    async with transaction(request) as conn:
        return answer(await store.pages(conn))


async def show_page(request: Request) -> Response:
    async with transaction(request) as conn:
        return answer(await store.page(conn, request.path_params["name"]))


async def create(request: Request) -> Response:
    made = await sent(request, Creation)
    draft = Draft(made.line, made.text, made.user, made.group, made.tags)
    async with transaction(request) as conn:
        found = await store.create(conn, made.page, draft)
    return await changed(found, 201)


async def edit(request: Request) -> Response:
    made = await sent(request, Change)
    async with transaction(request) as conn:
        found = await store.edit(conn, named(request), made.text, made.tags, made.version)
    return await changed(found)


async def delete(request: Request) -> Response:
    async with transaction(request) as conn:
        found = await store.set_deleted(conn, named(request), deleted=True)
    return await changed(found)


async def restore(request: Request) -> Response:
    async with transaction(request) as conn:
        found = await store.set_deleted(conn, named(request), deleted=False)
    return await changed(found)


# --- searching ---


async def search(request: Request) -> Response:
    words = request.query_params.get("q", "").strip()
    if not words or "\0" in words:
        return answer({"results": []})
    if len(words) > _WORDS_MAX:
        raise HTTPException(400, f"search for at most {_WORDS_MAX} characters")
    try:
        ids = await request.app.state.search.ids(words)
    except psycopg.InternalError as error:  # a parser of PostgreSQL gave up
        raise HTTPException(400, "the query is too complicated") from error
    async with transaction(request) as conn:
        return answer({"results": await store.bodies(conn, ids, words)})


# --- operations ---


async def reindex(request: Request) -> Response:
    made = await sent(request, Reindexing)
    choice = made.choice()
    if made.dry_run:
        plan = await asyncio.to_thread(store.plan_reindex, choice, force=made.force)
        return answer({"count": plan.jobs, "token": plan.token})
    jobs = await asyncio.to_thread(store.reindex, choice, force=made.force, token=made.token)
    return answer({"jobs": jobs}, 202)


async def status(request: Request) -> Response:
    async with transaction(request) as conn:
        waiting = await store.waiting(conn)
    up = await request.app.state.search.is_up()
    return answer({"waiting": waiting, "index": "up" if up else "down"})


async def overview(request: Request) -> Response:
    comparison: Comparison = request.app.state.comparison
    async with transaction(request) as conn:
        found = await operations.overview(conn)
    return answer(found | {"comparing": comparison.is_running, "problem": comparison.problem})


async def retry(request: Request) -> Response:
    async with transaction(request) as conn:
        await operations.retry(conn, named(request))
    return answer({}, 202)


async def compare(request: Request) -> Response:
    made = await sent(request, Comparing)
    request.app.state.comparison.start(repair=made.repair)
    return answer({}, 202)


# --- the application ---


def _refusal(status: int) -> Callable[[Request, Exception], Awaitable[Response]]:
    async def refuse(_: Request, error: Exception) -> Response:
        said = error.detail if isinstance(error, HTTPException) else str(error)
        return answer({"error": said}, getattr(error, "status_code", status))

    return refuse


@contextlib.asynccontextmanager
async def lifespan(service: Starlette) -> AsyncGenerator[None, None]:
    pool: AsyncConnectionPool[AsyncConnection[Any]] = AsyncConnectionPool(
        app.dsn, min_size=4, max_size=12, timeout=10.0, open=False,
        kwargs={"application_name": "annotations"},
    )  # fmt: skip
    searching = Search()
    async with pool:
        await searching.open()
        service.state.pool = pool
        service.state.search = searching
        service.state.comparison = Comparison()
        beating = asyncio.create_task(operations.heartbeats(pool))
        yield
        beating.cancel()
        await asyncio.gather(beating, return_exceptions=True)
        await service.state.comparison.close()
        await searching.close()
    await asyncio.to_thread(annotations.close)


service = Starlette(
    lifespan=lifespan,
    middleware=[Middleware(Door)],
    routes=[
        Route("/", index),
        Mount("/static", StaticFiles(directory=_PAGE)),
        Route("/api/pages", list_pages),
        Route("/api/pages/{name}", show_page),
        Route("/api/search", search),
        Route("/api/annotations", create, methods=["POST"]),
        Route("/api/annotations/{id:int}", edit, methods=["PUT"]),
        Route("/api/annotations/{id:int}", delete, methods=["DELETE"]),
        Route("/api/annotations/{id:int}/restore", restore, methods=["POST"]),
        Route("/api/reindex", reindex, methods=["POST"]),
        Route("/api/status", status),
        Route("/api/operations", overview),
        Route("/api/jobs/{id:int}/retry", retry, methods=["POST"]),
        Route("/api/compare", compare, methods=["POST"]),
    ],
    exception_handlers={
        HTTPException: _refusal(400),
        NotFoundError: _refusal(404),
        ConflictError: _refusal(409),
        BackfillChanged: _refusal(409),
        InvalidJob: _refusal(400),
        DatabaseUnavailable: _refusal(503),
        SearchUnavailableError: _refusal(503),
        psycopg.OperationalError: _refusal(503),
        psycopg.DataError: _refusal(400),
        PoolTimeout: _refusal(503),
    },
)
