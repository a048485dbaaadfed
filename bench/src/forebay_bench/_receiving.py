"""A process that receives HTTP requests of endpoints, and remembers when each message arrived.

Started by the scenario ``endpoints``. The body of a request is the payload of an event with a member ``number``; the path is the number of the
endpoint. It reads as little of HTTP as it needs, so that its share of the machine is small.
"""

from __future__ import annotations

import asyncio
import json
import sys
import threading
import time
from typing import Final

from forebay_bench._child import answer, commands

_ANSWER: Final = b"HTTP/1.1 204 No Content\r\n\r\n"
_HEAD_END: Final = b"\r\n\r\n"
_LENGTH: Final = b"content-length:"


class Requests(asyncio.Protocol):
    """The requests of one connection.

    Args:
        arrived: gets number, endpoint and monotonic time of each message.
    """

    def __init__(self, arrived: list[tuple[int, int, float]]) -> None:
        self._arrived = arrived
        self._data = b""
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the connection."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """Answer the requests that are complete."""
        self._data += data
        while (end := self._data.find(_HEAD_END)) >= 0:
            head = self._data[:end]
            place = head.lower().find(_LENGTH)
            length = int(head[place + len(_LENGTH) :].split(b"\r\n", 1)[0]) if place >= 0 else 0
            body = end + len(_HEAD_END)
            if len(self._data) < body + length:
                return
            self._arrived.append((
                json.loads(self._data[body : body + length])["number"],
                int(head.split(b" ", 2)[1][1:]),
                time.monotonic(),
            ))  # fmt: skip
            self._data = self._data[body + length :]
            self._transport.write(_ANSWER)


async def _serve() -> None:
    arrived: list[tuple[int, int, float]] = []
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Requests(arrived), "127.0.0.1", 0, backlog=4096)
    port = server.sockets[0].getsockname()[1]
    ended = asyncio.Event()

    def obey() -> None:
        for command in commands():
            if command["do"] == "port":
                answer(port)
            elif command["do"] == "count":
                answer(len(arrived))
            else:
                taken = arrived[:]
                del arrived[: len(taken)]
                answer(taken)
        loop.call_soon_threadsafe(ended.set)

    threading.Thread(target=obey, daemon=True).start()
    await ended.wait()
    server.close()


def main() -> None:
    """Run as the scenario commands."""
    asyncio.run(_serve())
    sys.exit(0)


if __name__ == "__main__":
    main()
