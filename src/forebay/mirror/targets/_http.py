"""Requests to a target over HTTP, with aiohttp, which is an extra.

A session belongs to the event loop that made it. There is one per loop, because a mirror may call a
target in the mirror's thread and the application in another.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import threading
import weakref
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import urlsplit

import msgspec

from forebay.errors import ConfigError, TargetUnavailable, shown

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Coroutine, Iterator, Mapping
    from types import ModuleType
    from typing import TypeVar

    import aiohttp

    T = TypeVar("T")

#: Connections of one session; a pass makes its calls one after the other, direct writes up to 16 at
#: a time.
_CONNECTIONS_MAX: Final = 32

#: The longest answer that is read. Those to our requests have numbers and digests, and no
#: documents.
ANSWER_BYTES_MAX: Final = 32_000_000

_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f]")

#: How much of an answer that is not JSON, such as the page of a proxy, appears in messages.
_SHOWN_MAX: Final = 200


class ServerResponse(NamedTuple):
    """The answer of a server.

    Attributes:
        status: of HTTP.
        body: the decoded JSON; the text if it is not JSON.
    """

    status: int
    body: Any


class Http:
    """A server at an address.

    Args:
        url: its address; it may contain a user and a password.
        extra: the extra of this library with the required packages.
        headers: sent with each request, such as an API key.
        tls: for https; None for the usual checks.
        seconds: how long an answer may take.

    Raises:
        ConfigError: the address is not that of a web server, or aiohttp is missing.
    """

    def __init__(
        self,
        url: str,
        *,
        extra: str,
        headers: Mapping[str, str] | None = None,
        tls: ssl.SSLContext | None = None,
        seconds: float = 30.0,
    ) -> None:
        # The messages do not repeat the address or a header: both may hold a password.
        try:
            parts = urlsplit(url)
            is_server = parts.scheme in ("http", "https") and bool(parts.hostname)
            _ = parts.port  # an unescaped character in a password looks like a malformed port
        except ValueError:
            is_server = False
        if not is_server or parts.query or parts.fragment or _CONTROL.search(url):
            raise ConfigError(
                "url",
                "is not the address of a web server: http://host:port",
                hint="In a password, write / as %2F, @ as %40, ? as %3F, # as %23 and : as %3A.",
            )
        for name, value in (headers or {}).items():
            if not name or _CONTROL.search(name) or _CONTROL.search(value):
                raise ConfigError("headers", f"{shown(name)} has control characters")
        self._url = url.rstrip("/")
        #: For messages: without the password.
        self._place = parts.netloc.rpartition("@")[2]
        self._client = _library(extra)
        self._headers = dict(headers or {})
        self._tls = tls
        self._seconds = seconds
        self._sessions: weakref.WeakKeyDictionary[
            asyncio.AbstractEventLoop, aiohttp.ClientSession
        ] = weakref.WeakKeyDictionary()

    async def send(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: bytes | None = None,
        content_type: str = "application/json",
        form: Mapping[str, str] | None = None,
    ) -> ServerResponse:
        """Send a request, with a body or a form, and return the answer, whatever its status.

        The answer is read up to 32 MB, and not unpacked: a few kilobytes could become gigabytes.

        Raises:
            TargetUnavailable: there was no answer, or not in time, or it is too long.
        """
        headers = {"Accept-Encoding": "identity"}
        if body is not None:
            headers["Content-Type"] = content_type
        try:
            async with self._session().request(
                method,
                f"{self._url}{path}",
                params=query,
                data=body if form is None else dict(form),
                headers=headers,
                allow_redirects=False,
            ) as answer:
                return ServerResponse(answer.status, _decoded(await self._read(answer)))
        except TimeoutError as error:
            raise TargetUnavailable(f"{self._place} did not answer in time") from error
        except (self._client.ClientError, OSError, ValueError) as error:
            # Other errors of the library repeat the whole address.
            is_plain = isinstance(error, OSError | self._client.ClientConnectionError)
            problem = str(error) if is_plain and str(error) else type(error).__name__
            raise TargetUnavailable(f"{self._place}: {problem}") from None

    async def _read(self, answer: aiohttp.ClientResponse) -> bytes:
        packed = answer.headers.get("Content-Encoding", "identity")
        if packed != "identity":
            raise TargetUnavailable(
                f"{self._place} packs its answers, although it was asked not to: "
                f"{shown(packed[:50])}"
            )
        parts: list[bytes] = []
        size = 0
        async for part in answer.content.iter_any():
            size += len(part)
            if size > ANSWER_BYTES_MAX:
                raise TargetUnavailable(
                    f"{self._place} answered more than {ANSWER_BYTES_MAX} bytes",
                    hint="Check that the address is that of the search engine.",
                )
            parts.append(part)
        return b"".join(parts)

    async def close(self) -> None:
        """Close the connections of this event loop."""
        session = self._sessions.pop(asyncio.get_running_loop(), None)
        if session is not None:
            await session.close()

    def _session(self) -> aiohttp.ClientSession:
        loop, client = asyncio.get_running_loop(), self._client
        session = self._sessions.get(loop)
        if session is None or session.closed:
            session = self._sessions[loop] = client.ClientSession(
                headers=self._headers,
                timeout=client.ClientTimeout(total=self._seconds),
                connector=client.TCPConnector(
                    limit=_CONNECTIONS_MAX, ssl=True if self._tls is None else self._tls
                ),
                cookie_jar=client.DummyCookieJar(),
                auto_decompress=False,
            )
        return session


def _library(extra: str) -> ModuleType:
    try:
        import aiohttp  # noqa: PLC0415 - an extra
    except ModuleNotFoundError:
        raise ConfigError(
            "aiohttp", "is not installed", hint=f"pip install 'forebay[{extra}]'"
        ) from None
    return aiohttp


def run_apart(function: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run a coroutine function to its end on a new loop, from any thread.

    >>> async def answer() -> int:
    ...     return 42
    >>> run_apart(answer)
    42
    """
    results: list[T] = []
    failures: list[BaseException] = []

    def run() -> None:
        try:
            results.append(asyncio.run(function()))
        except BaseException as error:  # for the caller, in another thread
            failures.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if failures:
        raise failures[0]
    return results[0]


@contextlib.contextmanager
def understood(place: str) -> Iterator[None]:
    """Turn the failure to read an answer into ``TargetUnavailable``: the items of the request
    are not at fault.

    Args:
        place: what answered, for the message.
    """
    try:
        yield
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        problem = f"{type(error).__name__}: {shown(str(error)[:_SHOWN_MAX])}"
        raise TargetUnavailable(f"{place}: the answer has an unknown form: {problem}") from error


def _decoded(body: bytes) -> Any:
    try:
        return msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError):
        return shown(body[: 4 * _SHOWN_MAX].decode(errors="replace")[:_SHOWN_MAX])
