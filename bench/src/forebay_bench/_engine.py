"""An engine in a separate process: Forebay and each peer do the same work, by the same commands.

Started by the scenarios that compare peers: the name, and the address of its database. Those of
Node.js run ``peers/node/engine.cjs`` instead, which knows the same commands. The timed work begins
after its imports and connections; a drain includes the start and end of its worker.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import os
import sys
import time
from typing import TYPE_CHECKING, Any, Final, Protocol

from forebay_bench._child import answer, commands
from forebay_bench._counters import Counters
from forebay_bench._journal import VARIABLE, JournalWriter
from forebay_bench._processes import Script
from forebay_bench.peers import NODE_PEERS, installed, javascript

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from forebay_bench._place import Place

_MODULES: Final = {
    "forebay": "forebay_bench._ours",
    "classic": "forebay_bench._classic",
    "flows": "forebay_bench._flows",
    "pgqueuer": "forebay_bench.peers.pgqueuer",
    "procrastinate": "forebay_bench.peers.procrastinate",
    "absurd": "forebay_bench.peers.absurd",
    "dbos": "forebay_bench.peers.dbos",
}

_FULL_PAUSE_SECONDS: Final = 0.001


class Engine(Protocol):
    """A queue and the Python library in front of it. Its jobs have one argument, a number."""

    async def open(self) -> None:
        """Connect."""

    async def close(self) -> None:
        """Disconnect."""

    async def enqueue(self, number: int) -> None:
        """Enqueue a job and commit."""

    async def enqueue_some(self, numbers: range) -> None:
        """Enqueue a few jobs by one call, and commit."""

    async def enqueue_all(self, numbers: Iterable[int]) -> None:
        """Enqueue any number of jobs of an iterator, in bounded memory."""

    async def drain(self, handler: str) -> int:
        """Run a worker until the queue is empty; return how many jobs it ended."""

    async def serve(self, counters: Counters, note: Callable[[int], None]) -> None:
        """Run a worker until the counters say stop, count in it what was handled, and call
        ``note`` first with the number of each job.
        """

    async def spread(self, queues: int) -> None:
        """From now on jobs go to this number of queues in turns, and workers serve all of them."""

    async def idle(self, count: int) -> None:
        """Start workers of one queue, each with its connections; they end with the process."""


class Runner:
    """The process, seen from the scenario."""

    def __init__(self, name: str, dsn: str) -> None:
        self.dsn = dsn
        if name in NODE_PEERS:
            self._script = Script.of(NODE_PEERS[name].command(dsn), javascript.environment())
        else:
            self._script = Script("forebay_bench._engine", name, dsn)
        self._script.read_message()

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._script.pid

    def call(self, what: str, **values: Any) -> Any:
        """Send a command, and return the answer."""
        self.send(what, **values)
        return self.read_message()

    def send(self, what: str, **values: Any) -> None:
        """Send a command, without waiting for the answer."""
        self._script.send({"do": what, **values})

    def read_message(self) -> Any:
        """Wait for the answer to the command."""
        return self._script.read_message()

    def close(self) -> None:
        """End the process."""
        self._script.close()


@contextlib.contextmanager
def runner(
    name: str,
    place: Place,
    *,
    migrated: bool = False,
    create: Callable[[str], None] = lambda _: None,
) -> Iterator[Runner]:
    """Yield the process of an engine, with a database.

    Args:
        name: which.
        place: where the database is made.
        migrated: with the schema of Forebay.
        create: prepares the database.
    """
    with place.database(name, migrated=migrated) as dsn:
        create(dsn)
        process = Runner(name, dsn)
        try:
            yield process
        finally:
            process.close()


@contextlib.contextmanager
def started_engines(place: Place, compare: tuple[str, ...] | None) -> Iterator[dict[str, Runner]]:
    """Yield Forebay and the peers that take part, by name, each with a separate database."""
    with contextlib.ExitStack() as stack:
        runners = {"forebay": stack.enter_context(runner("forebay", place, migrated=True))}
        for peer in installed(compare):
            runners[peer.NAME] = stack.enter_context(runner(peer.NAME, place, create=peer.create))
        yield runners


# --- in that process ---


async def _enqueue(queue: Engine, seconds: float) -> float:
    """Enqueue one job after the other; return how many a second."""
    await queue.enqueue(0)
    count, began = 0, time.perf_counter()
    until = began + seconds
    while time.perf_counter() < until:
        await queue.enqueue(count)
        count += 1
    return count / (time.perf_counter() - began)


async def _fill(queue: Engine, count: int) -> float:
    began = time.perf_counter()
    await queue.enqueue_all(iter(range(count)))
    return time.perf_counter() - began


async def _drain(queue: Engine, handler: str) -> dict[str, float]:
    began, cpu = time.perf_counter(), time.process_time()
    ended = await queue.drain(handler)
    return {
        "seconds": time.perf_counter() - began,
        "cpu_seconds": time.process_time() - cpu,
        "ended": ended,
    }


async def _produce(
    queue: Engine,
    path: str,
    *,
    seconds: float,
    batch: int,
    backlog: int,
    per_second: float | None,
) -> int:
    """Enqueue in batches while fewer jobs than a limit wait; return how many in all."""
    with Counters(path) as counters:
        began = time.monotonic()
        while (now := time.monotonic()) < began + seconds:
            is_early = per_second is not None and counters.enqueued >= (now - began) * per_second
            if is_early or counters.enqueued - counters.handled >= backlog:
                await asyncio.sleep(_FULL_PAUSE_SECONDS)
                continue
            first = counters.enqueued
            await queue.enqueue_some(range(first, first + batch))
            counters.enqueued = first + batch
        return counters.enqueued


async def _trickle(queue: Engine, first: int, moments: list[float]) -> list[float]:
    """Enqueue a job at each moment from now.

    Return when each was committed, by the monotonic clock.
    """
    began = time.monotonic()
    committed = []
    for number, moment in enumerate(moments, first):
        await asyncio.sleep(max(0.0, began + moment - time.monotonic()))
        await queue.enqueue(number)
        committed.append(time.monotonic())
    return committed


async def _serve(queue: Engine, path: str, journal: str | None = None) -> None:
    if journal is not None:
        os.environ[VARIABLE] = journal
    note = JournalWriter().note if journal is not None else _forget
    with Counters(path) as counters:
        await queue.serve(counters, note)


def _forget(_number: int) -> None:
    """Record nothing."""


async def _spread(queue: Engine, queues: int) -> None:
    await queue.spread(queues)


async def _idle(queue: Engine, count: int) -> None:
    await queue.idle(count)


async def _run(name: str, dsn: str) -> None:
    queue: Engine = importlib.import_module(_MODULES[name]).Queue(dsn)
    doers: dict[str, Any] = {
        "enqueue": _enqueue,
        "fill": _fill,
        "drain": _drain,
        "produce": _produce,
        "serve": _serve,
        "trickle": _trickle,
        "spread": _spread,
        "idle": _idle,
    }
    await queue.open()
    given = commands()
    # In a thread, so that an idle worker of this process runs while no command comes.
    while (command := await asyncio.to_thread(next, given, None)) is not None:
        answer(await doers[command.pop("do")](queue, **command))
    await queue.close()


def main() -> None:
    """Run what the scenario calls for, until it ends."""
    name, dsn = sys.argv[1:3]
    loop_factory = getattr(importlib.import_module(_MODULES[name]), "LOOP_FACTORY", None)
    with asyncio.Runner(loop_factory=loop_factory) as runner:
        runner.run(_run(name, dsn))


if __name__ == "__main__":
    main()
