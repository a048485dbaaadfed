"""An HTTP server in a separate process that counts what arrives: started by the scenario ``events``, with its port.

It reads just enough of HTTP for the requests of the sink, since it shares the cores with what is measured. Paths that begin with
``/refused`` are answered with 500. Each body has ``t``, when it was published as seconds since 1970, and ``n``, its number.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
import threading
import time
from typing import Any, Final

from forebay_bench._child import answer, commands
from forebay_bench._measure import percentile

_LENGTH: Final = re.compile(rb"(?i)\r\ncontent-length: *(\d+)")
_BACKLOG: Final = 4000
_SEPARATOR: Final = b"\r\n\r\n"


class _Arrivals:
    """What arrived since the last ``take``."""

    def __init__(self) -> None:
        self.waits: list[float] = []
        self.known: set[tuple[bytes, int]] = set()
        self.requests = 0
        self.refused = 0

    def take(self) -> dict[str, Any]:
        """Return the figures, and begin anew."""
        waits = sorted(self.waits)
        found = {
            "arrived": len(self.known),
            "repeated": len(waits) - len(self.known),
            "requests": self.requests,
            "refused": self.refused,
            **{f"p{share}": percentile(waits, share / 100) if waits else None for share in (50, 99)},
            "cpu_seconds": time.process_time(),
        }  # fmt: skip
        self.__init__()  # type: ignore[misc]
        return found


class _Protocol(asyncio.Protocol):
    def __init__(self, arrivals: _Arrivals) -> None:
        self._arrivals = arrivals
        self._read = b""
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._read += data
        while (end := self._read.find(_SEPARATOR)) >= 0:
            head = self._read[:end]
            found = _LENGTH.search(head)
            after = end + len(_SEPARATOR) + (int(found[1]) if found else 0)
            if len(self._read) < after:
                return
            body, self._read = self._read[end + len(_SEPARATOR) : after], self._read[after:]
            self._take(head.split(b" ", 2)[1], body)

    def _take(self, path: bytes, body: bytes) -> None:
        arrivals, now = self._arrivals, time.time()
        if path.startswith(b"/refused"):
            arrivals.refused += 1
            self._transport.write(b"HTTP/1.1 500 refused\r\ncontent-length: 0\r\n\r\n")
            return
        arrivals.requests += 1
        found = json.loads(body)
        for one in found if isinstance(found, list) else [found]:
            payload = one.get("body", one)
            arrivals.waits.append(now - payload["t"])
            arrivals.known.add((path, payload["n"]))
        self._transport.write(b"HTTP/1.1 204 accepted\r\n\r\n")


async def _serve(arrivals: _Arrivals, ready: threading.Event, ports: list[int]) -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: _Protocol(arrivals), "127.0.0.1", 0, backlog=_BACKLOG)
    ports.append(server.sockets[0].getsockname()[1])
    ready.set()
    await asyncio.Event().wait()


def main() -> None:
    """Answer ``port``, ``count`` and ``take`` until the input ends."""
    arrivals, ready, ports = _Arrivals(), threading.Event(), list[int]()
    threading.Thread(
        target=lambda: asyncio.run(_serve(arrivals, ready, ports)), daemon=True
    ).start()
    ready.wait()
    for command in commands():
        if command == "port":
            answer(ports[0])
        elif command == "count":
            answer(len(arrivals.known))
        else:
            answer(arrivals.take())
    sys.stdout.close()


if __name__ == "__main__":
    main()
