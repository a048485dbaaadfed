"""Many simulated workers in one process: each has its lease, claims and settles as a worker
does, and has no handlers.

Started by the scenario ``simulated``: the address, the first number and how many workers. A command
says how long jobs take, how many slots a worker has, when to start and when to measure. A job only
takes a slot for that long. Each worker has a connection for polls and claims; a few share one for
settlements. The statements and the number of jobs of a claim are those of a worker (``protocol``,
``policy.claims``). Heartbeats are left out. The connections are libpq's without an adapter in
Python, so that some hundred workers fit into a small machine.
"""

from __future__ import annotations

import asyncio
import math
import random
import re
import sys
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import psycopg
import uvloop
from psycopg import pq

from forebay.ops import protocol
from forebay.ops.claimed import claimed_jobs
from forebay.ops.protocol import Flush
from forebay.policy.claims import claim_size, mean_duration
from forebay_bench._child import answer, commands

if TYPE_CHECKING:
    from collections.abc import Sequence

    from forebay.ops.operation import Operation

#: A process lives no longer than its leases, which are never renewed.
_LEASE_SECONDS: Final = 3600.0

#: Workers that share a connection for settlements.
_SHARE: Final = 5

#: As in ``worker.settle.settler``.
_BETWEEN_FLUSHES_SECONDS: Final = 0.01

#: As in ``worker.claim.claimer``.
_EMPTY_CLAIM_PAUSE_SECONDS: Final = 0.002

#: Jobs last up to this much more or less, so that those of one claim do not end together.
_JITTER: Final = 0.2

_AHEAD_SECONDS: Final = 0.1


class Statement:
    """An operation as a prepared statement of libpq, made from one with any values."""

    def __init__(self, name: str, operation: Operation[Any]) -> None:
        self.name = name.encode()
        self.names: list[str] = []

        def numbered(found: re.Match[str]) -> str:
            if found[1] not in self.names:
                self.names.append(found[1])
            return f"${self.names.index(found[1]) + 1}"

        self.sql = re.sub(r"%\((\w+)\)s", numbered, operation.sql).encode()

    def values(self, operation: Operation[Any]) -> list[bytes | None]:
        """Return the parameters of an operation."""
        assert isinstance(operation.params, dict)
        return [_text(operation.params[name]) for name in self.names]


def _text(value: object) -> bytes | None:
    if value is None:
        return None
    if isinstance(value, list):
        return ("{" + ",".join(str(each) for each in value) + "}").encode()
    return str(value).encode()


_STATEMENTS: Final = {
    "ready": Statement("ready", protocol.ready([1])),
    "claim": Statement(
        "claim",
        protocol.claim(lease_id=1, claim_no=1, floor=1, group_id=1, lane=1, limit=1),
    ),
    "settle": Statement("settle", protocol.settle(1, [])),
}


class Connection:
    """A connection of libpq that runs prepared statements, one at a time."""

    def __init__(self, dsn: str, statements: Sequence[str]) -> None:
        self._conn = psycopg.connect(dsn, autocommit=True, application_name="simulated worker")
        self._pgconn = self._conn.pgconn
        for name in statements:
            statement = _STATEMENTS[name]
            result = self._pgconn.prepare(statement.name, statement.sql)
            if result.status != pq.ExecStatus.COMMAND_OK:
                raise psycopg.OperationalError(result.get_error_message())
        self._pgconn.nonblocking = 1
        self._lock = asyncio.Lock()

    async def run(self, name: str, operation: Operation[Any]) -> list[list[bytes | None]]:
        """Run an operation; return its rows."""
        statement, loop, pgconn = _STATEMENTS[name], asyncio.get_running_loop(), self._pgconn
        async with self._lock:
            pgconn.send_query_prepared(statement.name, statement.values(operation))
            pgconn.flush()
            arrived = loop.create_future()

            def read() -> None:
                pgconn.consume_input()
                if not pgconn.is_busy() and not arrived.done():
                    arrived.set_result(None)

            loop.add_reader(pgconn.socket, read)
            try:
                await arrived
            finally:
                loop.remove_reader(pgconn.socket)
            rows: list[list[bytes | None]] = []
            while (result := pgconn.get_result()) is not None:
                if result.status != pq.ExecStatus.TUPLES_OK:
                    raise psycopg.OperationalError(result.get_error_message())
                rows += [
                    [result.get_value(row, column) for column in range(result.nfields)]
                    for row in range(result.ntuples)
                ]
            return rows

    def close(self) -> None:
        """Disconnect."""
        self._conn.close()


@dataclass
class Measured:
    """What the workers of a process did while it was measured."""

    since: float
    until: float
    #: Seconds of jobs between the two moments, by the time that a job is to take.
    busy: float = 0.0
    claims: int = 0
    claimed: int = 0
    claim_seconds: float = 0.0

    @property
    def is_on(self) -> bool:
        """Whether now counts."""
        return self.since <= time.monotonic() < self.until

    def add(self, start: float, seconds: float) -> None:
        """Count the part of a job that lies between the two moments."""
        self.busy += max(0.0, min(start + seconds, self.until) - max(start, self.since))


@dataclass
class Batch:
    """The jobs of one claim."""

    size: int
    done: list[int] = field(default_factory=list)
    ended: int = 0
    flush_no: int = 0


class Client:
    """A simulated worker."""

    def __init__(self, dsn: str, number: int, settlements: Connection) -> None:
        with psycopg.connect(dsn, autocommit=True) as conn:
            row = conn.execute(
                "select forebay.open_lease_v1(%s, %s, %s)",
                [f"simulated:{number}", _LEASE_SECONDS, _LEASE_SECONDS],
            ).fetchone()
            assert row is not None
            self._lease_id: int = row[0]
        self._claims = Connection(dsn, ["ready", "claim"])
        self._settlements = settlements
        self._claim_no = 0

    def close(self) -> None:
        """Disconnect."""
        self._claims.close()

    async def work(self, order: dict[str, Any], measured: Measured) -> None:
        """Claim and settle as a command says, until it ends; then settle what ran."""
        self._slots, self._seconds = order["slots"], order["seconds"]
        self._measured, self._group = measured, order["group"]
        self._is_sized = order["is_sized"]
        self._busy, self._buffer = 0, list[tuple[int, int]]()
        self._batches: dict[int, Batch] = {}
        self._dirty: set[int] = set()
        self._wake, self._ended = asyncio.Event(), asyncio.Event()
        self._is_finished = False
        #: Mean seconds of a claim; at first there is none.
        self._claim_seconds: float | None = None
        settling = asyncio.create_task(self._settle())
        await asyncio.sleep(random.random() * self._seconds)
        while time.monotonic() < order["until"]:
            await self._claim(order["until"])
        self._buffer.clear()
        while self._busy:
            self._wake.clear()
            await self._wake.wait()
        self._is_finished = True
        self._ended.set()
        await settling

    async def _claim(self, until: float) -> None:
        self._wake.clear()
        wanted = claim_size(
            self._slots - self._busy,
            concurrency=self._slots,
            buffered=len(self._buffer),
            mean_seconds=self._seconds,
            ahead_seconds=_AHEAD_SECONDS,
            claim_seconds=(self._claim_seconds or 0.0) if self._is_sized else 0.0,
        )
        if wanted <= 0:
            try:
                async with asyncio.timeout(max(0.0, until - time.monotonic())):
                    await self._wake.wait()
            except TimeoutError:
                pass
            return
        began = time.monotonic()
        lanes = await self._claims.run("ready", protocol.ready([self._group]))
        if not lanes:
            await asyncio.sleep(_EMPTY_CLAIM_PAUSE_SECONDS)
            return
        self._claim_no += 1
        number = self._claim_no
        lane = random.choice(lanes)[1]
        assert lane is not None
        rows = await self._claims.run(
            "claim",
            protocol.claim(
                lease_id=self._lease_id,
                claim_no=number,
                floor=min(self._batches, default=number),
                group_id=self._group,
                lane=int(lane),
                limit=wanted,
            ),
        )
        took = time.monotonic() - began
        self._claim_seconds = mean_duration(self._claim_seconds, took, memory=10)
        text = rows[0][0]
        count = 0 if text is None else len(claimed_jobs(text.decode()))
        if self._measured.is_on:
            self._measured.claims += 1
            self._measured.claimed += count
            self._measured.claim_seconds += took
        if not count:
            await asyncio.sleep(_EMPTY_CLAIM_PAUSE_SECONDS)
            return
        self._batches[number] = Batch(count)
        self._buffer += [(number, offset) for offset in range(1, count + 1)]
        self._start()

    def _start(self) -> None:
        loop = asyncio.get_running_loop()
        while self._buffer and self._busy < self._slots:
            self._busy += 1
            number, offset = self._buffer.pop(0)
            seconds = self._seconds * random.uniform(1 - _JITTER, 1 + _JITTER)
            self._measured.add(time.monotonic(), seconds)
            loop.call_later(seconds, self._end, number, offset)

    def _end(self, number: int, offset: int) -> None:
        self._busy -= 1
        self._batches[number].done.append(offset)
        self._dirty.add(number)
        self._ended.set()
        self._start()
        self._wake.set()

    async def _settle(self) -> None:
        while True:
            await self._ended.wait()
            self._ended.clear()
            await self._flush()
            if self._is_finished and not self._dirty:
                return
            await asyncio.sleep(_BETWEEN_FLUSHES_SECONDS)

    async def _flush(self) -> None:
        flushes = []
        for number in sorted(self._dirty):
            batch = self._batches[number]
            batch.flush_no += 1
            is_whole = batch.flush_no == 1 and len(batch.done) == batch.size
            millis = [int(self._seconds * 1000)] * len(batch.done)
            flushes.append(Flush(number, batch.flush_no, None if is_whole else batch.done, millis))
            batch.ended += len(batch.done)
            batch.done = []
            if batch.ended == batch.size:
                del self._batches[number]
        self._dirty.clear()
        if flushes:
            await self._settlements.run("settle", protocol.settle(self._lease_id, flushes))


async def _work(dsn: str, first: int, count: int) -> None:
    shared = [Connection(dsn, ["settle"]) for _ in range(math.ceil(count / _SHARE))]
    clients = [Client(dsn, first + number, shared[number // _SHARE]) for number in range(count)]
    for order in commands():
        measured = Measured(order["since"], order["until"])
        await asyncio.gather(
            *(client.work(order, measured) for client in clients[: order["workers"]])
        )
        answer(
            {
                "busy": measured.busy,
                "claims": measured.claims,
                "claimed": measured.claimed,
                "claim_seconds": measured.claim_seconds,
            }
        )
    for client in clients:
        client.close()
    for connection in shared:
        connection.close()


def main() -> None:
    """Run as the scenario commands."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_work(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))


if __name__ == "__main__":
    main()
