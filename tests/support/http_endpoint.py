"""Endpoints for the HTTP sink: one that answers as a test wants, one that speaks broken HTTP,
and one with TLS.
"""

import asyncio
import contextlib
import datetime as dt
import ipaddress
import socket
import ssl
import struct
import threading
from collections import defaultdict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

from aiohttp import web


@dataclass
class Recorded:
    """A request as it arrived, with lower-case names of headers."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes


@dataclass
class HttpEndpoint:
    """Servers in a thread. The first part of a path is the name of a test's endpoint.

    Attributes:
        port: of the server that answers 200, or what ``answers`` says for a name.
        tls_port: of the same server with TLS, for localhost.
        raw_port: of the server that does what ``raw`` says for a name, after it read a request.
        ca_file: the certificate of the one with TLS.
        requests: by name, the requests of all servers.
        connections: the number of connections to ``raw_port``.
        current: the number of requests that are answered now, and the most so far, by name.
    """

    folder: Path
    port: int = 0
    tls_port: int = 0
    raw_port: int = 0
    connections: int = 0
    requests: defaultdict[str, list[Recorded]] = field(default_factory=lambda: defaultdict(list))
    answers: dict[str, Callable[[Recorded], Awaitable[web.Response]]] = field(default_factory=dict)
    raw: dict[str, Callable[[asyncio.StreamWriter], Awaitable[None]]] = field(default_factory=dict)
    current: defaultdict[str, list[int]] = field(
        default_factory=lambda: defaultdict(lambda: [0, 0])
    )

    def __enter__(self) -> "HttpEndpoint":
        self.ca_file = certificate(self.folder)
        self._started = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()))
        self._thread.start()
        assert self._started.wait(10)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()

    def statuses(self, name: str, *statuses: int, headers: dict[str, str] | None = None) -> None:
        """Answer requests with these statuses, the last one from then on."""
        left = list(statuses)

        async def answer(_: Recorded) -> web.Response:
            status = left.pop(0) if len(left) > 1 else left[0]
            return web.Response(status=status, text=f"status {status}", headers=headers)

        self.answers[name] = answer

    async def _serve(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        app = web.Application(client_max_size=50_000_000)
        app.router.add_route("*", "/{name}{rest:.*}", self._handle)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(self.ca_file)
        ports = []
        for tls in (None, context):
            site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls)
            await site.start()
            ports.append(site._server.sockets[0].getsockname()[1])
        self.port, self.tls_port = ports
        server = await asyncio.start_server(self._handle_raw, "127.0.0.1", 0)
        self.raw_port = server.sockets[0].getsockname()[1]
        self._tasks: set[asyncio.Task[None]] = set()
        self._started.set()
        await self._stop.wait()
        server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await runner.cleanup()

    async def _handle(self, request: web.Request) -> web.Response:
        name = request.match_info["name"]
        headers = {key.lower(): value for key, value in request.headers.items()}
        recorded = Recorded(request.method, request.path_qs, headers, await request.read())
        self.requests[name].append(recorded)
        current = self.current[name]
        current[0] += 1
        current[1] = max(current)
        try:
            answer = self.answers.get(name)
            return web.Response(text="ok") if answer is None else await answer(recorded)
        finally:
            current[0] -= 1

    async def _handle_raw(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self._tasks.add(asyncio.current_task())
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            first, *lines = head.split("\r\n")
            headers = dict(line.lower().split(": ", 1) for line in lines if line)
            method, path, _ = first.split(" ")
            body = await reader.readexactly(int(headers.get("content-length", 0)))
            name = path.removeprefix("http://").partition("/")[2].partition("/")[0]
            self.requests[name].append(Recorded(method, path, headers, body))
            await self.raw[name](writer)
        self._tasks.discard(asyncio.current_task())
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


def reset(writer: asyncio.StreamWriter) -> None:
    """End a connection with RST."""
    one = writer.get_extra_info("socket")
    one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


def certificate(
    folder: Path, common_name: str = "localhost", *, days: int = 1, passphrase: str | None = None
) -> Path:
    """Make a certificate for localhost that is its own authority, and ends after some days.

    Return the file with it and its key, which the passphrase encrypts.
    """
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, common_name)])
    now = dt.datetime.now(dt.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(days=9))
        .not_valid_after(now + dt.timedelta(days=days))
        .add_extension(
            x509.SubjectAlternativeName(
                [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
            ),
            critical=False,
        )
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    file = folder / f"{common_name}.pem"
    file.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption()
            if passphrase is None
            else serialization.BestAvailableEncryption(passphrase.encode()),
        )
        + made.public_bytes(serialization.Encoding.PEM)
    )
    return file
