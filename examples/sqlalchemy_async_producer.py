"""SQLAlchemy with asyncio, on asyncpg and on psycopg: the same, awaited."""

import asyncio

import sqlalchemy as sa
from app import app, send_welcome
from psycopg.conninfo import conninfo_to_dict
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine


async def produce(driver: str) -> None:
    where = conninfo_to_dict(app.dsn)
    url = f"postgresql+{driver}://{where['user']}@/{where['dbname']}"
    engine = create_async_engine(url, connect_args={"host": where["host"], "port": where["port"]})

    # Both exist, or neither does.
    async with AsyncSession(engine) as session, session.begin():
        await session.execute(sa.text("create table if not exists users (name text)"))
        await session.execute(sa.text("insert into users values ('Ann')"))
        await send_welcome.using(tag=driver).aenqueue(session, user_id=1)

    # Rolled back together.
    async with AsyncSession(engine) as session:
        await session.execute(sa.text("insert into users values ('Bob')"))
        await send_welcome.aenqueue(session, user_id=2)
        await session.rollback()

    # Rolling back to a savepoint removes only the jobs enqueued inside it.
    async with engine.begin() as conn:
        await send_welcome.using(tag=driver).aenqueue(conn, user_id=3)
        savepoint = await conn.begin_nested()
        await send_welcome.aenqueue(conn, user_id=4)
        await savepoint.rollback()

    await engine.dispose()
    jobs = await app.async_client().jobs()
    mine = [job.args for job in jobs if job.tag == driver]
    assert mine == [{"user_id": 3}, {"user_id": 1}]


for driver in ("asyncpg", "psycopg"):
    asyncio.run(produce(driver))
assert len(app.client().jobs()) == 4
app.run_worker(until_idle=True)
