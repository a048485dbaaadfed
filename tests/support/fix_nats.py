"""A NATS server with JetStream for the tests of its sink."""

import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.fix_sinks import free_port, served


@contextmanager
def nats_run(
    folder: Path, *options: str, port: int | None = None, jetstream: bool = True
) -> Iterator[tuple[str, "subprocess.Popen[bytes]"]]:
    """Run a server whose streams are in a folder; give host:port and the process."""
    port = port or free_port()
    store = ["--jetstream", "--store_dir", str(folder / "store")] if jetstream else []
    command = [*_program(), "--addr", "127.0.0.1", "--port", str(port), *store, *options]
    with served(command, port, folder) as process:
        yield f"127.0.0.1:{port}", process


@pytest.fixture(scope="session")
def nats_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The host:port of a server for the session."""
    with nats_run(tmp_path_factory.mktemp("nats")) as (address, _):
        yield address


def _program() -> Sequence[str]:
    # The wheel puts it beside the interpreter.
    beside = Path(sys.executable).with_name("nats-server")
    program = str(beside) if beside.exists() else shutil.which("nats-server")
    if program is None:
        pytest.skip("nats-server is not installed")
    return [program]
