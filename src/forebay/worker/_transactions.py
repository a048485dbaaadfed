"""Calls of handlers that run in a database transaction. The same transaction settles their jobs.

Invariant: the handler's writes and the settlement of its job are one commit. So the settlement is the last statement on the
handler's connection, and a transaction whose settlement changed nothing is rolled back.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from forebay.db.handler_connections import async_handler_connections, handler_connections
from forebay.errors import LeaseLost, UnknownBatch
from forebay.ops import protocol
from forebay.ops.protocol import Flush
from forebay.worker._running import call_plainly, endings, run_on_loop

if TYPE_CHECKING:
    from forebay.db.handler_connections import (
        AsyncHandlerConnection,
        AsyncHandlerConnections,
        HandlerConnection,
        HandlerConnections,
    )
    from forebay.ops.operation import Operation
    from forebay.ops.protocol import Ended
    from forebay.worker._held import HeldJob
    from forebay.worker._running import Call
    from forebay.worker._threads import Threads


async def previous_settled(helds: list[HeldJob]) -> None:
    """Wait for the settlement of the previous job of each ordering key: no commit may become visible before it.

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

    Owns the handler connections. From the settlement on, a call is not interrupted: the commit decides. After a crash before the
    commit the server rolls the transaction back, and the job comes back when the lease is revoked.

    Args:
        dsn: the database.
        name: application_name of the connections.
        threads: run plain functions.
    """

    def __init__(self, dsn: str, name: str, threads: Threads) -> None:
        self._dsn = dsn
        self._name = name
        self._threads = threads
        #: Whether the transactions run in the sessions of a pooler; known once the worker is connected.
        self.is_pooled = False
        self._handler_connections: dict[type | None, HandlerConnections] = {}
        self._async_handler_connections: dict[type | None, AsyncHandlerConnections] = {}

    async def run(self, call: Call, helds: list[HeldJob]) -> list[Ended | None]:
        """Run a call to its commit; return how each job ended, None for done.

        Raises:
            LeaseLost: the jobs no longer belong to this worker; nothing was committed.
            UnknownBatch: the database no longer knows the batch; nothing was committed.
        """
        wanted = call.kind.connection
        await previous_settled(helds)
        if not call.kind.is_async:
            if wanted not in self._handler_connections:
                self._handler_connections[wanted] = handler_connections(
                    wanted, self._dsn, name=self._name, is_pooled=self.is_pooled
                )
            call.thread_call = self._threads.submit(lambda: self._run_in_thread(call, helds))
            found: list[Ended | None] = await call.thread_call.future
            return found
        if wanted not in self._async_handler_connections:
            self._async_handler_connections[wanted] = async_handler_connections(
                wanted, self._dsn, name=self._name, is_pooled=self.is_pooled
            )
        async with self._async_handler_connections[wanted].connection() as connection:
            _give(call, connection)
            async with connection.transaction():
                result = await run_on_loop(call)
                endeds = endings(call, result)
                operation = _settlement(call, helds, endeds)
                _check_statuses(helds, await connection.settle(operation))
        return endeds

    def _run_in_thread(self, call: Call, helds: list[HeldJob]) -> list[Ended | None]:
        with self._handler_connections[call.kind.connection].connection() as connection:
            _give(call, connection)
            with connection.transaction():
                call.started = True
                result = call_plainly(call)
                endeds = endings(call, result)
                operation = _settlement(call, helds, endeds)
                _check_statuses(helds, connection.settle(operation))
                return endeds

    async def close(self) -> None:
        """Close the connections."""
        for connection in self._async_handler_connections.values():
            await connection.close()
        for kept_in_threads in self._handler_connections.values():
            await asyncio.to_thread(kept_in_threads.close)


def _give(call: Call, connection: HandlerConnection | AsyncHandlerConnection) -> None:
    call.connection, call.given = connection.raw, connection.given
    if call.context is not None:
        call.context.conn = connection.given


def _settlement(
    call: Call, helds: list[HeldJob], endeds: list[Ended | None]
) -> Operation[list[protocol.FlushStatus]]:
    # From here on the call is not interrupted: its transaction decides.
    if call.why is None:
        call.settling = True
    if any(held.ended for held in helds):
        raise LeaseLost(helds[0].lease.lease_id)
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
            flush.done, flush.millis, flush.ended = [], None, [ended]
        flushes.append(flush)
    return protocol.settle(helds[0].lease.lease_id, flushes)


def _check_statuses(helds: list[HeldJob], statuses: list[protocol.FlushStatus]) -> None:
    if any(status != "settled" for status in statuses):
        raise UnknownBatch(lease=helds[0].lease.lease_id, claim_no=helds[0].batch.claim_no)
