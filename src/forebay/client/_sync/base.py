# Generated from src/forebay/client/_async/base.py by tools/async_to_sync.py. Do not edit.
"""What every part of the synchronous client needs."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from forebay.client._address import address_of
from forebay.db.drivers import SyncConnection, run
from forebay.db.own import run_own
from forebay.ops.operation import Operation

T = TypeVar("T")


class ClientBase:
    """Runs operations on a connection of the application, or on a new one."""

    def __init__(self, dsn: str | Callable[[], str] | None = None) -> None:
        self._dsn = dsn

    def _run(self, conn: SyncConnection | None, operation: Operation[T]) -> T:
        if conn is not None:
            return run(conn, operation)
        self._dsn = address_of(self._dsn)
        return run_own(self._dsn, operation)
