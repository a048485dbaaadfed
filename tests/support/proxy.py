"""A proxy in front of PostgreSQL that breaks connections at chosen places of the protocol.

It listens on a unix socket of its own and speaks with the server over the server's. It understands
as much of the protocol as it takes to know which statement is under way ("Frontend/Backend
Protocol" in the PostgreSQL manual): messages have a type byte and a length; prepared statements are
remembered by name.

A fault is armed for a text that occurs in a statement, and strikes the next so many executions of
it:

    with Proxy(dsn) as proxy:
        fault = proxy.lose_reply("COMMIT")      # the server commits, the client never hears of it
        ...
        fault.wait()
"""

import contextlib
import shutil
import socket
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from psycopg import conninfo

from tests.support.waiting import wait_for

_PORT = 5432


@dataclass
class Fault:
    """What happens to statements that contain a text.

    Attributes:
        text: of the statement; empty strikes at any.
        action: cut (the statement does not reach the server), lose_reply (it does; its answer does
            not come back, and the connection ends), freeze (nothing passes on this connection any
            more, and nobody is told), delay.
        times: how many executions it strikes; None for all.
        struck: how many it has struck.
    """

    text: str
    action: str
    times: int | None = 1
    seconds: float = 0.0
    skip: int = 0
    struck: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def strikes(self, statement: str) -> bool:
        """Whether it strikes this execution; it counts when it does."""
        if self.text not in statement:
            return False
        with self._lock:
            if self.skip > 0:
                self.skip -= 1
                return False
            if self.times is not None and self.struck >= self.times:
                return False
            self.struck += 1
            return True

    def wait(self, seconds: float = 20, times: int = 1) -> None:
        """Wait until it has struck."""
        wait_for(lambda: self.struck >= times, seconds, f"{self.action} of {self.text!r}")


class Proxy:
    """A unix socket that leads to a server, with faults on the way."""

    def __init__(self, dsn: str) -> None:
        self.lead_to(dsn)
        self._folder = Path(tempfile.mkdtemp(prefix="proxy-"))
        self.dsn = conninfo.make_conninfo(dsn, host=str(self._folder), port=_PORT)
        self._faults: list[Fault] = []
        self._links: set[_Link] = set()
        self._lock = threading.Lock()
        #: While cleared nothing passes, on old connections or new ones: packets are swallowed
        #: silently.
        self.open = threading.Event()
        self.open.set()
        self._refuses = False
        #: The statements seen, for finding out what a client does.
        self.statements: list[str] = []
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.bind(str(self._folder / f".s.PGSQL.{_PORT}"))
        self._socket.listen(64)
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()
        self.open.set()
        self.cut_all()
        shutil.rmtree(self._folder, ignore_errors=True)

    def lead_to(self, dsn: str) -> None:
        """Let new connections lead to another server; old ones stay where they are."""
        parts = conninfo.conninfo_to_dict(dsn)
        self._target = f"{parts['host']}/.s.PGSQL.{parts.get('port', _PORT)}"

    # --- faults ---

    def cut(self, text: str, *, times: int | None = 1, skip: int = 0) -> Fault:
        """End the connection before a statement reaches the server."""
        return self._arm(Fault(text, "cut", times, skip=skip))

    def lose_reply(self, text: str, *, times: int | None = 1, skip: int = 0) -> Fault:
        """Let the server carry a statement out, and end the connection instead of answering."""
        return self._arm(Fault(text, "lose_reply", times, skip=skip))

    def freeze(self, text: str, *, times: int | None = 1, skip: int = 0) -> Fault:
        """Let nothing pass any more on a connection, from a statement on that the server still
        gets.
        """
        return self._arm(Fault(text, "freeze", times, skip=skip))

    def delay(self, text: str, seconds: float, *, times: int | None = None) -> Fault:
        """Hold statements up for a while."""
        return self._arm(Fault(text, "delay", times, seconds))

    def disarm(self, fault: Fault) -> None:
        """Let it strike no more."""
        with self._lock:
            self._faults.remove(fault)

    @contextlib.contextmanager
    def black_hole(self) -> Iterator[None]:
        """Swallow everything, in both directions, on old and new connections; then let it pass."""
        self.open.clear()
        try:
            yield
        finally:
            self.open.set()

    @contextlib.contextmanager
    def refuse(self) -> Iterator[None]:
        """Refuse new connections."""
        self._refuses = True
        try:
            yield
        finally:
            self._refuses = False

    def cut_all(self) -> int:
        """End every connection now; return how many there were."""
        with self._lock:
            links = list(self._links)
        for link in links:
            link.close()
        return len(links)

    # --- for the links ---

    def fault_for(self, statement: str) -> Fault | None:
        with self._lock:
            self.statements.append(statement)
            return next((fault for fault in self._faults if fault.strikes(statement)), None)

    def forget(self, link: "_Link") -> None:
        with self._lock:
            self._links.discard(link)

    def _arm(self, fault: Fault) -> Fault:
        with self._lock:
            self._faults.append(fault)
        return fault

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._socket.accept()
            except OSError:
                return
            if self._refuses:
                client.close()
                continue
            server = socket.socket(socket.AF_UNIX)
            try:
                server.connect(self._target)
            except OSError:
                server.close()
                client.close()
                continue
            link = _Link(self, client, server)
            with self._lock:
                self._links.add(link)
            link.start()


class _Link:
    """One connection, as two threads."""

    def __init__(self, proxy: Proxy, client: socket.socket, server: socket.socket) -> None:
        self._proxy = proxy
        self._client = client
        self._server = server
        self._prepared: dict[str, str] = {}
        #: What comes from the client, what comes from the server, is swallowed.
        self._without_notifications = threading.Event()
        self._mute = threading.Event()
        self._lost = threading.Event()

    def start(self) -> None:
        for run in (self._to_server, self._to_client):
            threading.Thread(target=run, daemon=True).start()

    def close(self) -> None:
        for end in (self._client, self._server):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            with contextlib.suppress(OSError):
                end.close()
        self._proxy.forget(self)

    def _to_server(self) -> None:
        buffer = b""
        is_started = False
        try:
            while data := self._client.recv(65536):
                self._proxy.open.wait()
                if self._without_notifications.is_set():
                    continue
                buffer += data
                while (end := _message_end(buffer, typed=is_started)) is not None:
                    message, buffer = buffer[:end], buffer[end:]
                    if is_started:
                        self._inspect(message)
                    elif message[4:8] not in _NEGOTIATIONS:
                        is_started = True
                    self._server.sendall(message)
        except OSError:
            pass
        finally:
            if not self._mute.is_set():
                self.close()

    def _to_client(self) -> None:
        buffer = b""
        try:
            while data := self._server.recv(65536):
                self._proxy.open.wait()
                if self._mute.is_set():
                    continue
                if not self._lost.is_set():
                    self._client.sendall(data)
                    continue
                buffer += data
                while (end := _message_end(buffer, typed=True)) is not None:
                    message, buffer = buffer[:end], buffer[end:]
                    if message[:1] == b"Z":  # The server is done with it, and has committed.
                        raise ConnectionError
        except OSError:
            pass
        finally:
            if not self._mute.is_set():
                self.close()

    def _inspect(self, message: bytes) -> None:
        statement = self._executed(message)
        if statement is None:
            return
        fault = self._proxy.fault_for(statement)
        if fault is None:
            return
        if fault.action == "cut":
            self.close()
            raise ConnectionError
        if fault.action == "lose_reply":
            self._lost.set()
        elif fault.action == "delay":
            time.sleep(fault.seconds)
        elif fault.action == "freeze":
            self._mute.set()
            # What belongs to this statement follows at once: give it a moment to pass.
            timer = threading.Timer(0.05, self._without_notifications.set)
            timer.daemon = True
            timer.start()

    def _executed(self, message: bytes) -> str | None:
        """Return the statement that a message executes, if it does."""
        kind, body = message[:1], message[5:]
        if kind == b"Q":
            return body.rstrip(b"\0").decode(errors="replace")
        if kind == b"P":
            name, text = body.split(b"\0", 2)[:2]
            self._prepared[name.decode()] = text.decode(errors="replace")
        elif kind == b"B":
            name = body.split(b"\0", 2)[1].decode()
            return self._prepared.get(name, "")
        return None


#: SSLRequest, GSSENCRequest: untyped like the startup message, which comes after them.
_NEGOTIATIONS = {b"\x04\xd2\x16\x2f", b"\x04\xd2\x16\x30"}


def _message_end(buffer: bytes, *, typed: bool) -> int | None:
    head = 1 if typed else 0
    if len(buffer) < head + 4:
        return None
    end = head + int.from_bytes(buffer[head : head + 4], "big")
    return end if len(buffer) >= end else None
