"""Idle connections for single calls: one that was used goes to the next call.

A call without a connection of the caller costs a connect, which is many times the call. So a
connection that has done its call is kept for some seconds, and the next call to the same address
takes it, whichever thread or event loop makes it: what is kept is the connection of libpq, and each
call puts the object of psycopg around it that it needs.

Invariants:

- one call, one transaction: only a connection that is idle outside a transaction is kept, and a
  call leaves no setting in its session (see ``forebay.db.own``).
- never sent twice: a kept connection is looked at before its use. If the server has ended it, its
  socket can be read, and another one is taken; nothing was sent. What fails later is reported.
- never shared: a connection belongs to one call at a time. A fork closes all that are idle first.
- bounded: a few for each address, closed when idle for long or old, by a thread that lives while
  there are any.

A crash leaves nothing: the server ends the sessions of a process that is gone.
"""

from __future__ import annotations

import contextlib
import os
import select
import threading
import time
from collections.abc import Hashable
from typing import TYPE_CHECKING, Any, Final, TypeVar

import psycopg

from forebay.config import OwnAddress, UnkeptAddress
from forebay.db.errors import translate_own
from forebay.db.opening import pgconn_out_of
from forebay.db.own import (
    call,
    call_async,
    opened,
    opened_async,
    run_own,
    run_own_async,
    translated,
)
from forebay.errors import DatabaseUnavailable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from forebay.ops.operation import Operation

T = TypeVar("T")

#: How long a connection is kept for the next call.
IDLE_SECONDS: Final = 30.0
#: How old it may be: the address may lead elsewhere by now.
AGE_SECONDS_MAX: Final = 600.0
#: How many idle connections one address has, and all addresses together.
IDLE_MAX: Final = 8
IDLE_MAX_IN_ALL: Final = 32

_IDLE: Final = psycopg.pq.TransactionStatus.IDLE
_OK: Final = psycopg.pq.ConnStatus.OK


class _Kept:
    """An open connection of libpq, with when it was opened and last used."""

    def __init__(self, pgconn: psycopg.pq.abc.PGconn, opened_at: float) -> None:
        self.pgconn = pgconn
        self.opened_at = opened_at
        self.used_at = time.monotonic()

    @property
    def closes_at(self) -> float:
        return min(self.used_at + IDLE_SECONDS, self.opened_at + AGE_SECONDS_MAX)

    def is_usable(self) -> bool:
        """Whether nothing came from the server: an end, a warning of its end, an error."""
        if self.pgconn.status != _OK or time.monotonic() >= self.closes_at:
            return False
        poll = select.poll()
        try:
            poll.register(self.pgconn.socket, select.POLLIN | select.POLLRDHUP)
        except (psycopg.OperationalError, ValueError):
            return False
        return not poll.poll(0)


class _Shelf:
    """The idle connections of this process."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Begin anew, without a close: in a copy of the process what is kept is the parent's. The
        objects of psycopg know in which process they may close their connection.
        """
        self._changed = threading.Condition()
        self._idle: dict[Hashable, list[_Kept]] = {}
        self._closer: threading.Thread | None = None
        self._pid = os.getpid()

    def take(self, key: Hashable) -> _Kept | None:
        """Return a connection that works, if there is one; the one used last."""
        while (found := self._pop(key)) is not None:
            if found.is_usable():
                return found
            found.pgconn.finish()
        return None

    def _pop(self, key: Hashable) -> _Kept | None:
        with self._changed:
            if self._pid != os.getpid():
                self.forget()  # Forked by code that calls no hooks of Python.
            idle = self._idle.get(key)
            if not idle:
                return None
            found = idle.pop()
            if not idle:
                del self._idle[key]
            return found

    def put(self, key: Hashable, kept: _Kept) -> None:
        """Keep a connection, or close it if there are enough."""
        with self._changed:
            idle = self._idle.get(key, ())
            count = sum(map(len, self._idle.values()))
            is_kept = (
                self._pid == os.getpid()
                and len(idle) < IDLE_MAX
                and count < IDLE_MAX_IN_ALL
                and self._has_closer()
            )
            if is_kept:
                # The thread that closes need not be told: no other one is to be closed earlier.
                self._idle.setdefault(key, []).append(kept)
        if not is_kept:
            kept.pgconn.finish()

    def close(self) -> None:
        """Close all idle connections, and end the thread that would."""
        with self._changed:
            if self._pid != os.getpid():
                self.forget()
            closed = [each for idle in self._idle.values() for each in idle]
            self._idle.clear()
            closer = self._closer
            self._changed.notify_all()
        for each in closed:
            each.pgconn.finish()
        if closer is not None and closer is not threading.current_thread():
            closer.join(1.0)

    def _has_closer(self) -> bool:
        if self._closer is None:
            closer = threading.Thread(
                target=self._close_in_time, name="forebay idle connections", daemon=True
            )
            try:
                closer.start()
            except RuntimeError:  # The interpreter ends, or has no thread left.
                return False
            self._closer = closer
        return True

    def _close_in_time(self) -> None:
        with self._changed:
            while self._idle:
                now = time.monotonic()
                for key, idle in list(self._idle.items()):
                    over = [each for each in idle if each.closes_at <= now]
                    self._idle[key] = [each for each in idle if each.closes_at > now]
                    if not self._idle[key]:
                        del self._idle[key]
                    for each in over:
                        each.pgconn.finish()
                if self._idle:
                    soonest = min(each.closes_at for idle in self._idle.values() for each in idle)
                    self._changed.wait(max(0.01, soonest - now))
            self._closer = None


_shelf: Final = _Shelf()
os.register_at_fork(before=_shelf.close, after_in_child=_shelf.forget)


def close_kept() -> None:
    """Close the connections that wait for a next call."""
    _shelf.close()


def run_kept(dsn: str, operation: Operation[T]) -> T:
    """Do as ``run_own``, on a kept connection if there is one."""
    if isinstance(dsn, UnkeptAddress):
        return run_own(dsn, operation)
    key = address_key(dsn)
    with translated():
        kept = _shelf.take(key)
        if kept is None:
            conn, opened_at = opened(dsn), time.monotonic()
        else:
            conn, opened_at = psycopg.Connection(kept.pgconn), kept.opened_at
            conn.autocommit = True
            conn.prepare_threshold = None
        with _put_back(key, conn, opened_at):
            return call(conn, operation)


async def run_kept_async(dsn: str, operation: Operation[T]) -> T:
    """Do as ``run_kept``, asynchronously."""
    if isinstance(dsn, UnkeptAddress):
        return await run_own_async(dsn, operation)
    key = address_key(dsn)
    with translated():
        kept = _shelf.take(key)
        if kept is None:
            conn, opened_at = await opened_async(dsn), time.monotonic()
        else:
            conn, opened_at = psycopg.AsyncConnection(kept.pgconn), kept.opened_at
            await conn.set_autocommit(True)
            conn.prepare_threshold = None
        with _put_back(key, conn, opened_at):
            return await call_async(conn, operation)


def address_key(dsn: str) -> Hashable:
    """Return what is equal for addresses that lead to the same sessions."""
    own = dsn if isinstance(dsn, OwnAddress) else None
    return (str(dsn), own and own.connect, own and own.password)


@contextlib.contextmanager
def _put_back(key: Hashable, conn: Any, opened_at: float) -> Iterator[None]:
    """Keep the connection after a call that ended, well or with a refusal; else close it.

    A call that was cancelled has not ended: its answer may still come.
    """
    is_kept = False
    try:
        yield
        is_kept = True
    except Exception as error:
        is_kept = not isinstance(translate_own(error), DatabaseUnavailable)
        raise
    finally:
        pgconn = pgconn_out_of(conn)
        if is_kept and pgconn.status == _OK and pgconn.transaction_status == _IDLE:
            _shelf.put(key, _Kept(pgconn, opened_at))
        else:
            pgconn.finish()
