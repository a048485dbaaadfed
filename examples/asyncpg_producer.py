"""asyncpg: a row and its job in one transaction, rolled back together, and a savepoint.

Start it, and in another terminal the worker that runs its jobs:

    python asyncpg_producer.py
    forebay worker app:app
"""

import asyncio

import asyncpg
from app import USERS, app, send_welcome
from psycopg.conninfo import conninfo_to_dict

INSERT = "insert into users (email) values ($1) returning id"


async def main() -> None:
    # Usually asyncpg.connect("postgresql://user@host/database").
    where = conninfo_to_dict(app.dsn)
    conn = await asyncpg.connect(
        host=where["host"], port=where["port"], user=where["user"], database=where["dbname"]
    )
    await conn.execute(USERS)

    # Both exist, or neither does.
    async with conn.transaction():
        ann = await conn.fetchval(INSERT, "ann@example.com")
        await send_welcome.aenqueue(conn, user_id=ann)
    print("registered ann@example.com, with a job")

    # Rolled back together.
    try:
        async with conn.transaction():
            bob = await conn.fetchval(INSERT, "bob@example.com")
            await send_welcome.aenqueue(conn, user_id=bob)
            raise ValueError("on second thoughts")
    except ValueError:
        print("rolled back bob@example.com, and the job")

    # Rolling back to a savepoint removes only the jobs enqueued inside it.
    async with conn.transaction():
        eve = await conn.fetchval(INSERT, "eve@example.com")
        await send_welcome.aenqueue(conn, user_id=eve)
        try:
            async with conn.transaction():
                await send_welcome.aenqueue(conn, user_id=eve, locale="it")
                raise ValueError("one is enough")
        except ValueError:
            print("registered eve@example.com, with one job of two")

    await conn.close()


if __name__ == "__main__":
    asyncio.run(main())
