"""Drains for tests: run in the test's loop, and a far side in memory for tests of the drain
itself.
"""

import asyncio
from collections.abc import Sequence
from contextlib import asynccontextmanager

import forebay
from forebay.config import WorkerSettings
from forebay.sending import Drain
from forebay.sinks import Accepted, Sink
from tests.support.waiting import wait_for_async
from tests.support.worker_process import FAST


class ListSink(Sink):
    """Keeps messages in memory.

    ``answers`` says what it answers to a message, None to accept it.
    """

    type = "list"

    def __init__(self, answers=lambda message: None):
        self.answers = answers
        self.calls: list[list] = []
        self.opened = 0
        self.is_away = False

    @property
    def messages(self):
        return [message for call in self.calls for message in call]

    async def open(self) -> None:
        self.opened += 1

    async def send(self, messages: Sequence) -> list:
        self.calls.append(list(messages))
        return [self.answers(message) or Accepted() for message in messages]


@asynccontextmanager
async def draining(drain: Drain, dsn: str, **settings):
    """Run the worker of a drain in this loop, and stop it at the end."""
    worker = drain.worker(dsn, WorkerSettings(**(FAST | {"grace_seconds": 0.0} | settings)))
    task = asyncio.create_task(worker.run())
    try:
        await worker.started.wait()
        yield worker
    finally:
        worker.stop()
        await task


def enqueue(conn, count, *, queue="orders", kind="order.created", keys=0, **options):
    """Enqueue jobs with the arguments n = 0, 1, ..., each in the transaction of the connection.

    With keys, in turn.
    """
    client = forebay.Client(conn.info.dsn)
    for number in range(count):
        key = {"ordering_key": f"k{number % keys}"} if keys else {}
        client.enqueue(conn, kind, {"n": number}, queue=queue, **key, **options)


async def through_faults(drain: Drain, dsn: str, conn, proxy) -> None:
    """Drain 300 jobs through a proxy that swallows the answers of a call until it times out, and
    cuts another.
    """
    enqueue(conn, 100)
    async with draining(drain, dsn) as worker:
        await wait_for_async(lambda: worker.stats.done == 100)
        proxy.swallow_answers()
        enqueue(conn, 100)
        await wait_for_async(lambda: drain.delivery.problem() is not None)
        proxy.thaw()
        await wait_for_async(lambda: worker.stats.done == 200)
        proxy.swallow_answers()
        enqueue(conn, 100)
        await wait_for_async(lambda: worker.stats.claimed > 200)
        proxy.cut()
        await wait_for_async(lambda: drain.delivery.problem() is not None)
        proxy.thaw()
        await wait_for_async(lambda: worker.stats.done == 300)
        await wait_for_async(lambda: drain.delivery.problem() is None)
