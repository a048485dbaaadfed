"""A proxy before the broker and the index: a process that forwards data, until a command makes
it a black hole.

As a black hole it accepts connections, reads what is sent, and never answers. The command to heal
resets the connections that lost data, as restarted servers would.

Usage: python -m annotations.outage.wire SOCKET=SOCKET|PORT=PORT ...; port 0 is any, and is printed
on the first line of output. It reads "cut" and "heal" from its input, answers each with a line, and
ends with its input.
"""

import asyncio
import contextlib
import sys
from collections.abc import Awaitable, Callable

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Wire:
    """Both directions of all connections."""

    def __init__(self) -> None:
        self.is_cut = False
        #: Connections that lost data, or never had another end.
        self._broken: set[asyncio.StreamWriter] = set()
        self._links: set[asyncio.Task[None]] = set()

    def heal(self) -> None:
        self.is_cut = False
        for writer in self._broken:
            writer.transport.abort()
        self._broken.clear()

    def link(self, connect: Callable[[], Awaitable[Streams]]) -> Callable[..., Awaitable[None]]:
        """Return what a server calls for each connection."""

        async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            if self.is_cut:
                await self._swallow(reader, writer)
                return
            try:
                other_reader, other_writer = await connect()
            except OSError:
                writer.transport.abort()
                return
            async with asyncio.TaskGroup() as both:
                both.create_task(self._pump(reader, other_writer, writer))
                both.create_task(self._pump(other_reader, writer, other_writer))

        return accept

    async def _pump(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        sender: asyncio.StreamWriter,
    ) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(1 << 16):
                if self.is_cut:
                    self._broken.add(writer)
                    await self._swallow(reader, sender)
                    break
                writer.write(data)
                await writer.drain()
        if not self.is_cut:
            writer.close()
        elif not writer.is_closing():
            self._broken.add(writer)

    async def _swallow(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._broken.add(writer)
        with contextlib.suppress(OSError):
            while self.is_cut and await reader.read(1 << 16):
                pass


async def serve(routes: list[str]) -> None:
    wire = Wire()
    for route in routes:
        here, _, there = route.partition("=")
        if there.isdecimal():
            port = int(there)
            server = await asyncio.start_server(
                wire.link(lambda port=port: asyncio.open_connection("127.0.0.1", port)),  # type: ignore[misc]
                "127.0.0.1",
                int(here),
                backlog=1024,
            )
            print(server.sockets[0].getsockname()[1], flush=True)
        else:
            await asyncio.start_unix_server(
                wire.link(lambda there=there: asyncio.open_unix_connection(there)),  # type: ignore[misc]
                here,
                backlog=1024,
            )
    while line := (await asyncio.to_thread(sys.stdin.readline)).strip():
        if line == "cut":
            wire.is_cut = True
        else:
            wire.heal()
        print(line, flush=True)


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1:]))
