"""The old order, for comparison: commit, then publish to the broker.

A consumer indexes what was published.

If the broker does not confirm in time, the request still succeeds: the annotation is saved, and an
error would make people write it again. From then on no component knows that the index lacks it. Do
not build a service like this.

    uvicorn annotations.outage.old_order:service       the service
    python -m annotations.outage.old_order             the consumer
"""

import asyncio
import contextlib
import os
from collections.abc import AsyncGenerator
from typing import Any

from psycopg_pool import AsyncConnectionPool
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from annotations.app import app, index_dsn, words_of
from annotations.outage.broker import Client
from annotations.service import Creation, answer, sent
from forebay.mirror import Document, PostgresTarget

SCHEMA = """
create table if not exists old_annotation (
    annotation_id bigint generated always as identity primary key,
    page text not null, line integer not null, user_name text not null, group_name text not null,
    text text not null, tags text[] not null)"""

PUBLISH_SECONDS = 1.0

_BATCH = 200


def broker_port() -> int:
    return int(os.environ["ANNOTATIONS_BROKER_PORT"])


def old_target() -> PostgresTarget:
    return PostgresTarget(index_dsn, table="old_documents", text=words_of, timeout=5.0)


async def create(request: Request) -> Response:
    made = await sent(request, Creation)
    async with request.app.state.pool.connection() as conn:
        cursor = await conn.execute(
            "insert into old_annotation (page, line, user_name, group_name, text, tags)"
            " values (%s, %s, %s, %s, %s, %s) returning annotation_id",
            (made.page, made.line, made.user, made.group, made.text, made.tags),
        )
        (name,) = await cursor.fetchone()
    # Committed. If anything fails from here on, the annotation exists and the index does not have
    # it.
    clients: list[Client] = request.app.state.clients
    client = clients.pop() if clients else Client(broker_port())
    indexed = False
    try:
        body = {"page": made.page, "text": made.text, "tags": made.tags}
        body |= {"user_name": made.user, "group_name": made.group}
        async with asyncio.timeout(PUBLISH_SECONDS):
            await client.call({"publish": {"id": name, "body": body}})
        indexed = True
    except OSError:
        pass  # the log has it, with a thousand others
    clients.append(client)
    return answer({"id": name, "indexed": indexed}, 201)


@contextlib.asynccontextmanager
async def lifespan(service: Starlette) -> AsyncGenerator[None, None]:
    async with AsyncConnectionPool(app.dsn, min_size=2, max_size=12) as pool:
        service.state.pool = pool
        service.state.clients = []
        yield


service = Starlette(lifespan=lifespan, routes=[Route("/api/annotations", create, methods=["POST"])])


async def consume() -> None:
    """Index what the broker delivers, and confirm it afterwards."""
    client, target = Client(broker_port()), old_target()
    while True:
        messages: list[Any] = []
        try:
            async with asyncio.timeout(2 * PUBLISH_SECONDS):
                messages = await client.call({"take": _BATCH})
            documents = [Document(each["id"], 1, each["body"]) for each in messages]
            if documents:
                async with asyncio.timeout(5.0):
                    await target.write(documents)
                async with asyncio.timeout(2 * PUBLISH_SECONDS):
                    await client.call({"done": len(documents)})
        except Exception:
            client.close()
        await asyncio.sleep(0.0 if len(messages) == _BATCH else 0.2)


if __name__ == "__main__":
    asyncio.run(consume())
