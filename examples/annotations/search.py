"""Searching: a query to the index returns only ids, and takes at most a second."""

import asyncio
from typing import Any

import psycopg
from psycopg_pool import AsyncConnectionPool, PoolTimeout

from annotations.app import index_dsn

RESULTS_MAX = 50

_SECONDS = 1.0
_SEARCHES_MAX = 4

#: The query of what a person typed; the last word may be its beginning only, as it is typed.
MATCH = """
    select case when q::text like '%%''' then (q::text || ':*')::tsquery else q end as query
    from websearch_to_tsquery('english', %(words)s) q"""

_QUERY = f"""
    select id from documents, ({MATCH}) m
    where words @@ m.query
    order by ts_rank(words, m.query) desc, id desc limit %(limit)s"""


class SearchUnavailableError(Exception):
    """The index does not answer. Everything else works."""


class Search:
    """Queries the index.

    A caller waits at most a second, even if the index accepts queries and never answers.
    """

    def __init__(self) -> None:
        self._pool = AsyncConnectionPool[Any](
            index_dsn(),
            min_size=0,
            max_size=_SEARCHES_MAX,
            timeout=_SECONDS,
            reconnect_timeout=5.0,
            kwargs={"autocommit": True, "application_name": "annotations search"},
            open=False,
        )
        self._running: set[asyncio.Task[list[tuple[Any, ...]]]] = set()

    async def open(self) -> None:
        await self._pool.open(wait=False)

    async def close(self) -> None:
        for task in self._running:
            if not task.cancelling():  # A second one would interrupt the cancellation of its query.
                task.cancel()
        await self._pool.close(timeout=1.0)

    async def ids(self, words: str) -> list[int]:
        """Return the ids of the matches, best first."""
        rows = await self._query(_QUERY, {"words": words, "limit": RESULTS_MAX})
        return [name for (name,) in rows]

    async def is_up(self) -> bool:
        try:
            await self._query("select 1", None)
        except SearchUnavailableError:
            return False
        return True

    async def _query(self, query: str, params: Any) -> list[tuple[Any, ...]]:
        if len(self._running) >= _SEARCHES_MAX:
            raise SearchUnavailableError("the index does not answer")
        task = asyncio.create_task(self._run(query, params))
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        # A cancelled query may take a while to end; the request does not wait for that.
        await asyncio.wait({task}, timeout=_SECONDS)
        if not task.done():
            task.cancel()
            raise SearchUnavailableError("the index does not answer")
        try:
            return task.result()
        except (psycopg.OperationalError, PoolTimeout) as error:
            raise SearchUnavailableError("the index cannot be reached") from error

    async def _run(self, query: str, params: Any) -> list[tuple[Any, ...]]:
        async with self._pool.connection() as conn:
            cursor = await conn.execute(query, params)
            rows: list[tuple[Any, ...]] = await cursor.fetchall()
            return rows
