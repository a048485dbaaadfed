"""Requests to a target over HTTP, with aiohttp, which is an extra.

A session belongs to the event loop that made it; there is one for each, since a target may be called by a mirror
in its own thread and by the application in another.
"""

from __future__ import annotations

import asyncio
import threading
import weakref
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import urlsplit

import msgspec

from forebay.errors import ConfigError, TargetUnavailable, shown

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Coroutine, Mapping
    from types import ModuleType
    from typing import TypeVar

    import aiohttp

    T = TypeVar("T")

#: Connections of one session; a pass makes its calls one behind the other, direct writes come 16 at a time.
_CONNECTIONS_MAX: Final = 32

#: Of an answer that is no JSON, as a proxy's page, so much is told.
_SHOWN_MAX: Final = 200


class ServerResponse(NamedTuple):
    """What a server answered.

    Attributes:
        status: of HTTP.
        body: what its JSON says; a text where it is none.
    """

    status: int
    body: Any


class Http:
    """A server by its address.

    Args:
        url: its address, which may have a user and a password.
        extra: of the library's extras, the one that has what is needed.
        headers: sent with each request, as for an API key.
        tls: for https, None for the usual checks.
        seconds: how long an answer may take.

    Raises:
        ConfigError: the address is none of a web server, or aiohttp is missing.
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
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigError("url", "is not the address of a web server: http://host:port")
        self._url = url.rstrip("/")
        #: For messages: without a password.
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
        """Send a request, with a body or a form, and return the answer, whatever it says.

        Raises:
            TargetUnavailable: there was none, or not within the time.
        """
        headers = {} if body is None else {"Content-Type": content_type}
        try:
            async with self._session().request(
                method,
                f"{self._url}{path}",
                params=query,
                data=body if form is None else dict(form),
                headers=headers,
                allow_redirects=False,
            ) as answer:
                return ServerResponse(answer.status, _decoded(await answer.read()))
        except TimeoutError as error:
            raise TargetUnavailable(f"{self._place} gave no answer in time") from error
        except (self._client.ClientError, OSError) as error:
            problem = str(error) or type(error).__name__
            raise TargetUnavailable(f"{self._place}: {problem}") from error

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
    """Run a coroutine function to its end on a loop of its own, from anywhere.

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
        except BaseException as error:  # it is the caller's, in another thread
            failures.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if failures:
        raise failures[0]
    return results[0]


def _decoded(body: bytes) -> Any:
    try:
        return msgspec.json.decode(body)
    except msgspec.DecodeError:
        return shown(body.decode(errors="replace")[:_SHOWN_MAX])
