"""Sessions for the user's statements on a database without Forebay's schema: sources and targets
of mirrors.

Each call uses one session, which is kept for the next call. Sessions belong to one event loop; on
another loop, as in a forked process, new ones are opened.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, TypeVar

from forebay.db.own import run_own
from forebay.db.server_settings import OF_CALLS
from forebay.db.session import Session
from forebay.errors import DatabaseUnavailable, SchemaError

if TYPE_CHECKING:
    from collections.abc import Callable

    from forebay.ops.operation import Operation

T = TypeVar("T")

#: Idle sessions kept for later calls; more are opened when more are needed at once.
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
        """Run an operation in a separate transaction.

        Raises:
            DatabaseUnavailable: no connection, or it was lost, and the outcome is unknown; or a
                table is missing.
            psycopg.Error: the server refused the statement.
        """
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            self._loop, self._idle = loop, []
        idle = self._idle
        session = idle.pop() if idle else self._session()
        try:
            return await session.run(operation)
        except SchemaError as error:
            # The statement is the user's: the missing object does not belong to Forebay's schema.
            problem = str(error.__cause__ or error).partition("\n")[0]
            raise DatabaseUnavailable(problem) from error
        finally:
            # A session that is returned after ``close`` must be closed here.
            if idle is self._idle and len(idle) < _IDLE_MAX:
                idle.append(session)
            else:
                await session.close()

    def run_once(self, operation: Operation[T]) -> T:
        """Run an operation on a new connection, from any thread or loop."""
        return run_own(self._address(), operation)

    async def close(self) -> None:
        """Close idle sessions now, and sessions in use when they are returned."""
        idle, self._idle = self._idle, []
        if self._loop is asyncio.get_running_loop():
            for session in idle:
                await session.close()

    def _session(self) -> Session:
        return Session(self._address(), name=self._name, call_seconds=self._seconds, base=OF_CALLS)

    def _address(self) -> str:
        if not isinstance(self._dsn, str):
            self._dsn = self._dsn()
        return self._dsn
