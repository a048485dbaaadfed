"""A TCP proxy that cuts, freezes and refuses connections, whatever the protocol."""

import contextlib
import socket
import threading
from typing import Self


class TcpProxy:
    """A port of this machine that leads to a server.

    Args:
        server: host:port.

    Attributes:
        address: host:port of the proxy.
        accepted: how many connections were made.
    """

    def __init__(self, server: str) -> None:
        host, _, port = server.rpartition(":")
        self._server = host, int(port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self.accepted = 0
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self._flows = threading.Event()
        self._flows.set()
        self._answers = threading.Event()
        self._answers.set()
        self._refuses = False
        self._closed = False
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._closed = True
        self._flows.set()
        self._answers.set()
        self._listener.close()
        self.cut()

    def cut(self) -> None:
        """End all connections at once; new ones are possible."""
        pairs, self._pairs = self._pairs, []
        for one in (each for pair in pairs for each in pair):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def freeze(self) -> None:
        """Let nothing pass any more, in either direction, until ``thaw``.

        Connections are still accepted.
        """
        self._flows.clear()

    def swallow_answers(self) -> None:
        """Let requests pass and no answers, until ``thaw``."""
        self._answers.clear()

    def thaw(self) -> None:
        """Let everything pass again, also what waited."""
        self._flows.set()
        self._answers.set()

    def refuse(self, refuses: bool = True) -> None:
        """Close new connections at once; existing ones are cut."""
        self._refuses = refuses
        if refuses:
            self.cut()

    def _accept(self) -> None:
        while not self._closed:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            self.accepted += 1
            try:
                if self._refuses:
                    raise ConnectionRefusedError
                server = socket.create_connection(self._server, timeout=5)
                server.settimeout(None)
            except OSError:
                client.close()
                continue
            self._pairs.append((client, server))
            for source, target, waits in (
                (client, server, self._flows),
                (server, client, self._answers),
            ):
                threading.Thread(
                    target=self._pump, args=(source, target, waits), daemon=True
                ).start()

    def _pump(self, source: socket.socket, target: socket.socket, waits: threading.Event) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                self._flows.wait()
                waits.wait()
                target.sendall(data)
        with contextlib.suppress(OSError):
            target.shutdown(socket.SHUT_WR)
