"""An HTTPS server that demands a certificate of its clients."""

import contextlib
import socket
import ssl
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any


class DemandingServer(ThreadingHTTPServer):
    """Listens on localhost.

    Blocking sockets: asyncio ends a connection without the alert that says why.

    Attributes:
        names: the common name of the client's certificate, for each request.
    """

    daemon_threads = True

    def __init__(self, server_file: Path, *client_files: Path, tls_1_2: bool = False) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.names: list[str] = []
        self._context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        for file in client_files:
            self.trust(file)
        self._context.load_cert_chain(server_file)
        self._context.verify_mode = ssl.CERT_REQUIRED
        if tls_1_2:
            self._context.maximum_version = ssl.TLSVersion.TLSv1_2

    def trust(self, file: Path) -> None:
        """Accept a certificate, which is its own authority, from new connections on."""
        self._context.load_verify_locations(file)

    def finish_request(self, request: Any, client_address: Any) -> None:
        """Shake hands, and answer."""
        request.settimeout(10)
        try:
            tls = self._context.wrap_socket(request, server_side=True)
        except OSError:
            # What is unread at the close would reset the connection, and the alert were lost.
            with contextlib.suppress(OSError):
                request.shutdown(socket.SHUT_WR)
                while request.recv(65_536):
                    pass
            return
        with tls:
            _Handler(tls, client_address, self)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing: clients end connections as they like."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: DemandingServer

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        subject = dict(pair for (pair,) in self.connection.getpeercert()["subject"])
        self.server.names.append(subject["commonName"])
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Nothing."""


@contextlib.contextmanager
def demanding(
    server_file: Path, *client_files: Path, tls_1_2: bool = False
) -> Iterator[DemandingServer]:
    """Run a server in a thread."""
    with DemandingServer(server_file, *client_files, tls_1_2=tls_1_2) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
