"""Connections of asyncpg, and those its pools hand out.

The statement goes through the connection's own ``fetch``, with its cache of prepared statements,
and its records are read by position: a record class or a codec of the caller's makes no difference.
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


def async_runner(conn: Any) -> AsyncRunner | None:
    """Return what runs a statement on an asyncpg connection; None for anything else."""
    if not isinstance(conn, asyncpg.Connection | PoolConnectionProxy):
        return None

    async def run(sql: str, params: Mapping[str, Any]) -> FetchedRows:
        text, values = numbered(sql, params)
        records = await conn.fetch(text, *values, record_class=asyncpg.Record)
        return [tuple(record.values()) for record in records]

    return run
