"""A connection of Forebay that runs operations one at a time, each with a deadline.

The services of a worker process use it. A session connects when first used, and again after its
connection was lost. A call that fails because of the connection raises ``DatabaseUnavailable``. It
is not repeated here, because only the caller knows whether that is safe.

The deadline is enforced by closing the socket. If the server stopped answering, or the network
drops packets, a cancel request does not help: psycopg waits seconds for the server to confirm it.

Between the client and the server there may be a pooler that gives each transaction another server
session, such as PgBouncer in transaction mode. This shows when connecting: the process id that it
reported is not the server's. Such a session is *pooled*: nothing may remain in it. The settings for
a call are sent in the same message, as one transaction; no statement is prepared, and LISTEN is not
used. Invariant "no trace in a pooled session": docs/design/poolers.md. Shown by:
tests/faults/test_pgbouncer.py.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import time
from typing import TYPE_CHECKING, Any, Final, TypeVar

import psycopg

from forebay.db.errors import translate
from forebay.db.opening import connected_async
from forebay.db.server_settings import ENCODING, OF_SERVICES, for_one_transaction, known
from forebay.errors import DatabaseUnavailable
from forebay.forks import connects, keep_from_copies

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from forebay.ops.operation import Operation

T = TypeVar("T")

#: TCP settings for connections that die silently; the main protection is the deadline of each call.
KEEPALIVE: Final[dict[str, Any]] = {
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 15_000,
}

_PROGRAM_LIMIT_EXCEEDED: Final = "54000"

#: The class of errors of values; and null, or another value, where a table takes none.
_DATA_EXCEPTION: Final = "22"
_BAD_DATA: Final = frozenset({"23502", "23514", _PROGRAM_LIMIT_EXCEEDED})
#: invalid_sql_statement_name and duplicate_prepared_statement.
_OTHER_SESSION: Final = frozenset({"26000", "42P05"})
#: Among others: a migration replaced a function by one with another result type. Only the message
#: would tell, and servers translate messages.
_NOT_SUPPORTED: Final = "0A000"
_CONNECTION_EXCEPTION: Final = "08"
#: The message of ``forebay._report_deaths()``.
_DEATHS: Final = "forebay: dead letters"

#: One round trip: read the server's process id, and apply the settings only if it is the id
#: reported on connecting. Its names are qualified, since it runs before the search_path is set.
_GREETING: Final = """\
select pg_catalog.pg_backend_pid(),
       case when pg_catalog.pg_backend_pid()
           operator(pg_catalog.=) coalesce(%(reported)s, pg_catalog.pg_backend_pid()) then (
    select pg_catalog.count(pg_catalog.set_config(s.name, s.value, false))
    from rows from (
        pg_catalog.unnest(%(names)s::pg_catalog.text[]),
        pg_catalog.unnest(%(values)s::pg_catalog.text[])
    ) s (name, value)) end"""

#: An id that no process has: used if a pooler is configured, so that the session counts as pooled.
_NO_PROCESS: Final = -1


class Session:
    """One connection in autocommit mode, for one task at a time.

    Args:
        dsn: libpq connection string.
        name: application_name, shown in ``pg_stat_activity``.
        connect_seconds: deadline for connecting.
        call_seconds: deadline of one operation; after it the connection is dropped.
        lock_timeout: server-side limit for waiting for a lock; None leaves it to ``base``.
        settings: other server settings that its calls need.
        base: the server settings of this sort of connection; see ``forebay.db.server_settings``.
        on_deaths: called after a call that made jobs dead letters itself, with what
            ``forebay._report_deaths()`` told of them; must not raise.
        pooler: "transaction": there is a pooler in transaction mode; "session": there is no pooler,
            or one that keeps the server session; "auto": detect it.
    """

    def __init__(
        self,
        dsn: str,
        *,
        name: str,
        connect_seconds: float = 5.0,
        call_seconds: float = 30.0,
        lock_timeout: str | None = None,
        settings: Mapping[str, str] | None = None,
        base: Mapping[str, str] = OF_SERVICES,
        on_deaths: Callable[[Sequence[str]], None] | None = None,
        pooler: str = "auto",
    ) -> None:
        self._on_deaths = on_deaths
        #: What the call under way has told so far.
        self._deaths: list[str] = []
        self._dsn = dsn
        self._name = name
        self._connect_seconds = connect_seconds
        self._call_seconds = call_seconds
        self._settings = {**base, **(settings or {})}
        if lock_timeout is not None:
            self._settings["lock_timeout"] = lock_timeout
        self._pooler = pooler
        self._in_one_message = ""
        #: Whether the transactions of this connection run in changing server sessions; known once
        #: connected.
        self.is_pooled = False
        self._conn: psycopg.AsyncConnection[tuple[Any, ...]] | None = None
        self._lock = asyncio.Lock()
        self._used_at = 0.0
        self._channel: str | None = None
        self._is_listening = False
        #: The socket of which this session reads notifications between calls.
        self._watched: int | None = None
        #: How often this session connected; a change means that an answer may have been lost.
        self.connects = 0

    async def run(self, operation: Operation[T], *, seconds: float | None = None) -> T:
        """Run an operation in a separate transaction and return the decoded result.

        If the server does not know a prepared statement, or its result type changed, the statement
        did not run: it is sent once more, on a new connection.

        Args:
            operation: what to run.
            seconds: deadline of this call; None means the session's.

        Raises:
            DatabaseUnavailable: no connection, or it was lost; the outcome is unknown.
            ForebayError: Forebay's SQL function refused.
        """
        try:
            return await self._run(operation, seconds)
        except psycopg.Error as error:
            if not self._is_stale(error):
                raise
        await self._drop()
        return await self._run(operation, seconds)

    def _is_stale(self, error: psycopg.Error) -> bool:
        """Whether the call failed only because of a prepared statement of this connection."""
        if error.sqlstate in _OTHER_SESSION:
            # The prepared statement is in another session: there is a pooler that reports the
            # server's process id.
            self._pooler = "transaction"
            return True
        return error.sqlstate == _NOT_SUPPORTED

    async def _run(self, operation: Operation[T], seconds: float | None) -> T:
        async with self._lock:
            conn = await self._connected()
            # From here on psycopg reads the socket.
            watched, self._watched = self._watched, None
            await self._listen_on(conn)
            loop = asyncio.get_running_loop()
            guard = loop.call_later(seconds or self._call_seconds, cut, conn)
            self._deaths = []
            try:
                cursor = await self._execute(conn, operation)
                rows = await cursor.fetchall() if cursor.description else []
            except psycopg.Error as error:
                if conn.closed:
                    self._conn = None
                ours = translate(error)
                if isinstance(ours, DatabaseUnavailable):
                    await self._drop()
                if ours is None:
                    raise
                raise ours from error
            except OSError as error:
                # The selector reports that its socket was closed.
                await self._drop()
                raise DatabaseUnavailable(str(error)) from error
            except asyncio.CancelledError:
                await self._drop()
                raise
            finally:
                guard.cancel()
                self._used_at = time.monotonic()
                if self._conn is not conn and watched is not None:
                    loop.remove_reader(
                        watched
                    )  # psycopg may have failed before it replaced this reader.
                self._watch()
            if self._deaths and self._on_deaths is not None:
                self._on_deaths(self._deaths)
        return operation.decode(rows)

    async def _execute(
        self, conn: psycopg.AsyncConnection[tuple[Any, ...]], operation: Operation[Any]
    ) -> psycopg.AsyncCursor[tuple[Any, ...]]:
        if not self.is_pooled or operation.outside_block:
            return await conn.execute(operation.sql, operation.params)
        # Several statements in one message are one transaction; its settings end with it.
        cursor = psycopg.AsyncClientCursor(conn)
        await cursor.execute(self._in_one_message + operation.sql, operation.params)
        await cursor.set_result(-1)
        return cursor

    def listen(self, channel: str, read: Callable[[str], None], lost: Callable[[], None]) -> None:
        """Listen on a channel from the next call on, also after a reconnect.

        A pooled session does not listen.

        Notifications are read between calls and with their answers.

        Args:
            channel: the name of the channel.
            read: called with the text of each notification; must not raise.
            lost: called when the connection is lost between two calls; the next call connects
                again.
        """
        self._channel, self._read, self._lost = channel, read, lost

    async def _listen_on(self, conn: psycopg.AsyncConnection[Any]) -> None:
        if self._channel is None or self._is_listening or self.is_pooled:
            return
        conn.add_notify_handler(lambda message: self._read(message.payload))
        try:
            async with asyncio.timeout(self._call_seconds):
                await conn.execute(f'listen "{self._channel}"')
        except (psycopg.Error, OSError, TimeoutError) as error:
            await self._drop()
            ours = translate(error) if isinstance(error, psycopg.Error) else None
            raise ours or DatabaseUnavailable(str(error)) from error
        self._is_listening = True

    def _watch(self) -> None:
        """Read notifications until the next call: psycopg reads the socket during calls only,
        and then removes this reader.
        """
        conn = self._conn
        if self._is_listening and conn is not None and not conn.closed:
            self._watched = conn.pgconn.socket
            asyncio.get_running_loop().add_reader(self._watched, self._read_notifications)

    def _read_notifications(self) -> None:
        conn = self._conn
        if conn is None:
            self._unwatch()
            return
        if self._watched is None:
            return  # A call has begun.
        pgconn = conn.pgconn
        try:
            pgconn.consume_input()
            while message := pgconn.notifies():
                self._read(message.extra.decode())
        except psycopg.Error:
            self._unwatch()
            self._lost()

    def _unwatch(self) -> None:
        # The reader is removed by the number of its socket: a lost connection no longer has it, and
        # the loop would take the next socket with this number for the old one.
        if self._watched is not None:
            asyncio.get_running_loop().remove_reader(self._watched)
            self._watched = None

    @property
    def is_open(self) -> bool:
        """Whether it is connected, as far as it knows."""
        return self._conn is not None

    @property
    def is_free(self) -> bool:
        """Whether it is connected and no call is under way."""
        return self._conn is not None and not self._lock.locked()

    async def rest(self, seconds: float) -> None:
        """Close the connection if it was not used for this long; the next call connects again."""
        if (
            self._conn is not None
            and not self._lock.locked()
            and time.monotonic() - self._used_at >= seconds
        ):
            await self._drop()

    def cut(self) -> None:
        """Close the socket at once; a call that is under way fails."""
        if self._conn is not None:
            cut(self._conn)

    async def end(self, seconds: float) -> None:
        """Close the socket, and wait until the call under way has failed, but not for longer than
        this. From now on a call waits until it is cancelled.

        A call that is cancelled before it has noticed the closed socket, or that begins on it,
        would try to cancel its query there, and psycopg would log that this failed.
        """
        self.cut()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._lock.acquire()  # For good: no further call gets it.

    @staticmethod
    def refused(error: BaseException) -> bool:
        """Whether the server itself refused a call, so that the call committed nothing.

        Connection errors do not count: a pooler reports such an error when it lost the server
        during the call.
        """
        sqlstate = _sqlstate(error)
        return sqlstate is not None and not sqlstate.startswith(_CONNECTION_EXCEPTION)

    @staticmethod
    def is_bad_data(error: BaseException) -> bool:
        """Whether the server refused a value of a call: it would refuse the same call again."""
        sqlstate = _sqlstate(error) or ""
        return sqlstate[:2] == _DATA_EXCEPTION or sqlstate in _BAD_DATA

    @staticmethod
    def is_too_large(error: BaseException) -> bool:
        """Whether the server refused a call because its answer would exceed the largest size of
        a value.
        """
        return _sqlstate(error) == _PROGRAM_LIMIT_EXCEEDED

    async def close(self) -> None:
        """Close the connection; the session can be used again."""
        await self._drop()

    async def _connected(self) -> psycopg.AsyncConnection[tuple[Any, ...]]:
        if self._conn is not None and not self._conn.closed:
            return self._conn
        self._unwatch()
        self._conn = None
        self._is_listening = False
        self._conn, self.is_pooled = await open_connection(
            self._dsn,
            name=self._name,
            seconds=self._connect_seconds,
            settings=self._settings,
            pooler=self._pooler,
        )
        self._in_one_message = for_one_transaction(self._settings, self._conn.info.server_version)
        self.connects += 1
        if self._on_deaths is not None:
            self._conn.add_notice_handler(self._keep_deaths)
        return self._conn

    def _keep_deaths(self, message: psycopg.errors.Diagnostic) -> None:
        if message.message_primary == _DEATHS and message.message_detail:
            self._deaths.append(message.message_detail)

    async def _drop(self) -> None:
        conn, self._conn = self._conn, None
        if conn is not None:
            self._unwatch()
            # Do not wait for the server: it may no longer respond.
            cut(conn)
            with contextlib.suppress(psycopg.Error, OSError):
                await conn.close()


def socket_of(conn: psycopg.AsyncConnection[Any] | psycopg.Connection[Any]) -> int:
    """Return the descriptor of a connection.

    Raises:
        psycopg.OperationalError: it is closed.
    """
    return conn.pgconn.socket


def cut(conn: psycopg.AsyncConnection[Any] | psycopg.Connection[Any]) -> None:
    """End a connection at once, from any thread: its user gets an error as if the server had
    closed it.

    The socket is shut down, not closed: the connection keeps the descriptor until it notices.
    """
    with contextlib.suppress(OSError, psycopg.Error):
        with socket.socket(fileno=os.dup(conn.pgconn.socket)) as mine:
            mine.shutdown(socket.SHUT_RDWR)


def _sqlstate(error: BaseException) -> str | None:
    while not isinstance(error, psycopg.Error):
        if error.__cause__ is None:
            return None
        error = error.__cause__
    return error.sqlstate


async def _connect(dsn: str, name: str, seconds: float) -> psycopg.AsyncConnection[tuple[Any, ...]]:
    """Connect. If cancelled, close what was opened so far at once."""
    try:
        return await connected_async(
            dsn,
            autocommit=True,
            application_name=name,
            connect_timeout=max(2, int(seconds)),
            **ENCODING,
            **KEEPALIVE,
        )
    except asyncio.CancelledError as error:
        # Only the frames of psycopg hold the half-open connection, and the traceback holds them:
        # who keeps the error keeps it open.
        raise error.with_traceback(None)  # noqa: B904 - the error itself


async def open_connection(
    dsn: str,
    *,
    name: str,
    seconds: float,
    settings: Mapping[str, str],
    pooler: str,
) -> tuple[psycopg.AsyncConnection[tuple[Any, ...]], bool]:
    """Connect within a deadline; return the connection, and whether it is pooled.

    The settings are applied only if the connection keeps its server session.

    Raises:
        DatabaseUnavailable: the server is unreachable, or refuses temporarily.
    """
    conn: psycopg.AsyncConnection[tuple[Any, ...]] | None = None
    try:
        async with asyncio.timeout(seconds):
            with connects():
                conn = await _connect(dsn, name, seconds)
                keep_from_copies(conn, socket_of)
            settings = known(settings, conn.info.server_version)
            reported = {"session": None, "transaction": _NO_PROCESS}.get(
                pooler, conn.pgconn.backend_pid
            )
            row = await (
                await conn.execute(
                    _GREETING,
                    {
                        "reported": reported,
                        "names": list(settings),
                        "values": list(settings.values()),
                    },
                )
            ).fetchone()
            assert row is not None
            is_pooled = reported is not None and row[0] != reported
            if is_pooled:
                conn.prepare_threshold = None
            made, conn = conn, None
            return made, is_pooled
    except TimeoutError as error:
        raise DatabaseUnavailable(f"no connection within {seconds:g} s") from error
    except psycopg.Error as error:
        raise translate(error) or DatabaseUnavailable(str(error)) from error
    except OSError as error:
        raise DatabaseUnavailable(str(error)) from error
    finally:
        if conn is not None:
            # Connected, but not prepared in time: close it here.
            cut(conn)
            await conn.close()
