"""FastAPI (or Starlette): connections and a worker live as long as the application.

The lifespan opens the engine and runs a worker beside the requests, which is what small services and
development need; larger services start `forebay worker` processes and omit that part.
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Annotated

import psycopg
import sqlalchemy as sa
from app import app as jobs
from app import send_welcome
from fastapi import Depends, FastAPI, HTTPException, Request
from fastapi.testclient import TestClient
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine


@asynccontextmanager
async def lifespan(service: FastAPI) -> AsyncGenerator[None, None]:
    # Usually create_async_engine("postgresql+asyncpg://user@host/database").
    engine = create_async_engine(
        "postgresql+psycopg://",
        async_creator=lambda: psycopg.AsyncConnection.connect(jobs.dsn),
    )
    service.state.engine = engine
    worker = jobs.worker()
    running = asyncio.create_task(worker.run())
    yield
    worker.stop()  # running jobs finish, the rest are released
    await running
    await engine.dispose()


service = FastAPI(lifespan=lifespan)


async def transaction(request: Request) -> AsyncGenerator[AsyncSession, None]:
    """One transaction for each request: committed on success, otherwise rolled back."""
    async with AsyncSession(request.app.state.engine) as session, session.begin():
        yield session


# "function": commit before the answer is sent, so that the answer reports only committed data.
Transaction = Annotated[AsyncSession, Depends(transaction, scope="function")]


@service.post("/users")
async def register(name: str, session: Transaction) -> int:
    insert = sa.text("insert into users (name) values (:name) returning user_id")
    user_id = (await session.execute(insert, {"name": name})).scalar_one()
    await send_welcome.aenqueue(session, user_id=user_id)
    if name == "Bob":
        raise HTTPException(409, "on second thoughts")  # neither Bob nor his job
    return int(user_id)


with psycopg.connect(jobs.dsn) as conn:
    conn.execute("create table users (user_id serial primary key, name text not null)")

with TestClient(service) as browser:
    assert browser.post("/users", params={"name": "Ann"}).json() == 1
    assert browser.post("/users", params={"name": "Bob"}).status_code == 409
    assert browser.post("/users", params={"name": "Eve"}).json() == 3

jobs.run_worker(until_idle=True)  # in case the application stopped before its worker ran the job
assert [(job.args, job.state) for job in jobs.client().jobs()] == [
    ({"user_id": 3}, "done"),
    ({"user_id": 1}, "done"),
]
with psycopg.connect(jobs.dsn) as conn:
    assert conn.execute("select name from users").fetchall() == [("Ann",), ("Eve",)]
