"""Answers probes over HTTP, and reports to systemd, from a thread.

The thread has a separate event loop and answers while the worker's loop is blocked. A process
without the thread, or one that holds Python's interpreter lock, does not answer, and counts as dead
for the process manager.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import threading
import time
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from forebay.config import listen_address
from forebay.errors import ConfigError
from forebay.forks import keep_from_copies
from forebay.model.text import logger, whole_number
from forebay.watch.metrics import CONTENT_TYPE
from forebay.worker.process._health import Health

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping

    from forebay.worker.process._health import FleetHealth, HealthCheck

log = logger("forebay.worker")

#: How long a client may take for its request.
_REQUEST_SECONDS: Final = 2.0

#: How long an answer may take: that of /metrics waits for the database.
_METRICS_SECONDS: Final = 15.0
_LINE_BYTES_MAX: Final = 8192
_CONNECTIONS_MAX: Final = 32

#: Pause between two looks of the reports to systemd.
_REPORT_SECONDS: Final = 0.5


@contextlib.asynccontextmanager
async def answer_probes(
    check: HealthCheck | FleetHealth,
    worker: str,
    address: str | None,
    metrics: Callable[[], Awaitable[str]] | None = None,
) -> AsyncIterator[None]:
    """Answer probes and report to systemd during the block, where either is wanted.

    Args:
        check: reads the health of the worker.
        worker: its name, for the answers.
        address: where to listen, as for ``listen_address``; None: nowhere.
        metrics: returns the text of /metrics, in the loop of the probes; None: there is no such
            path.

    Raises:
        ConfigError: the process cannot listen there.
    """
    reports = Reports.from_environment(os.environ)
    listener = None if address is None else _listen(address)
    if reports is None and listener is None:
        yield
        return
    probes = Probes(check, worker, listener, reports, metrics)
    ticks = asyncio.create_task(check.tick())
    probes.start()
    try:
        yield
    finally:
        ticks.cancel()
        probes.stop()


@contextlib.asynccontextmanager
async def serve_metrics(address: str, metrics: Callable[[], Awaitable[str]]) -> AsyncIterator[None]:
    """Answer /metrics during the block, and /live and /ready, which are well.

    Args:
        address: where to listen, as for ``listen_address``.
        metrics: returns the text of /metrics.

    Raises:
        ConfigError: the process cannot listen there.
    """
    probes = Probes(_Serving(), f"metrics:{os.getpid()}", _listen(address), None, metrics)
    probes.start()
    try:
        yield
    finally:
        probes.stop()


class _Serving:
    """The health of a process that only answers."""

    def read(self) -> Health:
        return Health(state="running", is_live=True, is_ready=True, reasons=())


class Probes:
    """The thread that answers probes and reports to systemd.

    Owns the listening socket. It guarantees an answer within milliseconds, whatever the worker's
    loop does, and that no client costs more than one of 32 connections for two seconds: one more
    closes the oldest. After a crash a socket file may be left; the next worker replaces it.

    Args:
        check: reads the health of the worker, in any thread.
        worker: the name of the worker.
        listener: the bound socket; None: no answers.
        reports: reports to systemd; None: no reports.
        metrics: returns the text of /metrics; None: there is no such path.
    """

    def __init__(
        self,
        check: HealthCheck | FleetHealth | _Serving,
        worker: str,
        listener: socket.socket | None,
        reports: Reports | None,
        metrics: Callable[[], Awaitable[str]] | None = None,
    ) -> None:
        self._metrics = metrics
        self._check = check
        self._worker = worker
        self._listener = listener
        self._reports = reports
        self._file = _file_of(listener)
        self._open: dict[asyncio.StreamWriter, None] = {}  # oldest first
        self._stopping: tuple[asyncio.AbstractEventLoop, asyncio.Event] | None = None
        self._has_begun = threading.Event()
        self._thread = threading.Thread(target=self._main, name="forebay-probes", daemon=True)

    def start(self) -> None:
        """Start to answer."""
        self._thread.start()
        self._has_begun.wait(5.0)

    def stop(self) -> None:
        """Stop to answer, and remove the file of a unix socket."""
        if self._stopping is not None:
            loop, event = self._stopping
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(event.set)
        self._thread.join(1.0)
        if self._reports is not None:
            self._reports.close()
        if self._listener is not None:
            self._listener.close()
        if self._file:
            Path(self._file).unlink(missing_ok=True)

    def _main(self) -> None:
        asyncio.run(self._run())

    async def _run(self) -> None:
        stopping = asyncio.Event()
        self._stopping = asyncio.get_running_loop(), stopping
        server = None
        if self._listener is not None:
            server = await asyncio.start_server(
                self._serve, sock=self._listener, limit=_LINE_BYTES_MAX
            )
        self._has_begun.set()
        while not stopping.is_set():
            if self._reports is not None:
                self._reports.send(self._check.read())
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_REPORT_SECONDS if self._reports else None):
                    await stopping.wait()
        if self._reports is not None:
            self._reports.send(self._check.read())
        if server is not None:
            server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._open) >= _CONNECTIONS_MAX:
            # A probe sends its request at once: a client that has been silent longest makes room.
            oldest = next(iter(self._open))
            del self._open[oldest]
            oldest.transport.abort()
        self._open[writer] = None
        try:
            async with asyncio.timeout(_REQUEST_SECONDS):
                request = await reader.readline()
                while (await reader.readline()).strip():
                    pass  # a header
            # Metrics wait for the database. A scrape that is read slowly costs one connection.
            async with asyncio.timeout(_METRICS_SECONDS):
                writer.write(await self._answered(request))
                await writer.drain()
        except (OSError, ValueError):
            pass  # a timeout, a client that has gone, or a line without an end
        finally:
            self._open.pop(writer, None)
            writer.close()

    async def _answered(self, request: bytes) -> bytes:
        method, path = _parsed(request)
        if self._metrics is None or path != "/metrics" or method not in ("GET", "HEAD"):
            return self._answer(method, path)
        text = (await self._metrics()).encode()
        return _response(HTTPStatus.OK, CONTENT_TYPE, text, is_head=method == "HEAD")

    def _answer(self, method: str, path: str) -> bytes:
        health = self._check.read()
        good = {"/live": health.is_live, "/ready": health.is_ready}.get(path)
        body: dict[str, Any]
        if good is None:
            known = "/live and /ready" if self._metrics is None else "/live, /ready and /metrics"
            status, body = HTTPStatus.NOT_FOUND, {"error": f"{known} are here"}
        elif method not in ("GET", "HEAD"):
            status, body = HTTPStatus.METHOD_NOT_ALLOWED, {"error": "use GET"}
        else:
            status = HTTPStatus.OK if good else HTTPStatus.SERVICE_UNAVAILABLE
            body = {
                path[1:]: good,
                "state": health.state,
                "reasons": list(health.reasons),
                "worker": self._worker,
            }
        text = json.dumps(body).encode() + b"\n"
        return _response(status, "application/json", text, is_head=method == "HEAD")


class Reports:
    """Reports to systemd by the protocol of sd_notify(3): ready, stopping, a status line, and the
    watchdog.

    Owns a socket. The watchdog gets its sign of life only while the worker is live.

    Args:
        address: the socket of systemd; an ``@`` at its beginning stands for the abstract namespace.
        watchdog_seconds: the worker is restarted after this time without a sign of life; None:
            never.
    """

    def __init__(self, address: str, watchdog_seconds: float | None) -> None:
        self._address = "\0" + address[1:] if address.startswith("@") else address
        self._watchdog_seconds = watchdog_seconds
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.setblocking(False)
        self._sent: set[str] = set()
        self._status = ""
        self._alive_at = 0.0

    @classmethod
    def from_environment(cls, environ: Mapping[str, str]) -> Reports | None:
        """Return the reports that systemd asks for; None without systemd."""
        address = environ.get("NOTIFY_SOCKET", "")
        if not address.startswith(("/", "@")):
            return None
        micros = environ.get("WATCHDOG_USEC", "")
        is_ours = environ.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
        seconds = (whole_number(micros) or 0) / 1e6 if is_ours else None
        return cls(address, seconds or None)

    def close(self) -> None:
        """Close the socket; later reports are not sent."""
        self._socket.close()

    def send(self, health: Health) -> None:
        """Report what is new."""
        lines = []
        status = health.state if health.is_ready else ", ".join(health.reasons)
        if status != self._status:
            lines.append(f"STATUS={status}")
        for line, holds in (
            ("READY=1", health.is_ready),
            ("STOPPING=1", health.state == "stopping"),
        ):
            if holds and line not in self._sent:
                lines.append(line)
        now = time.monotonic()
        # Three signs of life in its time, so that one late thread does no harm.
        if (
            self._watchdog_seconds is not None
            and health.is_live
            and now - self._alive_at >= self._watchdog_seconds / 3 - _REPORT_SECONDS
        ):
            lines.append("WATCHDOG=1")
        if not lines:
            return
        try:
            self._socket.sendto("\n".join(lines).encode(), self._address)
        except OSError as error:
            log.debug("no report to systemd: %s", error)  # the next look tries again
            return
        self._status = status
        self._sent.update(lines)
        if "WATCHDOG=1" in lines:
            self._alive_at = now


def _parsed(request: bytes) -> tuple[str, str]:
    """Return the method and the path of a request."""
    method, _, rest = request.decode("latin-1").partition(" ")
    return method, rest.partition(" ")[0].partition("?")[0]


def _response(status: HTTPStatus, content_type: str, body: bytes, *, is_head: bool) -> bytes:
    head = (
        f"HTTP/1.1 {status.value} {status.phrase}\r\nContent-Type: {content_type}\r\n"
        f"Content-Length: {len(body)}\r\nCache-Control: no-store\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + (b"" if is_head else body)


def _listen(text: str) -> socket.socket:
    """Return a listening socket.

    Raises:
        ConfigError: another process listens there, or the address is not one of this machine.
    """
    address = listen_address(text)
    try:
        if isinstance(address, str):
            listener = _listen_at_file(address)
        else:
            family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
            listener = socket.create_server(address, family=family, backlog=_CONNECTIONS_MAX)
    except OSError as error:
        raise ConfigError(
            "health",
            f"cannot listen at {text}: {error.strerror or error}",
            value=text,
            hint="Give each worker of a machine another address.",
        ) from None
    listener.setblocking(False)
    keep_from_copies(listener, socket.socket.fileno)
    place = listener.getsockname()
    shown = text if isinstance(address, str) else f"http://{text.rpartition(':')[0]}:{place[1]}"
    log.info("probes /live and /ready at %s", shown)
    return listener


def _listen_at_file(path: str) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as other:
            other.settimeout(1.0)
            try:
                other.connect(path)
            except ConnectionRefusedError:
                Path(path).unlink()  # left by a worker that was killed
            except FileNotFoundError:
                pass
            else:
                raise OSError(None, "a process listens there")
        listener.bind(path)
        listener.listen(_CONNECTIONS_MAX)
    except BaseException:
        listener.close()
        raise
    return listener


def _file_of(listener: socket.socket | None) -> str:
    return (
        str(listener.getsockname())
        if listener is not None and listener.family == socket.AF_UNIX
        else ""
    )
