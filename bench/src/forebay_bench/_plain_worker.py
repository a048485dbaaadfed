"""The least that a queue's worker can do, for the scenario ``trickle``: for each notification
one DELETE, on one connection.

Started by the scenario: the address. It answers each line of its input with the number of jobs so
far.
"""

from __future__ import annotations

import asyncio
import sys
import threading

import psycopg

from forebay_bench._child import answer, commands

_TAKE = (
    "delete from plain_job where id = (select id from plain_job order by id for update "
    "skip locked limit 1)"
    " returning id, args"
)


async def _work(dsn: str) -> None:
    ended = 0
    loop, stopped = asyncio.get_running_loop(), asyncio.Event()

    def obey() -> None:
        for _ in commands():
            answer(ended)
        loop.call_soon_threadsafe(stopped.set)

    async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as conn:
        await conn.execute("listen plain")
        threading.Thread(target=obey, daemon=True).start()

        async def take() -> None:
            nonlocal ended
            while True:
                if await (await conn.execute(_TAKE, prepare=True)).fetchone() is not None:
                    ended += 1
                    continue
                async for _ in conn.notifies(timeout=1.0, stop_after=1):
                    pass

        taking = asyncio.create_task(take())
        await stopped.wait()
        taking.cancel()
        await asyncio.wait({taking})


def main() -> None:
    """Run as the scenario commands."""
    asyncio.run(_work(sys.argv[1]))


if __name__ == "__main__":
    main()
