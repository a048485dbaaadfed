"""Connections of asyncpg and of its pools.

The statement uses the connection's ``fetch``, with its cache of prepared statements. Records are
read by position, so the caller's record class and codecs have no effect.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import asyncpg
from asyncpg.pool import PoolConnectionProxy

from forebay.db.drivers._numbered import numbered

if TYPE_CHECKING:
    from forebay.db.drivers._adapters import AsyncRunner, FetchedRows, Runner


def sync_runner(conn: Any) -> Runner | None:
    """Return None: asyncpg has asynchronous connections only."""
    del conn
    return None


def stands_for(conn: Any) -> Any:
    """Return the object: one of a pool has the methods of its connection."""
    return conn


def driver_connection(conn: Any) -> Any:
    """Return the object."""
    return conn


def async_runner(conn: Any) -> AsyncRunner | None:
    """Return the runner for an asyncpg connection; None for other objects."""
    if not isinstance(conn, asyncpg.Connection | PoolConnectionProxy):
        return None

    async def run(sql: str, params: Mapping[str, Any]) -> FetchedRows:
        text, values = numbered(sql, params)
        records = await conn.fetch(text, *values, record_class=asyncpg.Record)
        return [tuple(record.values()) for record in records]

    return run
