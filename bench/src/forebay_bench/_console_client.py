"""Those who look at the console of ``_console``: one reader, and many viewers at once."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
from http import HTTPStatus
from typing import TYPE_CHECKING

from forebay_bench._measure import server_cpu_seconds

if TYPE_CHECKING:
    from forebay_bench._processes import Script


class Console:
    """A console in its process, and a connection to it."""

    def __init__(self, script: Script, postmaster_pid: int | None) -> None:
        self._script, self._postmaster_pid = script, postmaster_pid
        script.send("port")
        self.port = int(script.read_message())
        self._http = http.client.HTTPConnection("127.0.0.1", self.port)

    def close(self) -> None:
        """Hang up."""
        self._http.close()

    def read(self, path: str) -> tuple[int, bool]:
        """Read a page; return its size, and whether it is the page and not one that says why."""
        self._http.request("GET", f"/main/{path}")
        answer = self._http.getresponse()
        return len(answer.read()), answer.status == HTTPStatus.OK

    def used(self) -> tuple[int, float]:
        """Return the statements, and the processor time of the console and the server, so far."""
        self._script.send("used")
        found = self._script.read_message()
        server = self._postmaster_pid and server_cpu_seconds(self._postmaster_pid)
        return found["statements"], found["cpu_seconds"] + (server or 0.0)

    async def view(self, viewers: int, seconds: float) -> int:
        """Let viewers look at the overview; return how often they read it."""
        reads = 0

        async def viewer() -> None:
            nonlocal reads
            live, writer = await asyncio.open_connection("127.0.0.1", self.port)
            again, asking = await asyncio.open_connection("127.0.0.1", self.port, limit=2**24)
            writer.write(b"GET /main/live HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
            with contextlib.closing(writer), contextlib.closing(asking):
                async for line in live:
                    if line == b"event: changed\n":
                        asking.write(b"GET /main/ HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
                        await again.readuntil(b"</html>")
                        reads += 1

        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds), asyncio.TaskGroup() as group:
                for _ in range(viewers):
                    group.create_task(viewer())
        return reads
