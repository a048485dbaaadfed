"""A minimal broker: a server on a TCP port with one queue in memory. It stands in for real ones.

It is reliable: it keeps what it confirmed until a consumer has confirmed it. A line of JSON is a
command, and is answered with one: {"publish": ...}, {"take": 100}, {"done": 100}, {"count": null}.
Messages that a consumer took and did not confirm before it disconnected are queued again.
"""

import asyncio
import collections
import json
import sys
from typing import Any


class Broker:
    def __init__(self) -> None:
        self._queue: collections.deque[Any] = collections.deque()
        self._taken = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        taken: collections.deque[Any] = collections.deque()
        try:
            while line := await reader.readline():
                writer.write(json.dumps(self._answer(json.loads(line), taken)).encode() + b"\n")
                await writer.drain()
        except OSError:
            pass
        finally:
            self._queue.extendleft(reversed(taken))
            self._taken -= len(taken)
            writer.close()

    def _answer(self, command: dict[str, Any], taken: collections.deque[Any]) -> Any:
        if "publish" in command:
            self._queue.append(command["publish"])
            return "ok"
        if "take" in command:
            found = [self._queue.popleft() for _ in range(min(command["take"], len(self._queue)))]
            taken.extend(found)
            self._taken += len(found)
            return found
        if "count" in command:
            return len(self._queue) + self._taken
        for _ in range(command["done"]):
            taken.popleft()
            self._taken -= 1
        return "ok"


class Client:
    """A connection to the broker, opened again after each failure."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def call(self, command: dict[str, Any]) -> Any:
        """Return the broker's answer.

        Raises:
            OSError: it did not.
        """
        try:
            if self._streams is None:
                self._streams = await asyncio.open_connection("127.0.0.1", self._port)
            reader, writer = self._streams
            writer.write(json.dumps(command).encode() + b"\n")
            await writer.drain()
            line = await reader.readline()
            if not line:
                raise ConnectionResetError("the broker hung up")
            return json.loads(line)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        if self._streams is not None:
            self._streams[1].transport.abort()
            self._streams = None


async def main() -> None:
    server = await asyncio.start_server(Broker().serve, "127.0.0.1", 0, backlog=1024)
    print(server.sockets[0].getsockname()[1], flush=True)
    await asyncio.to_thread(sys.stdin.read)  # until the parent process has ended


if __name__ == "__main__":
    asyncio.run(main())
