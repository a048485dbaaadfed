"""A route that streams the changes of a job as server-sent events.

Invariants:

- "refused before asked": nothing of a job is read before ``authorize`` has said True.
- "told once": the id of an event says all that the browser has; what it has is not sent again,
  whichever process it comes back to.
- "text stays text": data is one line of ASCII, whatever a handler reported.
- "gone is free": a browser that went away, or takes nothing for a while, holds no place.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import json
import re
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final

from forebay._asgi import encoded, respond, serve
from forebay.app import App, require_app
from forebay.client.watching import EVERY_SECONDS, VISIBLE_SECONDS, checked_watch, watch_async
from forebay.db.kept import run_kept_async
from forebay.errors import (
    ConfigError,
    DatabaseUnavailable,
    ForebayError,
    GroupNotFound,
    InvalidJob,
    JobNotFound,
    TooManyWatched,
)
from forebay.model import checks
from forebay.model.doors import declaring_door
from forebay.model.text import logger
from forebay.ops import results

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from forebay._asgi import Message, Receive, Send
    from forebay.model.status import JobUpdate

#: A comment after this time without an event keeps proxies from closing the stream.
COMMENT_SECONDS: Final = 15.0
#: A stream ends after this time. The browser opens it again, and the route calls ``authorize``.
STREAM_SECONDS: Final = 600.0
#: A client that takes nothing for this long is gone.
SEND_SECONDS: Final = 30.0
#: How long a browser waits before it comes back.
RETRY_MILLIS: Final = 2000

STREAMS_MAX: Final = 1000

_PATH: Final = re.compile(r"(?:.*/)?([0-9]{1,19})")
_PLACE: Final = re.compile(r"([0-9]{1,19})\.([a-z]{1,20}\.[0-9]{1,10})?\.([0-9]{0,20})(\.end)?")
_LINES: Final = re.compile(r"\r\n|\r|\n")
_NOT_ASCII: Final = re.compile(r"[^\x00-\x7f]")

_HEADERS: Final = {
    "content-type": "text/event-stream; charset=utf-8",
    "cache-control": "no-store",
    "x-accel-buffering": "no",  # nginx passes each event on at once
}
_NO_JOB: Final = {"error": "no such job"}
_TOO_MANY: Final = {"error": "try again later"}
_LATER: Final = {"retry-after": "10"}

_log = logger("forebay.progress")


#: Gets the scope of a request and the id of a job.
Authorize = Callable[[Any, int], bool] | Callable[[Any, int], Awaitable[bool]]


@declaring_door
def asgi(
    app: App,
    *,
    authorize: Authorize,
    group: str = "default",
    with_result: bool = False,
    every: float = EVERY_SECONDS,
    visible_within: float = VISIBLE_SECONDS,
    streams_max: int = STREAMS_MAX,
) -> Route:
    """Return an ASGI application that streams the changes of a job: ``GET /{job_id}``.

    The answer has the type ``text/event-stream``, for ``EventSource`` of a browser. Its events are
    ``state``, ``progress`` and ``end``, with JSON; ``gone`` if the job exists no longer. A browser
    that was cut off continues where it was. Other answers: 204 to one that has had the end; 403 if
    ``authorize`` refused; 404 without such a job; 405 for another method; 503 if too many watch, or
    the login role may not.

    Args:
        app: the application.
        authorize: called with the ASGI scope of the request and the id of the job, before anything
            is read; may be a coroutine function. Anything but True, and an exception, refuses: who
            asks can guess ids.
        group: the consumer group of the jobs.
        with_result: whether ``end`` has what the handler returned, if it is kept.
        every: seconds between two looks, see ``JobHandle.watch``.
        visible_within: how long to wait for a job that is not visible, in seconds.
        streams_max: how many streams this process has at once.

    Raises:
        ConfigError: an argument is refused.
    """
    require_app(app)
    if streams_max < 1:
        raise ConfigError("streams_max", f"is {streams_max}, less than 1")

    def updates(job_id: int) -> AsyncGenerator[JobUpdate, None]:
        return watch_async(
            app.dsn, job_id, group, timeout=None, visible_within=visible_within, every=every
        )

    try:
        checked_watch(group, every=every, visible_within=visible_within)
    except InvalidJob as error:
        raise ConfigError(str(error.field), str(error.problem)) from None

    async def result(job_id: int) -> str | None:
        return (await run_kept_async(app.dsn, results.result(job_id, group))).value

    return Route(authorize, updates, result if with_result else None, streams_max)


class Route:
    """A route as an ASGI application; ``asgi()`` makes it. Mount it under any path."""

    def __init__(
        self,
        authorize: Authorize,
        updates: Callable[[int], AsyncGenerator[JobUpdate, None]],
        result: Callable[[int], Awaitable[str | None]] | None,
        streams_max: int,
    ) -> None:
        self._authorize = authorize
        self._updates = updates
        self._result = result
        self._streams_max = streams_max
        #: How many streams are open.
        self.streams = 0

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Answer a request."""
        await serve(scope, receive, send, lambda: self._answer(scope, receive, send))

    async def _answer(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["method"] != "GET":
            await respond(send, 405, {"error": "GET only"}, {"allow": "GET"})
            return
        # The last part of the path: frameworks differ in what they leave of it to a mounted one.
        found = _PATH.fullmatch(scope["path"])
        job_id = int(found[1]) if found else -1
        if not 0 <= job_id <= checks.BIGINT_MAX:
            await respond(send, 404, _NO_JOB, {})
        elif not await self._may(scope, job_id):
            await respond(send, 403, {"error": "forbidden"}, {})
        elif (place := _Place.of(scope, job_id)).has_end:
            await send({"type": "http.response.start", "status": 204, "headers": []})
            await send({"type": "http.response.body", "body": b""})
        elif self.streams >= self._streams_max:
            await respond(send, 503, _TOO_MANY, _LATER)
        else:
            self.streams += 1
            stream = _Stream(send, place)
            updates = self._updates(job_id)
            try:
                # OSError: the server says that the client has gone. TimeoutError is one of them.
                with contextlib.suppress(OSError):
                    await self._follow(updates, receive, stream)
            finally:
                self.streams -= 1

    async def _may(self, scope: Message, job_id: int) -> bool:
        """Whether this request may watch the job."""
        try:
            found = self._authorize(scope, job_id)
            if inspect.isawaitable(found):
                found = await found
        except Exception:
            _log.exception("authorize failed, and the request is refused")
            return False
        # A tuple, an answer or another object that a function returned by mistake is true, too.
        return found is True

    async def _follow(
        self,
        updates: AsyncGenerator[JobUpdate, None],
        receive: Receive,
        stream: _Stream,
    ) -> None:
        """Send what happens, until the job has ended or the client is gone."""

        async def next_update() -> JobUpdate:
            return await anext(updates)

        gone = asyncio.create_task(_gone(receive))
        coming = asyncio.create_task(next_update())
        until = time.monotonic() + STREAM_SECONDS
        try:
            while time.monotonic() < until:
                done, _ = await asyncio.wait(
                    {gone, coming}, timeout=COMMENT_SECONDS, return_when=asyncio.FIRST_COMPLETED
                )
                if gone in done:
                    return
                if coming not in done:
                    await stream.comment()
                    continue
                try:
                    update = coming.result()
                except ForebayError as error:
                    await self._refused(error, stream)
                    return
                await stream.report(update)
                if update.is_final:
                    await self._end(update, stream)
                    return
                coming = asyncio.create_task(next_update())
            await stream.close()
        finally:
            for task in (gone, coming):
                task.cancel()
            # Not raised: the client is gone, or was told already.
            await asyncio.gather(gone, coming, return_exceptions=True)
            await updates.aclose()

    async def _end(self, update: JobUpdate, stream: _Stream) -> None:
        value = None
        if self._result is not None and update.has_result:
            try:
                value = await self._result(update.job_id)
            except DatabaseUnavailable:
                await stream.close()  # The browser comes back for it.
                return
            except ForebayError:
                _log.exception("the result of a job cannot be read")
        await stream.end(update, value)

    @staticmethod
    async def _refused(error: ForebayError, stream: _Stream) -> None:
        if isinstance(error, JobNotFound | GroupNotFound):
            await stream.gone()
            return
        if not isinstance(error, TooManyWatched):
            _log.error("jobs cannot be watched: %s", error)
        await stream.unavailable()


async def _gone(receive: Receive) -> None:
    """Wait until the client has gone."""
    while (await receive())["type"] != "http.disconnect":
        pass


def _ascii(text: str) -> str:
    """Return a JSON text in ASCII. It is not read: numbers stay as PostgreSQL wrote them."""
    return _NOT_ASCII.sub(lambda found: json.dumps(found[0])[1:-1], text)


class _Place:
    """What a browser has of a job, as the id of the last event says.

    Attributes:
        state: the last state and attempt; None: it has none.
        progress: the last progress, by its time; None: it has none.
        has_end: whether it had the end.
    """

    def __init__(self, job_id: int) -> None:
        self._job_id = job_id
        self.state: str | None = None
        self.progress: str | None = None
        self.has_end = False

    @classmethod
    def of(cls, scope: Message, job_id: int) -> _Place:
        """Return the place that a request names; the beginning, if it names none of this job."""
        place = cls(job_id)
        given = [value for name, value in scope["headers"] if name.lower() == b"last-event-id"]
        found = _PLACE.fullmatch(given[-1].decode("latin-1")) if given else None
        if found is not None and int(found[1]) == job_id:
            place.state, place.progress = found[2], found[3] or None
            place.has_end = found[4] is not None
        return place

    def __str__(self) -> str:
        end = ".end" if self.has_end else ""
        return f"{self._job_id}.{self.state or ''}.{self.progress or ''}{end}"


class _Stream:
    """The answer to one browser; begun with the first event."""

    def __init__(self, send: Send, place: _Place) -> None:
        self._send_message = send
        self._place = place
        self._has_begun = False

    async def report(self, update: JobUpdate) -> None:
        """Send what the browser does not have."""
        state = f"{update.state}.{update.attempt}"
        if state != self._place.state:
            self._place.state = state
            await self._event("state", {"state": update.state, "attempt": update.attempt})
        if (progress := update.progress) is not None:
            at = str(round(progress.recorded_at.timestamp() * 1_000_000))
            if at != self._place.progress:
                self._place.progress = at
                facts = {
                    "done": progress.done,
                    "note": progress.note,
                    "recorded_at": progress.recorded_at.isoformat(),
                }
                await self._event("progress", facts)

    async def end(self, update: JobUpdate, value: str | None) -> None:
        """Send the last event, with the JSON text of the result if there is one."""
        self._place.has_end = True
        facts: dict[str, Any] = {
            "state": update.state,
            "attempt": update.attempt,
            "has_result": update.has_result,
        }
        await self._event("end", facts, "" if value is None else f', "result": {_ascii(value)}')
        await self.close()

    async def gone(self) -> None:
        """Say that there is no such job."""
        if self._has_begun:
            await self._event("gone", {})
            await self.close()
        else:
            await respond(self._send, 404, _NO_JOB, {})

    async def unavailable(self) -> None:
        """Say nothing but that it does not work now."""
        if self._has_begun:
            await self.close()
        else:
            await respond(self._send, 503, _TOO_MANY, _LATER)

    async def comment(self) -> None:
        """Send what browsers ignore and proxies see."""
        await self._write(":\n\n")

    async def close(self) -> None:
        """End the answer."""
        await self._begin()
        await self._send({"type": "http.response.body", "body": b""})

    async def _event(self, name: str, facts: dict[str, Any], more: str = "") -> None:
        data = json.dumps(facts)[:-1] + more + "}"
        lines = "".join(f"data: {line}\n" for line in _LINES.split(data))
        await self._write(f"id: {self._place}\nevent: {name}\n{lines}\n")

    async def _write(self, text: str) -> None:
        await self._begin()
        await self._send({"type": "http.response.body", "body": text.encode(), "more_body": True})

    async def _begin(self) -> None:
        if self._has_begun:
            return
        self._has_begun = True
        await self._send(
            {"type": "http.response.start", "status": 200, "headers": encoded(_HEADERS)}
        )
        await self._write(f"retry: {RETRY_MILLIS}\n\n")

    async def _send(self, message: Message) -> None:
        async with asyncio.timeout(SEND_SECONDS):
            await self._send_message(message)
