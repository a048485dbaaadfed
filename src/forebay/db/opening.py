"""How connections are opened: by their address, or as the app says.

Everything in Forebay that connects does it here, so that ``App(connect=...)`` and
``App(password=...)`` hold for all of it. The app's function is called for each new connection,
never inside of a transaction. A coroutine function runs on the loop that connects, or on a loop for
this call. A plain one runs in a thread if a loop waits for it.

What it raises is ``DatabaseUnavailable``: to a worker, a vault that is away is a database that is
away.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final, NoReturn

import psycopg

from forebay.config import OwnAddress
from forebay.db.address import parsed_address
from forebay.errors import ConfigError, DatabaseUnavailable
from forebay.in_threads import in_thread

if TYPE_CHECKING:
    from collections.abc import Callable

_IDLE: Final = psycopg.pq.TransactionStatus.IDLE

#: Our options that parameters of the app replace; all others are needed as they are.
_REPLACED: Final = (
    "connect_timeout",
    "keepalives_idle",
    "keepalives_interval",
    "keepalives_count",
    "tcp_user_timeout",
)
#: Options of psycopg's connect that are attributes of a connection.
_OF_OBJECT: Final = ("autocommit", "row_factory", "prepare_threshold", "cursor_factory")


def connected(address: str, **options: Any) -> psycopg.Connection[Any]:
    """Open a connection.

    Args:
        address: the address; that of an app may have functions.
        options: as of ``psycopg.connect``.

    Raises:
        psycopg.Error: the server refused, or is away.
        DatabaseUnavailable: the app's function raised an error.
        ConfigError: it returned what is neither a connection nor its parameters.
    """
    if not isinstance(address, OwnAddress):
        return psycopg.connect(address, **options)
    if address.connect is None:
        given = {"password": _checked_password(_called("password", address.password))}
        return psycopg.connect(str(address), **options | given)
    made = _called("connect", address.connect)
    if isinstance(made, psycopg.AsyncConnection):
        made = psycopg.Connection(pgconn_out_of(made))
    if isinstance(made, psycopg.Connection):
        with _closed_on_error(made):
            is_utf8 = _checked(made).info.encoding == "utf-8"
            made.autocommit = True
            if not is_utf8:
                made.execute("set client_encoding to utf8")
            made.autocommit = bool(options.get("autocommit"))
            _prepare(made, options)
        return made
    return psycopg.connect(**_merged(made, options))


async def connected_async(address: str, **options: Any) -> psycopg.AsyncConnection[Any]:
    """Do as ``connected``, asynchronously."""
    if not isinstance(address, OwnAddress):
        return await psycopg.AsyncConnection.connect(address, **options)
    if address.connect is None:
        password = _checked_password(await _awaited("password", address.password))
        given = {"password": password}
        return await psycopg.AsyncConnection.connect(str(address), **options | given)
    made = await _awaited("connect", address.connect)
    if isinstance(made, psycopg.Connection):
        made = psycopg.AsyncConnection(pgconn_out_of(made))
    if isinstance(made, psycopg.AsyncConnection):
        with _closed_on_error(made):
            is_utf8 = _checked(made).info.encoding == "utf-8"
            await made.set_autocommit(True)
            if not is_utf8:
                await made.execute("set client_encoding to utf8")
            await made.set_autocommit(bool(options.get("autocommit")))
            _prepare(made, options)
        return made
    return await psycopg.AsyncConnection.connect(**_merged(made, options))


def classes_of(address: str) -> tuple[type[psycopg.Connection], type[psycopg.AsyncConnection]]:
    """Return the classes whose ``connect`` opens connections to an address, for a pool."""
    if not isinstance(address, OwnAddress):
        return psycopg.Connection, psycopg.AsyncConnection

    class Opened(psycopg.Connection[Any]):
        @classmethod
        def connect(cls, conninfo: str = "", **options: Any) -> Any:
            del conninfo  # A pool makes another text of it.
            return connected(address, **options)

    class AsyncOpened(psycopg.AsyncConnection[Any]):
        @classmethod
        async def connect(cls, conninfo: str = "", **options: Any) -> Any:
            del conninfo
            return await connected_async(address, **options)

    return Opened, AsyncOpened


def _called(name: str, function: Callable[[], Any] | None) -> Any:
    assert function is not None
    try:
        made = function()
        return _run(made) if inspect.isawaitable(made) else made
    except Exception as error:
        _fail(name, error)


async def _awaited(name: str, function: Callable[[], Any] | None) -> Any:
    assert function is not None
    try:
        if inspect.iscoroutinefunction(function):
            return await function()
        made = await _in_thread(function)
        return await made if inspect.isawaitable(made) else made
    except Exception as error:
        _fail(name, error)


async def _in_thread(function: Callable[[], Any]) -> Any:
    """Call a function in a thread. If this is cancelled, its connection is closed when it comes."""
    calling = asyncio.ensure_future(in_thread(function))
    try:
        return await asyncio.shield(calling)
    except asyncio.CancelledError:
        calling.add_done_callback(_close_late)
        raise


def _close_late(calling: asyncio.Future[Any]) -> None:
    if not calling.cancelled() and calling.exception() is None:
        with contextlib.suppress(AttributeError):  # It may be parameters.
            calling.result().pgconn.finish()


def _fail(name: str, error: Exception) -> NoReturn:
    if isinstance(error, psycopg.Error | ConfigError | DatabaseUnavailable):
        raise error
    # Not its text: it may have the password.
    raise DatabaseUnavailable(f"{name} of the app raised {type(error).__name__}") from error


def _run(awaitable: Any) -> Any:
    """Wait for an awaitable in plain code, also below a running loop."""

    async def main() -> Any:
        return await awaitable

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(main())
    with ThreadPoolExecutor(1) as one:
        return one.submit(asyncio.run, main()).result()


def _checked_password(password: Any) -> str:
    if not isinstance(password, str):
        raise ConfigError("password of the app", f"returned {type(password).__name__}, not text")
    return password


def _merged(made: Any, options: dict[str, Any]) -> dict[str, Any]:
    if isinstance(made, str):
        given = parsed_address(made)
    elif isinstance(made, Mapping) and all(isinstance(name, str) for name in made):
        given = dict(made)
    else:
        raise ConfigError(
            "connect of the app",
            f"returned {type(made).__name__}, neither a psycopg connection nor its parameters",
            hint='Return psycopg.connect(...), an address, or {"host": ..., "password": ...}.',
        )
    needed = {name: value for name, value in options.items() if name not in _REPLACED}
    return options | given | needed


def pgconn_out_of(made: Any) -> psycopg.pq.abc.PGconn:
    """Return the connection of libpq of a connection of the other sort, which ends with that."""
    pgconn: psycopg.pq.abc.PGconn = made.pgconn
    del made.pgconn
    return pgconn


def _checked(made: Any) -> Any:
    if made.closed or made.info.transaction_status != _IDLE:
        raise ConfigError(
            "connect of the app",
            "returned a connection that is closed or in a transaction",
            hint="Return a new connection each time.",
        )
    return made


def _prepare(made: Any, options: dict[str, Any]) -> None:
    for name in _OF_OBJECT:
        if name in options and name != "autocommit":
            setattr(made, name, options[name])


@contextlib.contextmanager
def _closed_on_error(made: Any) -> Any:
    try:
        yield
    except BaseException:
        made.pgconn.finish()
        raise
