"""A Groonga server for the tests of its target; they are left out where the program is missing."""

import shutil
import socket
import subprocess
from collections.abc import Iterator
from itertools import count

import pytest

from tests.support.ports import free_port
from tests.support.waiting import wait_for

_TABLES = count(1)


@pytest.fixture(scope="session")
def groonga(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a server with an empty database, for the session."""
    program = shutil.which("groonga")
    if program is None:
        pytest.skip("groonga is not installed")
    folder = tmp_path_factory.mktemp("groonga")
    port = free_port()
    options = ["--protocol", "http", "--bind-address", "127.0.0.1", "--port", str(port)]
    options += ["--log-path", str(folder / "log"), "--max-threads", "4"]
    with subprocess.Popen(
        [program, "-s", *options, "-n", str(folder / "db")], stdout=subprocess.DEVNULL
    ) as process:
        try:
            wait_for(lambda: _answers(process, port), 20)
            yield f"http://127.0.0.1:{port}"
        finally:
            process.kill()


def _answers(process: subprocess.Popen[bytes], port: int) -> bool:
    assert process.poll() is None, "groonga ended"
    with socket.socket() as one:
        return one.connect_ex(("127.0.0.1", port)) == 0


@pytest.fixture
def groonga_table() -> str:
    """The name of a table that nobody has made."""
    return f"Documents{next(_TABLES)}"
