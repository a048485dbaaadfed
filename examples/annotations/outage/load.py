"""The load: a process that writes, edits, deletes and reads at a steady rate, and reports how
long each answer took.

Each request starts at its planned time, whether earlier ones were answered or not, and its wait for
a free connection counts: all requests during a stall show it. The process first measures how much
the machine can do, and then uses six tenths of that; less if it cannot keep that up.

Usage: python -m annotations.outage.load SERVICE OLD_SERVICE RATE_MAX OLD_RATE; both services are
sockets. It continues until its input has a line or ends.
Its output is lines of JSON: {"rate": ...}, then {"done": [[kind, at, seconds, ok], ...]} ten times
a second, with the time as time.monotonic() has it.
"""

import asyncio
import json
import random
import sys
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any
from urllib.parse import quote

CONNECTIONS = 64

#: Longer than anything should take.
_SECONDS = 30.0

_WARM_SECONDS = 3.0


class Http:
    """The part of HTTP that the service uses, over some kept connections."""

    def __init__(self, socket: str) -> None:
        self._socket = socket
        self._idle: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []
        self._places = asyncio.Semaphore(CONNECTIONS)

    def close(self) -> None:
        """End the connections that are not in use."""
        for _, writer in self._idle:
            writer.transport.abort()
        self._idle.clear()

    async def request(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        """Return status and content of an answer."""
        content = b"" if body is None else json.dumps(body).encode()
        request = (
            f"{method} {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
            f"content-length: {len(content)}\r\n\r\n"
        ).encode()
        async with self._places, asyncio.timeout(_SECONDS):
            if self._idle:
                reader, writer = self._idle.pop()
            else:
                reader, writer = await asyncio.open_unix_connection(self._socket, limit=1 << 20)
            try:
                writer.write(request + content)
                head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
                length = head.partition("content-length:")[2].partition("\r\n")[0]
                found = await reader.readexactly(int(length))
            except BaseException:
                writer.close()
                raise
            self._idle.append((reader, writer))
            return int(head.split(" ", 2)[1]), json.loads(found)


class People:
    """The sequence of requests: mostly new annotations, some changes and deletions of them, some
    reads.
    """

    def __init__(self, http: Http, old: Http) -> None:
        self._http = http
        self._old = old
        self._random = random.Random(0)
        self._pages: list[str] = []
        self._texts: list[tuple[str, int, str]] = []
        self._mine: list[int] = []
        self.done: list[tuple[str, float, float, bool]] = []

    async def prepare(self) -> None:
        """Read some pages, to have text to write."""
        _, pages = await self._http.request("GET", "/api/pages")
        self._pages = [page["name"] for page in pages]
        for name in self._random.sample(self._pages, min(40, len(self._pages))):
            _, page = await self._http.request("GET", f"/api/pages/{quote(name)}")
            self._texts += [(name, note["line"], note["text"]) for note in page["annotations"]]

    async def write(self) -> None:
        """Write something; changes and deletions apply to annotations written here."""
        chance = self._random.random()
        if chance < 0.7 or len(self._mine) < 100:
            await self._timed("create", self._create)
            return
        name = self._mine.pop(self._random.randrange(len(self._mine)))
        if chance < 0.9:
            await self._timed("edit", lambda: self._edit(name))
        else:
            await self._timed("delete", lambda: self._delete(name))

    async def read(self) -> None:
        """Read a page: a request that does not need the index must not be affected by its
        outage.
        """
        name = quote(self._random.choice(self._pages))
        await self._timed("read", lambda: self._is(200, "GET", f"/api/pages/{name}"))

    async def write_old(self) -> None:
        """Write something in the old order."""
        await self._timed(
            "old", lambda: self._is(201, "POST", "/api/annotations", self._note(), self._old)
        )

    def _note(self) -> dict[str, Any]:
        page, line, text = self._random.choice(self._texts)
        user = f"reader{self._random.randrange(100)}"
        return {"page": page, "line": line, "text": text, "user": user, "tags": ["load"]}

    async def _create(self) -> bool:
        status, found = await self._http.request("POST", "/api/annotations", self._note())
        if status == 201:
            self._mine.append(found["id"])
        return status == 201

    async def _edit(self, name: int) -> bool:
        note = self._note()
        body = {"text": note["text"], "tags": ["load", "edited"]}
        is_done = await self._is(200, "PUT", f"/api/annotations/{name}", body)
        self._mine.append(name)
        return is_done

    async def _delete(self, name: int) -> bool:
        return await self._is(200, "DELETE", f"/api/annotations/{name}")

    async def _is(
        self, wanted: int, method: str, path: str, body: Any = None, http: Http | None = None
    ) -> bool:
        status, _ = await (http or self._http).request(method, path, body)
        return status == wanted

    async def _timed(self, kind: str, act: Callable[[], Awaitable[bool]]) -> None:
        at = time.monotonic()
        try:
            is_done = await act()
        except (OSError, EOFError, ValueError, asyncio.LimitOverrunError):
            is_done = False
        self.done.append((kind, at, time.monotonic() - at, is_done))


def report(people: People) -> None:
    if people.done:
        print(json.dumps({"done": people.done}), flush=True)
        people.done = []


#: From this number of unanswered requests on the rate falls, to at least this share of the first.
_MANY, _LEAST = 24, 0.25


async def find_rate(people: People, most: float) -> float:
    """Return six tenths of the rate of eight clients that never pause."""
    until = time.monotonic() + _WARM_SECONDS

    async def never_pause() -> None:
        while time.monotonic() < until:
            await people.write()

    await asyncio.gather(*(never_pause() for _ in range(8)))
    return min(most, 0.6 * len(people.done) / _WARM_SECONDS)


async def steadily(
    rate: float,
    act: Callable[[], Coroutine[Any, Any, None]],
    is_enough: Callable[[], bool] = lambda: False,
) -> None:
    """Start an action at a rate until it is enough, and wait for all of them.

    If many wait for their answers, the rate falls for good: others began to use the machine. What
    was planned before starts at its time, so its wait counts.
    """
    next_at = slower_at = time.monotonic()
    least = rate * _LEAST
    running: set[asyncio.Task[None]] = set()
    try:
        while not is_enough():
            await asyncio.sleep(max(0.0, next_at - time.monotonic()))
            if len(running) >= _MANY and time.monotonic() > slower_at and rate > least:
                rate, slower_at = max(least, 0.8 * rate), time.monotonic() + 1.0
                next_at = time.monotonic()
            next_at += 1 / rate
            task: asyncio.Task[None] = asyncio.create_task(act())
            running.add(task)
            task.add_done_callback(running.discard)
    finally:
        if running:
            await asyncio.gather(*running)


async def main(socket: str, old_socket: str, rate_max: float, old_rate: float) -> None:
    here, there = Http(socket), Http(old_socket)
    people = People(here, there)
    await people.prepare()
    rate = await find_rate(people, rate_max)
    print(json.dumps({"rate": rate}), flush=True)
    report(people)

    async def telling() -> None:
        while True:
            await asyncio.sleep(0.1)
            report(people)

    beside = [
        asyncio.create_task(telling()),
        asyncio.create_task(steadily(rate / 10, people.read)),
        asyncio.create_task(steadily(min(old_rate, rate), people.write_old)),
    ]
    stop = asyncio.create_task(asyncio.to_thread(sys.stdin.readline))
    await steadily(rate, people.write, stop.done)
    for task in beside:
        task.cancel()
    await asyncio.gather(*beside, return_exceptions=True)
    report(people)
    here.close()
    there.close()


if __name__ == "__main__":
    _, here, there, *rates = sys.argv
    asyncio.run(main(here, there, *map(float, rates)))
