"""What every part of the asynchronous client needs."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from forebay.client._address import address_of
from forebay.db.drivers import AsyncConnection, run_async
from forebay.db.own import run_own_async
from forebay.ops.operation import Operation

T = TypeVar("T")


class AsyncClientBase:
    """Runs operations on a connection of the application, or on a new one."""

    def __init__(self, dsn: str | Callable[[], str] | None = None) -> None:
        self._dsn = dsn

    async def _run(self, conn: AsyncConnection | None, operation: Operation[T]) -> T:
        if conn is not None:
            return await run_async(conn, operation)
        self._dsn = address_of(self._dsn)
        return await run_own_async(self._dsn, operation)
