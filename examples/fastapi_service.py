"""FastAPI (or Starlette): connections and a worker live as long as the application.

Start it, and register a user:

    uvicorn fastapi_service:app
    curl -sS -X POST 'http://127.0.0.1:8000/users?email=ann@example.com'

The lifespan opens the engine and runs a worker beside the requests, which is what small services
and development need; larger services start `forebay worker` processes and omit that part.
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Annotated

import psycopg
import sqlalchemy as sa
from app import USERS, send_welcome
from app import app as jobs
from fastapi import Depends, FastAPI, HTTPException, Request
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncGenerator[None, None]:
    # Usually create_async_engine("postgresql+asyncpg://user@host/database").
    engine = create_async_engine(
        "postgresql+psycopg://",
        async_creator=lambda: psycopg.AsyncConnection.connect(jobs.dsn),
    )
    async with engine.begin() as conn:
        await conn.execute(sa.text(USERS))
    app.state.engine = engine
    worker = jobs.worker()
    running = asyncio.create_task(worker.run())
    yield
    worker.stop()  # running jobs finish, the rest are released
    await running
    await engine.dispose()


app = FastAPI(lifespan=lifespan)


async def transaction(request: Request) -> AsyncGenerator[AsyncSession, None]:
    """One transaction for each request: committed on success, otherwise rolled back."""
    async with AsyncSession(request.app.state.engine) as session, session.begin():
        yield session


# "function": commit before the answer is sent, so that the answer reports only committed data.
Transaction = Annotated[AsyncSession, Depends(transaction, scope="function")]


@app.post("/users")
async def register(email: str, session: Transaction) -> dict[str, int]:
    insert = sa.text("insert into users (email) values (:email) returning id")
    user_id = (await session.execute(insert, {"email": email})).scalar_one()
    await send_welcome.aenqueue(session, user_id=user_id)
    if email.startswith("bob"):
        raise HTTPException(409, "on second thoughts")  # neither Bob nor his job
    return {"user_id": user_id}
