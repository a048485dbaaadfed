"""Statements of the user's on a database that need not have our schema, for sources and targets.

Sessions are connection out one call at a time and kept for the next. They belong to one event loop; on another, as in a process
that was forked, new ones are made.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, TypeVar

from forebay.db.own import run_own
from forebay.db.session import Session
from forebay.errors import DatabaseUnavailable, SchemaError

if TYPE_CHECKING:
    from collections.abc import Callable

    from forebay.ops.operation import Operation

T = TypeVar("T")

#: Kept for the next call; more are made when more are needed at once.
_IDLE_MAX: Final = 8


class ForeignSession:
    """A database by its address.

    Args:
        dsn: its address, or a function that returns it when it is first needed.
        name: application_name of the sessions.
        seconds: how long a statement may take.
    """

    def __init__(self, dsn: str | Callable[[], str], *, name: str, seconds: float = 30.0) -> None:
        self._dsn = dsn
        self._name = name
        self._seconds = seconds
        self._loop: asyncio.AbstractEventLoop | None = None
        self._idle: list[Session] = []

    async def run(self, operation: Operation[T]) -> T:
        """Run an operation in a transaction of its own.

        Raises:
            DatabaseUnavailable: no connection, or it was lost, and the outcome is unknown; or a table is missing.
            psycopg.Error: what the server said of the statement.
        """
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            self._loop, self._idle = loop, []
        idle = self._idle
        session = idle.pop() if idle else self._session()
        try:
            return await session.run(operation)
        except SchemaError as error:
            # The statement is not ours: what it misses is not our schema.
            problem = str(error.__cause__ or error).partition("\n")[0]
            raise DatabaseUnavailable(problem) from error
        finally:
            # Nobody would close it any more that comes back behind a ``close``.
            if idle is self._idle and len(idle) < _IDLE_MAX:
                idle.append(session)
            else:
                await session.close()

    def run_once(self, operation: Operation[T]) -> T:
        """Run an operation on a connection of its own, from anywhere."""
        return run_own(self._address(), operation)

    async def close(self) -> None:
        """Close the sessions that are not in use, and those that are when they come back."""
        idle, self._idle = self._idle, []
        if self._loop is asyncio.get_running_loop():
            for session in idle:
                await session.close()

    def _session(self) -> Session:
        return Session(self._address(), name=self._name, call_seconds=self._seconds)

    def _address(self) -> str:
        if not isinstance(self._dsn, str):
            self._dsn = self._dsn()
        return self._dsn
