"""Start, find and stop one PostgreSQL server on one data folder.

The data folder holds the whole state: its ``postmaster.pid`` shows to every process whether a
server runs and accepts connections. A file lock beside it lets one process at a time start or stop
the server.

The server starts in a separate session: an interrupt at the terminal reaches the workers, which
need the database to release their jobs, but not the server. So the server outlives the process that
started it, unless ``temporary_server`` made it.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
import signal
import stat
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import quote

from forebay._dataclass import dataclass
from forebay.embedded._binaries import Binaries, find_bin_dir, usable_binaries
from forebay.embedded.owner import Owner, state_folder, temporary_parent
from forebay.errors import ForebayError, ServerStartError

_PORT = 5432  # names the socket file only; nothing listens on the network
_SOCKET_PATH_BYTES_MAX = 103  # sun_path holds 108 bytes on Linux and 104 on macOS, with a zero byte
_LOG_BYTES_MAX = 10_000_000
_PID_FILE_CHARACTERS_MAX = 10_000
_SETTINGS_FILE = "forebay.conf"


@dataclass(frozen=True, slots=True)
class _PidFile:
    """The contents of ``postmaster.pid``; PostgreSQL's miscadmin.h defines its lines."""

    pid: int
    ready: bool

    @classmethod
    def read(cls, owner: Owner, data_dir: Path) -> _PidFile | None:
        try:
            with owner.open_file(data_dir / "postmaster.pid", "r") as file:
                lines = file.read(_PID_FILE_CHARACTERS_MAX).splitlines()
            pid = int(lines[0])
        except (FileNotFoundError, IndexError, ValueError):
            return None  # no server, or one that is still writing its first line
        if pid <= 1:  # to kill(2) such a number means a group of processes, or all
            return None
        return cls(pid, ready=len(lines) > 7 and lines[7].strip() == "ready")


class EmbeddedServer:
    """One PostgreSQL server on one data folder, which the first start creates.

    As a context manager it starts the server on entry; on exit it stops a server that it started.

    Args:
        data_dir: the server's data; the server's account must be able to enter its parent folder.
        bin_dir: PostgreSQL's programs; None takes the result of ``find_bin_dir``.
        extra_settings: lines of ``postgresql.conf``, by name; used at the next start.

    Raises:
        ConfigError: no PostgreSQL of version 15 or newer was found.
    """

    def __init__(
        self,
        data_dir: str | os.PathLike[str],
        bin_dir: str | os.PathLike[str] | None = None,
        *,
        extra_settings: Mapping[str, str] = {},
    ) -> None:
        self.data_dir = Path(data_dir).resolve()
        self.extra_settings = dict(extra_settings)
        self._owner = Owner.current()
        found = Path(bin_dir).absolute() if bin_dir is not None else find_bin_dir()
        self.binaries: Binaries = usable_binaries(found, self._owner)
        self._process: subprocess.Popen[bytes] | None = None
        self._started_here = False

    def start(self, *, timeout_seconds: float = 60) -> bool:
        """Start the server, or find it running; return true when this call started it.

        It returns when the server accepts connections, after a crash including recovery.

        Raises:
            ServerStartError: the server did not start; ``detail`` holds the end of its log.
        """
        with self._lock():
            if self._process is not None and self._process.poll() is not None:
                self._process = None  # another process has stopped the server of this object
            if self._is_running():
                self._wait_until_ready(time.monotonic() + timeout_seconds)
                return False
            self._initialise()
            self._make_socket_dir()
            self._write_settings()
            self._launch(time.monotonic() + timeout_seconds)
            self._started_here = True
            return True

    def stop(self, *, immediate: bool = False, timeout_seconds: float = 60) -> None:
        """Stop the server, whichever process started it; do nothing if it is not running.

        Connections are ended and a checkpoint is written. With ``immediate``, connections are cut,
        no checkpoint is written, and the next start recovers from the log.

        Raises:
            ForebayError: the server is still running after ``timeout_seconds``.
        """
        with self._lock():
            pid_file = _PidFile.read(self._owner, self.data_dir)
            if pid_file is None or not self._is_running():
                return
            self._owner.signal([pid_file.pid], signal.SIGQUIT if immediate else signal.SIGINT)
            deadline = time.monotonic() + timeout_seconds
            while _is_alive(pid_file.pid):
                if time.monotonic() > deadline:
                    raise self._survived(pid_file.pid)
                time.sleep(0.01)
            self._forget()

    def kill(self) -> None:
        """End every process of the server at once, as a power failure would."""
        pid_file = _PidFile.read(self._owner, self.data_dir)
        if pid_file is None or not self._is_running():
            return
        # Each backend leads a separate process group, so the server's group is not enough. A
        # stopped postmaster starts no more backends while they are listed.
        self._owner.signal([pid_file.pid], signal.SIGSTOP)
        children = _children(pid_file.pid)
        self._owner.signal([pid_file.pid, *children], signal.SIGKILL)
        deadline = time.monotonic() + 10
        while any(_is_alive(pid) for pid in (pid_file.pid, *children)):
            if time.monotonic() > deadline:
                raise self._survived(pid_file.pid)
            time.sleep(0.005)
        self._forget()

    def dsn(self, dbname: str = "postgres") -> str:
        """Return the address of a database of this server; it is the same after every start."""
        socket_dir = quote(str(self.socket_dir), safe="")
        return f"postgresql://postgres@/{quote(dbname, safe='')}?host={socket_dir}&port={_PORT}"

    @property
    def socket_dir(self) -> Path:
        """The folder of the socket: normally the data folder, which is private.

        If the path is too long for a socket: a private folder with a short name, removed at the
        stop.
        """
        if len(os.fsencode(self.data_dir / f".s.PGSQL.{_PORT}")) <= _SOCKET_PATH_BYTES_MAX:
            return self.data_dir
        digest = hashlib.sha256(os.fsencode(self.data_dir)).hexdigest()
        return Path("/tmp") / f"forebay-{digest[:16]}"  # noqa: S108  its owner is checked

    @property
    def pid(self) -> int | None:
        """The process id of the postmaster; None while it is not running."""
        pid_file = _PidFile.read(self._owner, self.data_dir)
        return pid_file.pid if pid_file is not None and self._is_running() else None

    @property
    def log_path(self) -> Path:
        """The path of the server's log."""
        return self.data_dir / "server.log"

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._started_here:
            self.stop()

    # --- the steps of a start -----------------------------------------------------------------

    @contextlib.contextmanager
    def _lock(self) -> Iterator[None]:
        self.data_dir.parent.mkdir(parents=True, exist_ok=True)
        path = self.data_dir.with_name(self.data_dir.name + ".lock")
        with open(path, "a", opener=_no_follow) as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def _initialise(self) -> None:
        """Create the data folder, completely or not at all."""
        version_file = self.data_dir / "PG_VERSION"
        if version_file.exists():
            with self._owner.open_file(version_file, "r") as file:
                made_by = file.read(10).strip()
            if made_by != str(self.binaries.major):
                raise ServerStartError(
                    (
                        f"its data belongs to PostgreSQL {made_by}, the programs are "
                        f"{self.binaries.version}"
                    ),
                    folder=str(self.data_dir),
                    hint="Use the programs of that version, or another data folder.",
                )
            return
        if self.data_dir.exists():
            raise ServerStartError(
                "the folder exists but holds no PostgreSQL data",
                folder=str(self.data_dir),
                hint="Name a folder that does not exist; it will be created.",
            )
        draft = self.data_dir.with_name(self.data_dir.name + ".initdb")
        shutil.rmtree(draft, ignore_errors=True)  # left by a killed initdb
        self._owner.make_folder(draft)
        if not self._owner.can_enter(draft):
            draft.rmdir()
            raise ServerStartError(
                f"user {self._owner.name}, who runs the server, cannot enter its parent folder",
                folder=str(self.data_dir),
                hint="Choose a data folder whose parent folders all users can enter.",
            )
        options = ["--username=postgres", "--auth=trust", "--encoding=UTF8", "--no-locale"]
        options.append("--no-sync")  # before the rename there is nothing to lose
        answer = subprocess.run(
            [self.binaries.program("initdb"), *options, "--pgdata", draft],
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
            cwd=draft,
            env=self._owner.environment(),
            start_new_session=True,
            **self._owner.popen_arguments(),
        )
        if answer.returncode != 0:
            shutil.rmtree(draft, ignore_errors=True)
            raise ServerStartError(
                f"initdb ended with status {answer.returncode}",
                folder=str(self.data_dir),
                detail=answer.stderr.strip()[-4000:],
            )
        with self._owner.open_file(draft / "postgresql.conf", "a") as file:
            file.write(f"\ninclude_if_exists = '{_SETTINGS_FILE}'\n")
        draft.rename(self.data_dir)

    def _write_settings(self) -> None:
        """Write the settings to a file: unlike arguments, ALTER SYSTEM can override them."""
        settings = {
            "listen_addresses": "",
            "port": str(_PORT),
            "unix_socket_directories": str(self.socket_dir),
            "unix_socket_permissions": "0700",
        }
        if self.binaries.has_library("pg_stat_statements"):
            settings["shared_preload_libraries"] = "pg_stat_statements"
        settings.update(self.extra_settings)
        lines = ["# Written at each start; use ALTER SYSTEM for your settings.\n"]
        for name, value in settings.items():
            quoted = str(value).replace("\\", "\\\\").replace("'", "''")
            lines.append(f"{name} = '{quoted}'\n")
        with self._owner.open_file(self.data_dir / _SETTINGS_FILE, "w") as file:
            file.write("".join(lines))
            if self._owner.is_other_account:
                os.fchown(file.fileno(), self._owner.uid, self._owner.gid)

    def _make_socket_dir(self) -> None:
        path = self.socket_dir
        if path == self.data_dir:
            return
        with contextlib.suppress(FileExistsError):  # left by a crashed server
            self._owner.make_folder(path)
        # Every user of the machine can predict the name, so check the owner.
        found = path.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != self._owner.uid:
            raise ServerStartError(
                f"the folder for its socket, {path}, belongs to user id {found.st_uid}",
                folder=str(self.data_dir),
                hint="Use a data folder with a shorter path, so that the socket can be inside it.",
            )

    def _launch(self, deadline: float) -> None:
        self._disown_stale_pid_file()
        while True:
            self._process = self._spawn()
            # This thread reaps the process, however it is stopped.
            threading.Thread(target=self._process.wait, name="postgres", daemon=True).start()
            try:
                self._wait_until_ready(deadline)
            except ServerStartError as error:
                # Backends of a killed server may need a moment to end.
                again = "pre-existing shared memory block" in (error.detail or "")
                if not again or time.monotonic() > deadline:
                    raise
                time.sleep(0.05)
            except BaseException:  # interrupted: no caller knows this server yet
                self._owner.signal([self._process.pid], signal.SIGQUIT)
                raise
            else:
                break

    def _spawn(self) -> subprocess.Popen[bytes]:
        with contextlib.suppress(FileNotFoundError):
            if self.log_path.lstat().st_size > _LOG_BYTES_MAX:
                self.log_path.unlink()
        with self._owner.open_file(self.log_path, "ab") as log:
            log.write(b"--- start\n")  # so that a failure shows only the log of this start
            log.flush()
            return subprocess.Popen(
                [self.binaries.program("postgres"), "-D", self.data_dir],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd="/",
                env=self._owner.environment(),
                start_new_session=True,
                **self._owner.popen_arguments(),
            )

    def _wait_until_ready(self, deadline: float) -> None:
        while True:
            pid_file = _PidFile.read(self._owner, self.data_dir)
            if self._process is not None:
                if self._process.poll() is not None:
                    raise self._failure(f"it ended with status {self._process.returncode}")
                if pid_file is not None and pid_file.pid != self._process.pid:
                    pid_file = None  # of the previous server
            elif not self._is_running():
                raise self._failure("it ended while it was starting")
            if pid_file is not None and pid_file.ready:
                return
            if time.monotonic() > deadline:
                raise self._failure("it does not accept connections yet")
            time.sleep(0.01)

    def _failure(self, problem: str) -> ServerStartError:
        try:
            with self._owner.open_file(self.log_path, "r") as file:
                log = file.read().rpartition("--- start\n")[2]
        except FileNotFoundError:
            log = ""
        return ServerStartError(problem, folder=str(self.data_dir), detail=log[-4000:].strip())

    def _survived(self, pid: int) -> ForebayError:
        return ForebayError(
            f"embedded server in {self.data_dir} did not stop: pid {pid} is still running"
        )

    # --- whether it runs ----------------------------------------------------------------------

    def _is_running(self) -> bool:
        pid_file = _PidFile.read(self._owner, self.data_dir)
        return pid_file is not None and self._is_postmaster(pid_file.pid)

    def _is_postmaster(self, pid: int) -> bool:
        """Whether this process is the server of our folder; its pid may have been reused."""
        if not _is_alive(pid):
            return False
        try:
            # Every user may read a command line; only a privileged root may read the working
            # folder.
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        except OSError:
            return not _has_proc()  # without /proc, believe the file
        if Path(os.fsdecode(words[0])).name not in {"postgres", "postmaster"}:
            return False
        given = words[words.index(b"-D") + 1] if b"-D" in words[:-1] else b"."
        folder = Path(os.fsdecode(given))
        # A relative folder means that a person started this server by hand.
        return not folder.is_absolute() or folder.resolve() == self.data_dir

    def _disown_stale_pid_file(self) -> None:
        """Make PostgreSQL see that the process of a stale pid file is not its server.

        It refuses to start while any process has that pid, even a zombie or an unrelated process.
        Removing the file would also remove its check for backends that still use the shared memory.
        A file with the pid of the server's parent counts as stale and keeps that check.
        """
        pid_file = _PidFile.read(self._owner, self.data_dir)
        if pid_file is None or pid_file.pid == os.getpid():
            return
        path = self.data_dir / "postmaster.pid"
        with self._owner.open_file(path, "r") as file:
            rest = file.read(_PID_FILE_CHARACTERS_MAX).partition("\n")[2]
        with self._owner.open_file(path, "w") as file:
            file.write(f"{os.getpid()}\n{rest}")

    def _forget(self) -> None:
        """Reap our child, and remove the socket folder if it is a separate one."""
        if self._process is not None:
            self._process.wait()
            self._process = None
        if self.socket_dir != self.data_dir:
            shutil.rmtree(self.socket_dir, ignore_errors=True)


def start_or_find(
    data_dir: str | os.PathLike[str] | None = None,
    bin_dir: str | os.PathLike[str] | None = None,
    *,
    extra_settings: Mapping[str, str] = {},
) -> EmbeddedServer:
    """Return the running server of a data folder, started if necessary; it keeps running.

    Args:
        data_dir: None means one folder per user and major version, in the user's cache.
        bin_dir: as for ``EmbeddedServer``.
        extra_settings: as for ``EmbeddedServer``; a running server keeps its settings.

    Raises:
        ConfigError: no PostgreSQL of version 15 or newer was found.
        ServerStartError: the server did not start; ``detail`` holds the end of its log.
    """
    if data_dir is None:
        server = default_server(bin_dir, extra_settings=extra_settings)
    else:
        server = EmbeddedServer(data_dir, bin_dir, extra_settings=extra_settings)
    server.start()
    return server


def default_server(
    bin_dir: str | os.PathLike[str] | None = None, *, extra_settings: Mapping[str, str] = {}
) -> EmbeddedServer:
    """Return the user's server, running or not: one per major version.

    Args:
        bin_dir: as for ``EmbeddedServer``.
        extra_settings: as for ``EmbeddedServer``.

    Raises:
        ConfigError: no PostgreSQL of version 15 or newer was found.
    """
    owner = Owner.current()
    found = Path(bin_dir).absolute() if bin_dir is not None else find_bin_dir()
    major = usable_binaries(found, owner).major
    return EmbeddedServer(
        state_folder(owner) / f"pg{major}", bin_dir, extra_settings=extra_settings
    )


@contextlib.contextmanager
def temporary_server(
    bin_dir: str | os.PathLike[str] | None = None,
    *,
    parent: str | os.PathLike[str] | None = None,
    extra_settings: Mapping[str, str] = {},
) -> Iterator[EmbeddedServer]:
    """Run a server on a new data folder; both are removed at the end, or when this process dies.

    Args:
        bin_dir: as for ``EmbeddedServer``.
        parent: where to create the data folder; None for the usual place for temporary files.
        extra_settings: as for ``EmbeddedServer``.

    Raises:
        ConfigError: no PostgreSQL of version 15 or newer was found.
        ServerStartError: the server did not start; ``detail`` holds the end of its log.
    """
    owner = Owner.current()
    folder = Path(tempfile.mkdtemp(prefix="forebay-", dir=parent or temporary_parent(owner)))
    try:
        if owner.is_other_account:
            # New and ours: the account nobody must pass through to its data folder.
            folder.chmod(0o711)
        # Shared memory as files in the data folder: an abrupt end leaves none elsewhere.
        settings = {"dynamic_shared_memory_type": "mmap", **extra_settings}
        server = EmbeddedServer(folder / "data", bin_dir, extra_settings=settings)
        with _cleanup_process(server):
            try:
                server.start()
                yield server
            finally:
                with contextlib.suppress(ServerStartError):
                    if _PidFile.read(owner, server.data_dir) and server.pid is None:
                        # only a new start frees the shared memory of a killed server
                        server.start()
                    server.stop(immediate=True)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


# Both read until their input ends. That of the first ends when the process at its other end is gone
# for any reason; that of the second when the first has ended. The first stops the server, as the
# server's account: the process id comes from a file of that account. The second removes the folder.
_STOP_SERVER = """
read -r _
if read -r pid < "$1/data/postmaster.pid"; then
    case "$pid" in ''|0*|1|*[!0-9]*) exit ;; esac
    kill -s QUIT "$pid"
    while kill -s 0 "$pid" && [ -e "$1/data/postmaster.pid" ]; do sleep 0.1; done
fi
"""
_REMOVE_FOLDER = """
read -r _
rm -rf -- "$1"
"""


@contextlib.contextmanager
def _cleanup_process(server: EmbeddedServer) -> Iterator[None]:
    def shell(script: str, **arguments: Any) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            ["/bin/sh", "-c", script, "sh", server.data_dir.parent],
            stderr=subprocess.DEVNULL,
            cwd="/",
            start_new_session=True,
            **arguments,
        )

    owner = Owner.current()
    stop = shell(
        _STOP_SERVER,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=owner.environment(),
        **owner.popen_arguments(),
    )
    remove = shell(_REMOVE_FOLDER, stdin=stop.stdout, stdout=subprocess.DEVNULL)
    try:
        yield
    finally:
        # The second first: it acts when the first has ended.
        for process in (remove, stop):
            process.kill()
            process.communicate()


def _no_follow(path: str, flags: int) -> int:
    """Open a file in a folder where another account may write, without following links to root's
    files.
    """
    return os.open(path, flags | os.O_NOFOLLOW, 0o600)


def _is_alive(pid: int) -> bool:
    """Whether a process is running; a zombie is not."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass  # it exists, and belongs to another user
    return not _has_proc() or _process_state(pid)[0] not in {"Z", "X"}


def _children(pid: int) -> list[int]:
    if _has_proc():
        pids = [int(folder.name) for folder in Path("/proc").glob("[0-9]*")]
        return [child for child in pids if _process_state(child)[1] == pid]
    listed = subprocess.run(
        ["ps", "-A", "-o", "pid=,ppid="], capture_output=True, text=True, check=False
    )
    pairs = [line.split() for line in listed.stdout.splitlines()]
    return [int(child) for child, parent in pairs if int(parent) == pid]


def _has_proc() -> bool:
    return Path("/proc/self/stat").exists()


def _process_state(pid: int) -> tuple[str, int]:
    """Return the state letter and the parent of a process, from proc(5); X when it is gone."""
    try:
        line = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return "X", 0
    state, parent, *_ = line.rpartition(")")[2].split()  # the name before it may contain anything
    return state, int(parent)
