"""SQLAlchemy with asyncio, on asyncpg and on psycopg: the same, awaited.

Start it, and in another terminal the worker that runs its jobs:

    python sqlalchemy_async_producer.py
    forebay worker app:app
"""

import asyncio

import sqlalchemy as sa
from app import USERS, app, send_welcome
from psycopg.conninfo import conninfo_to_dict
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

INSERT = sa.text("insert into users (email) values (:email) returning id")


async def produce(driver: str) -> None:
    # Usually create_async_engine("postgresql+asyncpg://user@host/database").
    where = conninfo_to_dict(app.dsn)
    url = f"postgresql+{driver}://{where['user']}@/{where['dbname']}"
    engine = create_async_engine(url, connect_args={"host": where["host"], "port": where["port"]})
    async with engine.begin() as conn:
        await conn.execute(sa.text(USERS))

    # Both exist, or neither does.
    async with AsyncSession(engine) as session, session.begin():
        ann = (await session.execute(INSERT, {"email": "ann@example.com"})).scalar_one()
        await send_welcome.using(tag=driver).aenqueue(session, user_id=ann)
    print(f"{driver}: registered ann@example.com, with a job")

    # Rolled back together.
    async with AsyncSession(engine) as session:
        bob = (await session.execute(INSERT, {"email": "bob@example.com"})).scalar_one()
        await send_welcome.aenqueue(session, user_id=bob)
        await session.rollback()
    print(f"{driver}: rolled back bob@example.com, and the job")

    # Rolling back to a savepoint removes only the jobs enqueued inside it.
    async with engine.begin() as conn:
        eve = (await conn.execute(INSERT, {"email": "eve@example.com"})).scalar_one()
        await send_welcome.using(tag=driver).aenqueue(conn, user_id=eve)
        savepoint = await conn.begin_nested()
        await send_welcome.aenqueue(conn, user_id=eve, locale="it")
        await savepoint.rollback()
    print(f"{driver}: registered eve@example.com, with one job of two")

    await engine.dispose()


if __name__ == "__main__":
    for driver in ("asyncpg", "psycopg"):
        asyncio.run(produce(driver))
