"""Reads for a process that shows the database to many people."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Final, TypeVar

from forebay._error import is_database_error
from forebay.client._address import address_of
from forebay.db.session import Session
from forebay.errors import ForebayError

if TYPE_CHECKING:
    from collections.abc import Callable

    from forebay.ops.operation import Operation

T = TypeVar("T")

_QUERY_CANCELED: Final = "57014"
_INSUFFICIENT_PRIVILEGE: Final = "42501"

#: Sessions close when none was used for this long.
_IDLE_SECONDS: Final = 30.0


class ReadTooSlow(ForebayError):  # noqa: N818 - says what happened
    """A read was ended by its time limit."""


class ReadRefused(ForebayError):  # noqa: N818 - says what happened
    """The database refused a statement for a reason that has no type here."""


def refusal(error: BaseException) -> ReadRefused | None:
    """Return an error of the database in our words; None for any other error."""
    if not is_database_error(error):
        return None
    message = str(error).partition("\n")[0]
    is_right = getattr(error, "sqlstate", "") == _INSUFFICIENT_PRIVILEGE
    return ReadRefused(
        f"the database refused: {message}",
        hint=(
            "To look, log in as a member of forebay_reader; to act, of forebay_operator."
            if is_right
            else None
        ),
    )


class Reader:
    """Runs reads on a few sessions, which open when they are needed.

    No statement can write, whatever the role may do, and each ends after its time limit. So a
    person who reloads a page cannot make the database busy.

    Args:
        dsn: as for ``AsyncClient``.
        name: the application_name of the sessions.
        sessions: how many reads run at once; further ones wait.
        seconds: the time limit of a statement.
    """

    def __init__(
        self,
        dsn: str | Callable[[], str] | None = None,
        *,
        name: str,
        sessions: int = 4,
        seconds: float = 2.0,
    ) -> None:
        self._dsn = dsn
        self._name = name
        self._seconds = seconds
        self._idle: list[Session] = []
        self._turns = asyncio.Semaphore(sessions)
        self._timer: asyncio.TimerHandle | None = None
        self._closing: asyncio.Task[None] | None = None

    @property
    def address(self) -> str:
        """The address, looked up on first use.

        Raises:
            ConfigError: no address is set.
        """
        self._dsn = address_of(self._dsn)
        return self._dsn

    async def run(self, operation: Operation[T]) -> T:
        """Run a read and return its result.

        Raises:
            ReadTooSlow: it took longer than the time limit.
            PermissionDenied: the login role has no right to it.
            ReadRefused: the database has another reason.
            DatabaseUnavailable: no connection, or it was lost.
            SchemaError: the database has no schema, or an old one.
            ForebayError: Forebay's SQL function refused.
        """
        async with self._turns:
            session = self._idle.pop() if self._idle else self._new()
            try:
                return await session.run(operation)
            except Exception as error:
                if is_database_error(error) and getattr(error, "sqlstate", "") == _QUERY_CANCELED:
                    raise ReadTooSlow(
                        f"the database did not answer within {self._seconds:g} s",
                        hint="Narrow the filter, or try again when the database is less busy.",
                    ) from error
                refused = refusal(error)
                if refused is None:
                    raise
                raise refused from error
            finally:
                self._idle.append(session)
                self._close_later()

    def _close_later(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(_IDLE_SECONDS, self._close_idle)

    def _close_idle(self) -> None:
        self._closing = asyncio.create_task(self.close())

    async def close(self) -> None:
        """Close the sessions; a later read opens new ones."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        while self._idle:
            with contextlib.suppress(Exception):
                await self._idle.pop().close()

    def _new(self) -> Session:
        return Session(
            self.address,
            name=self._name,
            lock_timeout="1s",
            call_seconds=2 * self._seconds + 1,
            settings={
                "statement_timeout": f"{round(1000 * self._seconds)}ms",
                "default_transaction_read_only": "on",
                "jit": "off",
            },
        )
