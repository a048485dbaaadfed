"""Connections for handlers that run in a transaction: pools that open only when one is needed."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
import weakref
from typing import TYPE_CHECKING, Any, Final

import psycopg
from psycopg.rows import tuple_row
from psycopg.transaction import BaseTransaction

from forebay.db.errors import translate
from forebay.db.opening import classes_of
from forebay.db.server_settings import ENCODING
from forebay.db.session import KEEPALIVE
from forebay.errors import DatabaseUnavailable

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Generator, Iterator

    from psycopg_pool import AsyncConnectionPool, ConnectionPool

    from forebay.ops.operation import Operation, T


_IDLE: Final = psycopg.pq.TransactionStatus.IDLE

#: Far more than the number of slots, which limits the use of a pool. A handler that ignores its
#: timeout keeps its connection, cut off from the server; later handlers must still get one.
_CONNECTIONS_MAX: Final = 20_000

#: A handler connection that was idle for this long is checked by one round trip before its next
#: use: the server may end idle sessions, and a firewall may forget idle connections.
_IDLE_SECONDS: Final = 0.2

#: When a handler connection was last known to work.
_used_at: weakref.WeakKeyDictionary[Any, float] = weakref.WeakKeyDictionary()


def async_pool(
    dsn: str, *, name: str, is_pooled: bool = False, size: int = _CONNECTIONS_MAX
) -> AsyncConnectionPool[Any]:
    """Return a pool of asynchronous connections that is not open yet.

    Connections are opened when needed.
    """
    from psycopg_pool import AsyncConnectionPool  # noqa: PLC0415 - most workers have no pool

    return AsyncConnectionPool(
        dsn,
        connection_class=classes_of(dsn)[1],
        min_size=0,
        max_size=size,
        open=False,
        timeout=30,
        max_idle=60,
        reconnect_timeout=5,
        kwargs=connect_options(name, is_pooled=is_pooled),
        name=name,
    )


def sync_pool(
    dsn: str, *, name: str, is_pooled: bool = False, size: int = _CONNECTIONS_MAX
) -> ConnectionPool[Any]:
    """Open a pool; connections are opened when needed."""
    from psycopg_pool import ConnectionPool  # noqa: PLC0415 - most workers have no pool

    return ConnectionPool(
        dsn,
        connection_class=classes_of(dsn)[0],
        min_size=0,
        max_size=size,
        open=True,
        timeout=30,
        max_idle=60,
        reconnect_timeout=5,
        kwargs=connect_options(name, is_pooled=is_pooled),
        name=name,
    )


def record_use(conn: Any) -> None:
    """Record that a connection worked until now; call it when a handler gives it back."""
    _used_at[conn] = time.monotonic()


def was_idle(conn: Any) -> bool:
    """Return whether a connection must be checked before it is used."""
    return time.monotonic() - _used_at.get(conn, 0.0) >= _IDLE_SECONDS


async def take(pool: AsyncConnectionPool[Any]) -> psycopg.AsyncConnection[Any]:
    """Take a connection that works. One that ended while it was idle costs a round trip.

    The pool's own check waits for a second after each connection that had ended. Where the server
    ends idle sessions sooner, the next one has ended too.

    Raises:
        PoolTimeout: no connection came in time.
    """
    while True:
        conn: psycopg.AsyncConnection[Any] = await pool.getconn()
        if not was_idle(conn):
            return conn
        try:
            await pool.check_connection(conn)
        except psycopg.Error:
            await pool.putconn(conn)
        except BaseException:
            await pool.putconn(conn)
            raise
        else:
            return conn


def take_plain(pool: ConnectionPool[Any]) -> psycopg.Connection[Any]:
    """Take a connection that works; see ``take``."""
    while True:
        conn: psycopg.Connection[Any] = pool.getconn()
        if not was_idle(conn):
            return conn
        try:
            pool.check_connection(conn)
        except psycopg.Error:
            pool.putconn(conn)
        except BaseException:
            pool.putconn(conn)
            raise
        else:
            return conn


def connect_options(name: str, *, is_pooled: bool) -> dict[str, Any]:
    """Return the options of every handler connection."""
    options = {"application_name": name, "connect_timeout": 5, **ENCODING, **KEEPALIVE}
    if is_pooled:
        # A statement prepared in one server session does not exist in the next.
        options["prepare_threshold"] = None
    return options


def spoils_connection(error: BaseException) -> bool:
    """Whether an error means that its connection is unusable, such as one to a server that is
    now read-only.
    """
    return isinstance(error, DatabaseUnavailable) or isinstance(
        translate(error), DatabaseUnavailable
    )


def is_duplicate(error: BaseException, constraint: str) -> bool:
    """Whether an error says that another row has the key of this constraint of Forebay's schema.

    The user's tables may have constraints with the same name.
    """
    return (
        isinstance(error, psycopg.errors.UniqueViolation)
        and error.diag.schema_name == "forebay"
        and error.diag.constraint_name == constraint
    )


#: The server ended a session because its user was slow: idle_in_transaction_session_timeout,
#: transaction_timeout.
_SLOW: Final = ("25P03", "25P04")


def may_have_committed(error: BaseException) -> bool:
    """Whether a commit may have arrived though its message ended with this error."""
    return spoils_connection(error) and _sqlstate(error) not in _SLOW


def broken(problem: str) -> Exception:
    """Return the error of the driver for a connection that broke; the text is given."""
    return psycopg.OperationalError(problem)


def says_read_only(error: BaseException) -> bool:
    """Whether the server refused a write because of the transaction, or of the whole server."""
    return _sqlstate(error) == "25006"


def _sqlstate(error: BaseException) -> str | None:
    driver = error if isinstance(error, psycopg.Error) else error.__cause__
    return driver.sqlstate if isinstance(driver, psycopg.Error) else None


#: 'on' outside of a transaction says that all transactions of the session are read-only.
READ_ONLY: Final = "show transaction_read_only"


#: Removes what a handler may have left in its session; settings and roles become those of the
#: connect. Deferred constraints are checked first, while their triggers still find the handler's
#: settings. Not DISCARD ALL: it must run outside a transaction, which a pooler may run in another
#: session, and it discards the plans of Forebay's functions, which costs 15 ms a job; this costs
#: 0.07 ms (decision 0022).
_RESET: Final = (
    "set constraints all immediate; close all; reset session authorization; reset role; "
    "reset all; unlisten *;"
    " select pg_advisory_unlock_all(); discard sequences; discard temp; "
)

#: A rollback has already undone settings, roles and tables; session locks remain. One message, so
#: that a pooler runs both statements in the same session.
UNLOCK: Final = "rollback; select pg_advisory_unlock_all()"


async def settle_on(conn: psycopg.AsyncConnection[Any], operation: Operation[T]) -> T:
    """Clear what a handler left in its session, then run the operation that settles its job.

    The order matters: the settlement limits how long its transaction may be idle, and a reset would
    undo that limit.

    Raises:
        ForebayError: Forebay's SQL function refused, or DatabaseUnavailable.
    """
    cursor = psycopg.AsyncClientCursor(conn, row_factory=tuple_row)
    try:
        await cursor.execute(_RESET + operation.sql, operation.params)
        await cursor.set_result(-1)
        rows = await cursor.fetchall()
    except psycopg.Error as error:
        ours = translate(error)
        if ours is None:
            raise
        raise ours from error
    finally:
        await cursor.close()
    return operation.decode(rows)


def settle_on_sync(conn: psycopg.Connection[Any], operation: Operation[T]) -> T:
    """Do as ``settle_on``, for a plain handler's connection.

    Raises:
        ForebayError: Forebay's SQL function refused, or DatabaseUnavailable.
    """
    cursor = psycopg.ClientCursor(conn, row_factory=tuple_row)
    try:
        cursor.execute(_RESET + operation.sql, operation.params)
        cursor.set_result(-1)
        rows = cursor.fetchall()
    except psycopg.Error as error:
        ours = translate(error)
        if ours is None:
            raise
        raise ours from error
    finally:
        cursor.close()
    return operation.decode(rows)


async def settle_and_commit_on(
    conn: psycopg.AsyncConnection[Any], operation: Operation[None], *, begins: bool
) -> None:
    """Run the last operation of a handler's transaction and commit, in one message: the server
    commits only if no statement failed.

    Args:
        conn: inside ``handler_transaction``.
        operation: settles the job, or records a step, and clears the session, except for roles; it
            raises an error if it did nothing.
        begins: also begin the next transaction of this connection.

    Raises:
        ForebayError: Forebay's SQL function refused and nothing was committed; or
            DatabaseUnavailable: the outcome is unknown.
    """
    message = _last_message(conn, operation, begins=begins)
    try:
        async with conn.lock:
            await conn.wait(_sent(conn, message))
    except psycopg.Error as error:
        ours = translate(error)
        if ours is None:
            raise
        raise ours from error


def settle_and_commit_plain(
    conn: psycopg.Connection[Any], operation: Operation[None], *, begins: bool
) -> None:
    """Do as ``settle_and_commit_on``, for a plain handler's connection."""
    message = _last_message(conn, operation, begins=begins)
    try:
        with conn.lock:
            conn.wait(_sent(conn, message))
    except psycopg.Error as error:
        ours = translate(error)
        if ours is None:
            raise
        raise ours from error


def _sent(conn: Any, message: bytes) -> Generator[Any, Any, None]:
    """Send a message and read its results, without the cost of a cursor.

    The last one tells whether it failed.
    """
    conn.pgconn.send_query(message)
    results = yield from psycopg.generators.execute(conn.pgconn)
    if results[-1].status == psycopg.pq.ExecStatus.FATAL_ERROR:
        raise psycopg.errors.error_from_result(results[-1], encoding=conn.info.encoding)


def _last_message(conn: Any, operation: Operation[None], *, begins: bool) -> bytes:
    if conn._num_transactions != 1:  # noqa: SLF001 - psycopg checks it in the commit, which is too late here
        raise psycopg.ProgrammingError(
            "the handler left a transaction block open: end it before the handler returns"
        )
    # Triggers of deferred constraints still find what the handler set. The function clears the
    # rest: it cannot reset roles.
    sql = operation.sql
    if operation.params:
        sql = psycopg.ClientCursor(conn).mogrify(sql, operation.params)
    return (
        "set constraints all immediate; reset session authorization; reset role;"
        f" {sql}; COMMIT{'; BEGIN' if begins else ''}"
    ).encode(conn.info.encoding)


class _HandlerTransaction(BaseTransaction[Any]):
    """Changes psycopg's transactions: one message may have begun this one already, and another
    one may have committed it.

    These methods of psycopg are not public. If a later version calls them no more, it sends a BEGIN
    or a COMMIT too many, which the server answers with a warning; the test of the number of
    messages then fails.
    """

    is_committed = False

    def _push_savepoint(self) -> None:
        super()._push_savepoint()
        self._has_begun = not self._outer_transaction
        self._outer_transaction, self._savepoint_name = True, ""

    def _get_enter_commands(self) -> Iterator[bytes]:
        if not self._has_begun:
            yield from super()._get_enter_commands()

    def _get_commit_commands(self) -> Iterator[bytes]:
        if not self.is_committed:
            yield from super()._get_commit_commands()


class HandlerTransaction(_HandlerTransaction, psycopg.Transaction):
    """The transaction of a plain handler, on a connection where no other one runs.

    ``is_committed``: the server has committed it.
    """


class AsyncHandlerTransaction(_HandlerTransaction, psycopg.AsyncTransaction):
    """The transaction of a coroutine handler; see ``HandlerTransaction``."""


def misuse_of(conn: Any) -> str | None:
    """Return how a function has left the transaction that began for it; None: as it should be.

    What ended by SQL may be committed or lost, and a settlement after it would be a commit of its
    own. An open COPY would keep the connection busy without end, so the connection is closed.
    """
    match conn.pgconn.transaction_status:
        case psycopg.pq.TransactionStatus.IDLE:
            return "ends the transaction of its connection by SQL"
        case psycopg.pq.TransactionStatus.ACTIVE:
            conn.pgconn.finish()
            # The COPY holds it, and what ends the transaction would wait for it.
            conn.lock = threading.Lock() if isinstance(conn, psycopg.Connection) else asyncio.Lock()
            return "leaves a COPY open"
    return None


def refuse_misuse(conn: Any) -> None:
    """Raise what ``misuse_of`` found.

    Raises:
        ProgrammingError: as for a ``commit()`` in the handler.
    """
    if (misuse := misuse_of(conn)) is not None:
        raise psycopg.ProgrammingError(
            f"the handler {misuse}: its transaction is committed when it has returned"
        )


@contextlib.asynccontextmanager
async def handler_transaction(
    conn: psycopg.AsyncConnection[Any],
) -> AsyncIterator[AsyncHandlerTransaction]:
    """Run a transaction that leaves nothing of the handler in its session, however it ends."""
    factories = _factories(conn)
    try:
        async with AsyncHandlerTransaction(conn) as transaction:
            try:
                yield transaction
            except BaseException:
                with contextlib.suppress(psycopg.Error, OSError):
                    await psycopg.AsyncClientCursor(conn).execute(UNLOCK)
                raise
    finally:
        _restore(conn, factories)


@contextlib.contextmanager
def handler_transaction_sync(conn: psycopg.Connection[Any]) -> Iterator[HandlerTransaction]:
    """Do as ``handler_transaction``, for a plain handler."""
    factories = _factories(conn)
    try:
        with HandlerTransaction(conn) as transaction:
            try:
                yield transaction
            except BaseException:
                with contextlib.suppress(psycopg.Error, OSError):
                    psycopg.ClientCursor(conn).execute(UNLOCK)
                raise
    finally:
        _restore(conn, factories)


#: What a handler may set on the connection object itself.
_FACTORIES: Final = ("row_factory", "cursor_factory", "server_cursor_factory", "prepare_threshold")


def _factories(conn: Any) -> dict[str, Any]:
    return {name: getattr(conn, name) for name in _FACTORIES}


def _restore(conn: Any, factories: dict[str, Any]) -> None:
    for name, value in factories.items():
        setattr(conn, name, value)
