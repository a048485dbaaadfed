"""asyncpg: a row and its job in one transaction, rolled back together, and a savepoint."""

import asyncio

import asyncpg
from app import app, send_welcome
from psycopg.conninfo import conninfo_to_dict


async def main() -> None:
    where = conninfo_to_dict(app.dsn)
    conn = await asyncpg.connect(
        host=where["host"], port=where["port"], user=where["user"], database=where["dbname"]
    )
    await conn.execute("create table users (user_id serial primary key, name text not null)")

    # Both exist, or neither does.
    async with conn.transaction():
        ann = await conn.fetchval("insert into users (name) values ('Ann') returning user_id")
        await send_welcome.aenqueue(conn, user_id=ann)

    # Rolled back together.
    try:
        async with conn.transaction():
            bob = await conn.fetchval("insert into users (name) values ('Bob') returning user_id")
            await send_welcome.aenqueue(conn, user_id=bob)
            raise RuntimeError("on second thoughts")
    except RuntimeError:
        pass

    # Rolling back to a savepoint removes only the jobs enqueued inside it.
    async with conn.transaction():
        eve = await conn.fetchval("insert into users (name) values ('Eve') returning user_id")
        await send_welcome.aenqueue(conn, user_id=eve)
        try:
            async with conn.transaction():
                await send_welcome.aenqueue(conn, user_id=eve, locale="it")
                raise RuntimeError("one is enough")
        except RuntimeError:
            pass

    await conn.close()
    jobs = await app.async_client().jobs()
    assert [job.args for job in jobs] == [{"user_id": eve}, {"user_id": ann}]


asyncio.run(main())
app.run_worker(until_idle=True)
