"""Requests of an HTTP sink, with aiohttp, which is an extra: import this module after a check
that it is there.

The client of mirrors trusts the server of its configuration. This one does not trust the endpoint:
it connects to checked addresses only, reads a bounded part of an answer, unpacks nothing and
follows no redirect: the sink asks it for each.
"""

from __future__ import annotations

import contextvars
import functools
import io
import re
import socket
import ssl
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import aiohttp
import aiohttp.abc
import yarl
from aiohttp.client_proto import ResponseHandler

from forebay._dataclass import dataclass
from forebay.sinks._destination import Destinations, Endpoint
from forebay.sinks._http_tls import client_refusal, pin_of

if TYPE_CHECKING:
    from aiohttp.client_reqrep import ClientRequest
    from aiohttp.connector import Connection
    from aiohttp.tracing import Trace

#: Below the time after which usual servers close an idle connection: a request on a connection that
#: is being closed would fail.
_IDLE_SECONDS: Final = 4.0

#: The beginning of an answer that is kept, for its status.
_HEAD_BYTES_MAX: Final = 16_384
#: A complete head of an answer that accepts.
_ACCEPTING: Final = re.compile(rb"HTTP/1\.[01] (2[0-9]{2})(?: [^\r\n]*)?\r\n(?:[^\r\n]+\r\n)*\r\n")

#: aiohttp warns about larger bodies that are not files.
_BODY_BYTES_PLAIN: Final = 500_000


@dataclass(frozen=True, slots=True)
class Response:
    """The answer of an endpoint.

    Attributes:
        status: of HTTP.
        retry_after: the header Retry-After.
        body: the beginning of the body.
        error_type: the header x-amzn-errortype, in which services of AWS name an error.
        location: the header Location.
        content_type: the header Content-Type.
        is_cut: whether the body may be longer than what was read.
    """

    status: int
    retry_after: str | None
    body: bytes
    error_type: str | None = None
    location: str | None = None
    content_type: str | None = None
    is_cut: bool = False


class NoAnswer(Exception):  # noqa: N818 - says what happened
    """There was no complete answer. The message is a reason that reveals no address."""


class CertificateRefused(NoAnswer):
    """The endpoint demands another certificate of this client: it took no message."""


class SessionClosed(Exception):  # noqa: N818 - says what happened
    """The sink was closed during the request."""


class Session:
    """Connections to the place of an endpoint.

    Args:
        method: of HTTP.
        destinations: which addresses may be called.
        tls: for https; None for the usual checks. Another one is for new connections.
        pinned: hashes of public keys, one of which the endpoint must have; none: any.
        has_certificate: whether ``tls`` shows a certificate of this client.
        proxy: its address, with a user and a password perhaps; None: none. A proxy resolves names
            itself: it must guard addresses.
        connections: the most connections.
        connect_seconds: how long the look-up, the connection and the TLS handshake may take.
        body_bytes_max: how much of an answer is read.
    """

    def __init__(
        self,
        *,
        method: str,
        destinations: Destinations,
        tls: ssl.SSLContext | None,
        pinned: frozenset[str] = frozenset(),
        has_certificate: bool = False,
        proxy: str | None,
        connections: int,
        connect_seconds: float,
        body_bytes_max: int,
    ) -> None:
        self._method = method
        self._destinations = destinations
        self.tls = tls
        self._has_certificate = has_certificate
        self._proxy = proxy
        self._connect_seconds = connect_seconds
        self._body_bytes_max = body_bytes_max
        self._is_closed = False
        self._client = aiohttp.ClientSession(
            connector=_GuardedConnector(
                None if proxy else destinations,
                pinned,
                limit=connections,
                keepalive_timeout=_IDLE_SECONDS,
            ),
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            read_bufsize=16_384,
            trust_env=False,
        )

    async def close(self) -> None:
        """Close the connections; requests under way end with ``SessionClosed``."""
        self._is_closed = True
        await self._client.close()

    async def send(
        self, endpoint: Endpoint, headers: Mapping[str, str], body: bytes, total_seconds: float
    ) -> Response:
        """Send a request and return the answer, whatever its status.

        Args:
            endpoint: where to.
            headers: with lower-case names.
            body: may be empty.
            total_seconds: how long the request and its answer may take.

        Raises:
            BlockedAddress: the endpoint may not be called; nothing was sent.
            NoAnswer: there was no connection, or no complete answer in time.
            CertificateRefused: the endpoint demands another certificate of this client.
            SessionClosed: ``close`` was called during the request.
        """
        if self._is_closed:
            raise SessionClosed
        self._destinations.check_endpoint(endpoint)
        _answering.set(None)
        try:
            async with self._client.request(
                self._method,
                yarl.URL(_address(endpoint), encoded=True),
                data=_payload(body),
                headers={"accept-encoding": "identity", "user-agent": "forebay", **headers},
                skip_auto_headers=("content-type",),
                allow_redirects=False,
                proxy=self._proxy,
                ssl=True if self.tls is None else self.tls,
                # At 0, aiohttp would wait without end.
                timeout=aiohttp.ClientTimeout(
                    total=max(total_seconds, 0.001), connect=self._connect_seconds
                ),
            ) as answer:
                found = await self._body(answer)
                return Response(
                    answer.status,
                    answer.headers.get("Retry-After"),
                    found,
                    answer.headers.get("x-amzn-errortype"),
                    answer.headers.get("Location"),
                    answer.headers.get("Content-Type"),
                    is_cut=len(found) >= self._body_bytes_max,
                )
        except (aiohttp.ClientError, OSError, ValueError) as error:
            if self._is_closed:
                raise SessionClosed from None
            handler = _answering.get()
            if isinstance(error, aiohttp.ClientResponseError):
                # Invariant "accepted is accepted": what follows a complete head of 2xx, such as a
                # body after 204 or more than was announced, does not take the answer back.
                accepting = None if handler is None else _ACCEPTING.match(handler.head)
                if accepting is not None:
                    return Response(int(accepting[1]), None, b"")
            for one in (error, None if handler is None else handler.lost_by):
                refusal = client_refusal(one, has_certificate=self._has_certificate)
                if refusal is not None:
                    raise CertificateRefused(refusal) from None
            raise NoAnswer(self._reason(error, total_seconds)) from None

    async def _body(self, answer: aiohttp.ClientResponse) -> bytes:
        """Read the body, up to the limit.

        The connection of a longer answer is closed when the request ends.
        """
        body = bytearray()
        async for part in answer.content.iter_any():
            body += part[: self._body_bytes_max - len(body)]
            if len(body) >= self._body_bytes_max:
                break
        return bytes(body)

    def _reason(self, error: Exception, total_seconds: float) -> str:
        match error:
            case UnknownKey():
                return "the public key of the endpoint is none of pinned"
            case aiohttp.ConnectionTimeoutError():
                return f"no connection within {self._connect_seconds:g} s"
            case TimeoutError():
                return f"no complete answer within {total_seconds:.3g} s"
            case aiohttp.ClientConnectorDNSError():
                return "the name cannot be resolved"
            case aiohttp.ClientConnectorCertificateError():
                return "the TLS certificate is not valid"
            case aiohttp.ClientSSLError() if (
                not self._has_certificate and "ALERT_HANDSHAKE_FAILURE" in str(error)
            ):
                return "the TLS handshake failed: the endpoint may demand a client certificate"
            case aiohttp.ClientSSLError():
                return "the TLS handshake failed"
            case aiohttp.ClientHttpProxyError():
                return f"the proxy answered {error.status}"
            case aiohttp.ClientProxyConnectionError():
                return "no connection to the proxy"
            case aiohttp.ClientConnectorError():
                return f"no connection: {type(error.os_error).__name__}"
            case aiohttp.ClientPayloadError():
                return "the connection ended before the answer was complete"
            case aiohttp.ClientResponseError():
                return "the answer is not HTTP"
            case aiohttp.ServerDisconnectedError() | aiohttp.ClientOSError():
                return "the connection ended before an answer"
            case _:
                return f"the request failed: {type(error).__name__}"


class UnknownKey(aiohttp.ClientError):
    """The public key of the endpoint is not pinned."""


class _Handler(ResponseHandler):
    """Reads answers, and keeps the beginning of the current one, and why the connection ended.

    aiohttp drops what it has read when it meets what is not HTTP. In TLS 1.3 a server may refuse
    our certificate before aiohttp has the connection; then aiohttp knows that it ended only.
    """

    head = b""
    lost_by: BaseException | None = None

    def connection_lost(self, exc: BaseException | None) -> None:
        self.lost_by = exc
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        missing = _HEAD_BYTES_MAX - len(self.head)
        if missing > 0:
            self.head += data[:missing]
        super().data_received(data)


#: What reads the answer to the request of this task.
_answering: contextvars.ContextVar[_Handler | None] = contextvars.ContextVar(
    "answering", default=None
)


class _GuardedConnector(aiohttp.TCPConnector):
    """Connects to checked addresses only: before the connection, and once more by the address of
    the peer.

    Without destinations it connects to a proxy, which the operator chose. Pinned keys are checked
    before the request in each case.
    """

    def __init__(
        self, destinations: Destinations | None, pinned: frozenset[str], **options: Any
    ) -> None:
        if destinations is not None:
            options |= {"resolver": _GuardedResolver(destinations), "use_dns_cache": False}
        super().__init__(**options)
        self._destinations = destinations
        self._pinned = pinned
        handler: Any = functools.partial(_Handler, loop=self._loop)
        self._factory = handler

    async def connect(
        self,
        req: ClientRequest,
        traces: list[Trace],
        timeout: aiohttp.ClientTimeout,  # noqa: ASYNC109
    ) -> Connection:
        connection = await super().connect(req, traces, timeout)
        if isinstance(connection.protocol, _Handler):
            connection.protocol.head = b""
            _answering.set(connection.protocol)
        try:
            self._check(req, connection)
        except BaseException:
            if connection.transport is not None:
                # At once: this peer is owed nothing, and a close of TLS would wait for it.
                connection.transport.abort()
            connection.close()
            raise
        return connection

    def _check(self, req: ClientRequest, connection: Connection) -> None:
        """Check the peer, before it gets a request."""
        transport = connection.transport
        if transport is None:
            raise aiohttp.ServerDisconnectedError
        if self._destinations is not None:
            peer = transport.get_extra_info("peername")
            if peer is None:
                raise aiohttp.ServerDisconnectedError
            self._destinations.check(req.url.raw_host or "", peer[0], peer[1])
        if self._pinned:
            tls = transport.get_extra_info("ssl_object")
            certificate = None if tls is None else tls.getpeercert(binary_form=True)
            if certificate is None or pin_of(certificate) not in self._pinned:
                raise UnknownKey


class _GuardedResolver(aiohttp.abc.AbstractResolver):
    def __init__(self, destinations: Destinations) -> None:
        self._destinations = destinations

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[aiohttp.abc.ResolveResult]:
        del family
        return [
            {
                "hostname": host,
                "host": address,
                "port": port,
                "family": socket.AF_INET6 if ":" in address else socket.AF_INET,
                "proto": socket.IPPROTO_TCP,
                "flags": socket.AI_NUMERICHOST | socket.AI_NUMERICSERV,
            }
            for address in await self._destinations.resolve(host, port)
        ]

    async def close(self) -> None:
        """Nothing is open."""


def _address(endpoint: Endpoint) -> str:
    return f"{endpoint.place}{endpoint.target}"


def _payload(body: bytes) -> bytes | io.BytesIO | None:
    if not body:
        return None
    return body if len(body) <= _BODY_BYTES_PLAIN else io.BytesIO(body)
