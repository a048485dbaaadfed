"""What is refused before a request reaches the service: other hosts, other sites, and long bodies.

There are no accounts, so the browser of a person who can reach the service must not act for another
site. A site can send requests without reading the answers (a form), or give its own name the
address of this service (DNS rebinding).
"""

import os

import msgspec
from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

BODY_BYTES_MAX = 1_000_000

#: This much of a refused body is read and dropped: a client that still sends when the connection
#: closes sees a broken pipe in place of the answer.
_DROPPED_BYTES_MAX = 8 * BODY_BYTES_MAX

#: The names under which the service may be asked for; ANNOTATIONS_HOSTS adds others, separated by
#: commas.
HOSTS = frozenset({"localhost", "127.0.0.1", "[::1]"})

_SAFE = ("GET", "HEAD", "OPTIONS")


class _TooLongError(Exception):
    """The body is longer than allowed."""


class Door:
    """Refuses a request or passes it on."""

    def __init__(self, service: ASGIApp) -> None:
        self._service = service
        others = os.environ.get("ANNOTATIONS_HOSTS", "")
        self._hosts = HOSTS | {name.strip().lower() for name in others.split(",") if name.strip()}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._service(scope, receive, send)
            return
        headers = Headers(scope=scope)
        host = headers.get("host", "").lower()
        problem: tuple[int, str] | None = None
        if _without_port(host) not in self._hosts:
            problem = 421, "this service has another name; ANNOTATIONS_HOSTS adds names"
        elif scope["method"] not in _SAFE and _is_other_site(headers, host):
            problem = 403, "another site may not do this"
        elif _length(headers) > BODY_BYTES_MAX:
            problem = 413, f"send at most {BODY_BYTES_MAX} bytes"
        if problem is not None:
            await _drop(receive)
            await _refused(*problem)(scope, receive, send)
            return
        begun = False

        async def noted(message: Message) -> None:
            nonlocal begun
            begun = True
            await send(message)

        try:
            await self._service(scope, _bounded(receive), noted)
        except _TooLongError:
            if begun:
                raise
            await _refused(413, f"send at most {BODY_BYTES_MAX} bytes")(scope, receive, send)


def _without_port(host: str) -> str:
    name, colon, port = host.rpartition(":")
    return name if colon and port.isdecimal() else host


def _is_other_site(headers: Headers, host: str) -> bool:
    """Browsers send these headers with each request that changes something.

    Other clients send none.
    """
    if headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
        return True
    origin = headers.get("origin")
    return origin is not None and origin.lower().partition("://")[2] != host


def _length(headers: Headers) -> int:
    given = headers.get("content-length", "0")
    return int(given) if given.isdecimal() and len(given) < 20 else BODY_BYTES_MAX + 1


def _bounded(receive: Receive) -> Receive:
    """Count the body as it arrives: a chunked one has no length."""
    size = 0

    async def counted() -> Message:
        nonlocal size
        message = await receive()
        size += len(message.get("body", b""))
        if size > BODY_BYTES_MAX:
            if message.get("more_body", False):
                await _drop(receive)
            raise _TooLongError
        return message

    return counted


async def _drop(receive: Receive) -> None:
    """Read what the client still sends, up to a bound."""
    size, more = 0, True
    while more and size <= _DROPPED_BYTES_MAX:
        message = await receive()
        size += len(message.get("body", b""))
        more = message["type"] == "http.request" and message.get("more_body", False)


def _refused(status: int, problem: str) -> Response:
    return Response(msgspec.json.encode({"error": problem}), status, media_type="application/json")
