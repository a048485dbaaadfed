"""Calls of handlers that run in a database transaction. The same transaction settles their jobs.

Invariant: the handler's writes and the settlement of its job are one commit. So the settlement is
the last statement on the handler's connection, and a transaction whose settlement changed nothing
is rolled back.
"""

from __future__ import annotations

import asyncio
import functools
import time
from typing import TYPE_CHECKING, Final

from forebay.db.handler_connections import async_handler_connections, handler_connections
from forebay.db.session import socket_of
from forebay.errors import LeaseLost, UnknownBatch
from forebay.forks import keep_from_copies
from forebay.in_threads import in_thread
from forebay.ops import protocol
from forebay.ops.protocol import Flush, SettledJob
from forebay.worker.run.call import call_plainly, run_on_loop
from forebay.worker.run.endings import endings

if TYPE_CHECKING:
    from collections.abc import Callable

    from forebay.arguments.kinds import Kind
    from forebay.db.handler_connections import (
        AsyncHandlerConnection,
        AsyncHandlerConnections,
        HandlerConnection,
        HandlerConnections,
        LastCall,
    )
    from forebay.ops.operation import Operation
    from forebay.ops.protocol import Ended
    from forebay.worker.ground.held import HeldJob
    from forebay.worker.ground.threads import Threads
    from forebay.worker.run.call import Call

#: How long a transaction may wait for the call that it began for.
_BEGUN_SECONDS: Final = 0.02


async def previous_settled(helds: list[HeldJob]) -> None:
    """Wait for the settlement of the previous job of each ordering key: no commit may become
    visible before it.

    Raises:
        LeaseLost: a job was taken back meanwhile.
    """
    for held in helds:
        if held.follows is not None:
            await held.follows.batch.settled(held.follows.row.offset)
    if any(held.ended for held in helds):
        raise LeaseLost(helds[0].lease.lease_id)


class HandlerTransactions:
    """Runs these calls, on connections that are opened when first needed.

    Owns the handler connections. From the settlement on, a call is not interrupted: the commit
    decides. After a crash before the commit the server rolls the transaction back, and the job
    comes back when the lease is revoked.

    Args:
        dsn: the database.
        name: application_name of the connections.
        threads: run plain functions.
        is_next: whether the next call that waits for a slot is of this kind, and more calls wait
            than this number.
    """

    def __init__(
        self, dsn: str, name: str, threads: Threads, is_next: Callable[[Kind, int], bool]
    ) -> None:
        self._is_next = is_next
        #: Ends the transactions that began for calls that did not come.
        self._timer: asyncio.TimerHandle | None = None
        self._ending: asyncio.Task[None] | None = None
        self._dsn = dsn
        self._name = name
        self._threads = threads
        #: Whether the transactions run in the sessions of a pooler; known once the worker is
        #: connected.
        self.is_pooled = False
        #: Steps of coroutine handlers that are in transactions.
        self.steps = 0
        self._handler_connections: dict[type | None, HandlerConnections] = {}
        self._async_handler_connections: dict[type | None, AsyncHandlerConnections] = {}

    def plain_connections(self, wanted: type | None = None) -> HandlerConnections:
        """Return the connections for plain functions that want this class; None: psycopg's."""
        if wanted not in self._handler_connections:
            self._handler_connections[wanted] = handler_connections(
                wanted, self._dsn, name=self._name, is_pooled=self.is_pooled
            )
        return self._handler_connections[wanted]

    def coroutine_connections(self, wanted: type | None = None) -> AsyncHandlerConnections:
        """Return the connections for coroutine functions; see ``plain_connections``."""
        if wanted not in self._async_handler_connections:
            self._async_handler_connections[wanted] = async_handler_connections(
                wanted, self._dsn, name=self._name, is_pooled=self.is_pooled
            )
        return self._async_handler_connections[wanted]

    async def run(self, call: Call, helds: list[HeldJob]) -> list[Ended | None]:
        """Run a call to its commit; return how each job ended, None for done.

        Raises:
            LeaseLost: the jobs no longer belong to this worker; nothing was committed.
            UnknownBatch: the database no longer knows the batch; nothing was committed.
        """
        wanted = call.kind.connection
        await previous_settled(helds)
        if not call.kind.is_async:
            plain = self.plain_connections(wanted)
            call.thread_call = self._threads.submit(lambda: self._run_in_thread(call, helds))
            found: list[Ended | None] = await call.thread_call.future
            if plain.begun:
                self.end_begun_later()
            return found
        connections = self.coroutine_connections(wanted)
        async with connections.connection() as connection:
            _give(call, connection)
            async with connection.transaction():
                result = await run_on_loop(call)
                endeds = endings(call, result)
                if (last := _begin_settling(call, helds, endeds)) is not None:
                    begins = self._is_next(call.kind, connections.begun)
                    await connection.settle_last(last, begins=begins)
                else:
                    operation = _settlement(helds, endeds)
                    _check_statuses(helds, await connection.settle(operation))
        if connections.begun:
            self.end_begun_later()
        return endeds

    def _run_in_thread(self, call: Call, helds: list[HeldJob]) -> list[Ended | None]:
        connections = self._handler_connections[call.kind.connection]
        with connections.connection() as connection:
            _give(call, connection)
            with connection.transaction():
                call.started = True
                result = call_plainly(call)
                endeds = endings(call, result)
                if (last := _begin_settling(call, helds, endeds)) is not None:
                    begins = self._is_next(call.kind, connections.begun)
                    connection.settle_last(last, begins=begins)
                else:
                    operation = _settlement(helds, endeds)
                    _check_statuses(helds, connection.settle(operation))
                return endeds

    def end_begun_later(self) -> None:
        """Let transactions end in a moment that have begun for calls, if these do not come."""
        if self._timer is None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(_BEGUN_SECONDS, self._begin_ending)

    def _begin_ending(self) -> None:
        self._timer = None
        if self._ending is None or self._ending.done():
            self._ending = asyncio.get_running_loop().create_task(self._end_begun())

    async def _end_begun(self) -> None:
        for connections in list(self._async_handler_connections.values()):
            await connections.end_begun()
        for kept_in_threads in list(self._handler_connections.values()):
            if kept_in_threads.begun:
                await in_thread(kept_in_threads.end_begun)

    async def close(self) -> None:
        """Close the connections."""
        if self._timer is not None:
            self._timer.cancel()
        if self._ending is not None:
            await asyncio.gather(self._ending, return_exceptions=True)
        for connection in self._async_handler_connections.values():
            await connection.close()
        for kept_in_threads in self._handler_connections.values():
            await in_thread(kept_in_threads.close)


def _give(call: Call, connection: HandlerConnection | AsyncHandlerConnection) -> None:
    if connection.raw is not None:
        keep_from_copies(connection.raw, socket_of)
    call.connection, call.given = connection.raw, connection.given
    if call.context is not None:
        call.context.conn = connection.given


def _begin_settling(
    call: Call, helds: list[HeldJob], endeds: list[Ended | None]
) -> LastCall | None:
    """From here on the call is not interrupted: its transaction decides.

    Return the settlement of a single job that is done.

    Raises:
        LeaseLost: a job was taken back meanwhile.
    """
    if call.why is None:
        call.settling = True
    if any(held.ended for held in helds):
        raise LeaseLost(helds[0].lease.lease_id)
    if len(helds) > 1 or endeds[0] is not None or helds[0].child is not None:
        return None
    (held,) = helds
    settled = SettledJob(
        held.lease.lease_id,
        held.batch.claim_no,
        held.row.offset,
        held.millis(time.monotonic()),
    )
    return functools.partial(protocol.settle_job, settled)


def _settlement(
    helds: list[HeldJob], endeds: list[Ended | None]
) -> Operation[list[protocol.FlushStatus]]:
    flushes = []
    for held, ended in zip(helds, endeds, strict=True):
        offset = held.row.offset
        flush = Flush(
            claim_no=held.batch.claim_no,
            flush_no=-offset,
            done=[offset],
            millis=[held.millis(time.monotonic())],
        )
        if ended is not None:
            ended.offset = offset
            held.measure(ended)
            flush.done, flush.millis, flush.ended = [], None, [ended]
        if held.child is not None and (ended is None or ended.outcome == "done"):
            flush.children = [held.child]
        flushes.append(flush)
    return protocol.settle(helds[0].lease.lease_id, flushes)


def _check_statuses(helds: list[HeldJob], statuses: list[protocol.FlushStatus]) -> None:
    if any(status != "settled" for status in statuses):
        raise UnknownBatch(lease=helds[0].lease.lease_id, claim_no=helds[0].batch.claim_no)
