"""A RabbitMQ for the tests of its sink: the program of Debian with everything of this session in one folder."""

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.fix_sinks import answers, free_port, served
from tests.support.waiting import wait_for

_PROGRAMS = sorted(Path("/usr/lib/rabbitmq/lib").glob("rabbitmq_server-*/sbin"))


@dataclass(frozen=True, slots=True)
class RabbitServer:
    """A running server.

    Attributes:
        address: host:port.
    """

    address: str
    _programs: Path
    _environment: dict[str, str]

    def ctl(self, *arguments: str) -> str:
        """Run rabbitmqctl and return what it printed. It takes a second or two."""
        done = subprocess.run(
            [self._programs / "rabbitmqctl", "--quiet", *arguments],
            env=self._environment, capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


@pytest.fixture(scope="session")
def rabbitmq_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RabbitServer]:
    """A server for the session; it needs about ten seconds to start."""
    epmd = shutil.which("epmd")
    if not _PROGRAMS or epmd is None:
        pytest.skip("rabbitmq-server is not installed")
    folder = tmp_path_factory.mktemp("rabbitmq")
    port, cluster_port, epmd_port = free_port(), free_port(), free_port()
    (folder / "rabbitmq.conf").write_text(
        f"listeners.tcp.1 = 127.0.0.1:{port}\n"
        "vm_memory_high_watermark.absolute = 4GB\n"
        "disk_free_limit.absolute = 1MB\n"
    )
    (folder / "plugins").write_text("[].\n")
    # Nothing of the machine's own configuration, and nothing outside of the folder.
    environment = {
        **{name: text for name, text in os.environ.items() if not name.startswith("RABBITMQ_")},
        "HOME": str(folder),
        "ERL_EPMD_PORT": str(epmd_port),
        "ERL_EPMD_ADDRESS": "127.0.0.1",
        "RABBITMQ_NODENAME": f"forebay-test-{port}@localhost",
        "RABBITMQ_CONF_ENV_FILE": str(folder / "none"),
        "RABBITMQ_CONFIG_FILE": str(folder / "rabbitmq"),
        "RABBITMQ_DIST_PORT": str(cluster_port),
        "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "plugins"),
        "RABBITMQ_LOG_BASE": str(folder / "logs"),
        "RABBITMQ_LOGS": "-",
        "RABBITMQ_MNESIA_BASE": str(folder / "data"),
        "RABBITMQ_PID_FILE": str(folder / "pid"),
    }
    # In the foreground and on its own port, so that it ends with the test instead of staying as a service.
    names = [epmd, "-port", str(epmd_port), "-address", "127.0.0.1"]
    with served(names, epmd_port, tmp_path_factory.mktemp("epmd")):
        log = folder / "log"
        with (
            log.open("wb") as file,
            subprocess.Popen(
                [_PROGRAMS[-1] / "rabbitmq-server"],
                env=environment, stdout=file, stderr=subprocess.STDOUT, cwd=folder,
                start_new_session=True,
            ) as process,
        ):  # fmt: skip
            try:
                wait_for(lambda: answers(process, port, log), 90, lambda: log.read_text()[-2000:])
                yield RabbitServer(f"127.0.0.1:{port}", _PROGRAMS[-1], environment)
            finally:
                # A shell, and the server as its child.
                os.killpg(process.pid, signal.SIGKILL)
