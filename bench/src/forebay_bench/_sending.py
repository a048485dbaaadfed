"""A process that sends messages to a far side: a drain as ``forebay drain`` runs it, or a plain client of the far side.

Started by the scenario ``sinks``: ``drain``, the database, the type of the sink and its settings as JSON; or ``plain``, the name of the far
side, its address and the name of the place there.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from forebay.app import App
from forebay.drain import Drain
from forebay.sinks import Message, make_sink, message_id
from forebay_bench._child import answer, commands
from forebay_bench._plain_clients import PLAIN_CLIENTS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from forebay.sinks import Answer, Sink

#: Messages of a call, on both sides.
BATCH_SIZE: Final = 500
QUEUE: Final = "orders"
KIND: Final = "send_welcome"
#: Those of each job.
HEADERS: Final = {"tenant": "7"}


class _Clock:
    """The time and the CPU time of this process since the first message."""

    def __init__(self) -> None:
        self._began: tuple[float, float] | None = None

    def start(self) -> None:
        if self._began is None:
            self._began = time.perf_counter(), time.process_time()

    def stop(self) -> dict[str, float]:
        """Return the seconds, and forget the start."""
        ended = time.perf_counter(), time.process_time()
        began, self._began = self._began or ended, None
        return {"seconds": ended[0] - began[0], "cpu_seconds": ended[1] - began[1]}


async def _drain(dsn: str, type_name: str, config: str) -> None:
    app = App(dsn)
    sink = make_sink(type_name, json.loads(config))
    clock = _Clock()
    _watch(sink, clock)
    drain = Drain(app, QUEUE, sink=sink, queue=QUEUE, batch_size=BATCH_SIZE)
    for _ in commands():
        worker = drain.worker(dsn)
        stats = await worker.run(until_idle=True)
        answer({**clock.stop(), "sent": stats.done})


def _watch(sink: Sink, clock: _Clock) -> None:
    """Start a clock with the first message after each stop."""
    send = sink.send

    async def timed(messages: Sequence[Message]) -> Sequence[Answer]:
        clock.start()
        return await send(messages)

    sink.send = timed  # type: ignore[method-assign]


async def _plain(name: str, address: str, place: str) -> None:
    client = PLAIN_CLIENTS[name](address, place)
    await client.open()
    clock = _Clock()
    sent = 0
    for command in commands():
        if command["do"] == "take":
            answer(await client.take())
            continue
        count, size = command["count"], command["batch"]
        batches = [
            client.prepared([_item(sent + number) for number in range(first, min(first + size, count))])
            for first in range(0, count, size)
        ]  # fmt: skip
        sent += count
        clock.start()
        for batch in batches:
            await client.send(batch)
        answer({**clock.stop(), "sent": count})
    await client.close()


def _item(number: int) -> tuple[Message, dict[str, str]]:
    """Return a message as a drain would make it of a job; its id is of no job."""
    enqueued_at = datetime.now(UTC)
    message = Message(
        id=message_id(number, enqueued_at, "plain"), job_id=number, kind=KIND, queue=QUEUE,
        body=json.dumps({"number": number}, separators=(",", ":")).encode(), headers=HEADERS,
        enqueued_at=enqueued_at,
    )  # fmt: skip
    return message, message.metadata()


_ROLES: Final[dict[str, Any]] = {"drain": _drain, "plain": _plain}


def main() -> None:
    """Run as the scenario commands."""
    role, *arguments = sys.argv[1:]
    asyncio.run(_ROLES[role](*arguments))


if __name__ == "__main__":
    main()
