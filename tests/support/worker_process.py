"""Worker processes as operators run them, ``forebay worker``, to be stopped, killed and frozen."""

import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from tests.support.effects import PATH_VARIABLE
from tests.support.waiting import wait_for

ROOT = Path(__file__).parents[2]

#: For tests of what happens when a lease is lost. On a busy machine a loop can stand still for as
#: long as this.
SHORT_LEASE = {"lease_seconds": 3.0, "lease_margin_seconds": 1.0, "suspect_seconds": 1.0}

#: Everything happens soon. A worker in the test's own loop keeps its lease while the test holds
#: that loop up.
FAST = {
    "lease_seconds": 30.0,
    "lease_margin_seconds": 3.0,
    "suspect_seconds": 10.0,
    "heartbeat_seconds": 0.2,
    "poll_seconds": 0.02,
    "grace_seconds": 5.0,
    "connect_timeout_seconds": 2.0,
}


class WorkerProcess:
    """One ``forebay worker`` process.

    Args:
        dsn: its database.
        effects: the file its handlers write to.
        app: module and attribute of the application.
        group: the group it reads for.
        environment: further variables.
        settings: of the worker; ``FAST`` with ``SHORT_LEASE`` where nothing else is said.
    """

    def __init__(
        self,
        dsn: str,
        effects: Path,
        *,
        app: str = "tests.support.worker_app:app",
        group: str = "default",
        environment: dict[str, str] | None = None,
        **settings: object,
    ) -> None:
        chosen = {
            f"FOREBAY_{k.upper()}": str(v) for k, v in (FAST | SHORT_LEASE | settings).items()
        }
        #: How long its start took, until what was waited for first: long on a busy machine.
        self.start_seconds: float | None = None
        self._began = time.monotonic()
        with tempfile.NamedTemporaryFile(prefix="worker-", suffix=".log", delete=False) as log:
            self.log_path = Path(log.name)
            self.process = subprocess.Popen(
                [sys.executable, "-m", "forebay", "worker", app, "--group", group, "--dsn", dsn],
                cwd=ROOT,
                env=os.environ | chosen | {PATH_VARIABLE: str(effects)} | (environment or {}),
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def log(self) -> str:
        return self.log_path.read_text(errors="replace")

    @property
    def is_running(self) -> bool:
        return self.process.poll() is None

    @property
    def children(self) -> set[int]:
        """Its living child processes."""
        found = set()
        # A thread, or all of them, may end meanwhile.
        with suppress(FileNotFoundError, ProcessLookupError):
            for thread in Path(f"/proc/{self.pid}/task").iterdir():
                with suppress(FileNotFoundError, ProcessLookupError):
                    found |= {int(child) for child in (thread / "children").read_text().split()}
        return {child for child in found if is_alive(child)}

    def some_children(self, rng: random.Random) -> list[int]:
        """Return some of its child processes, or all or none of them."""
        children = sorted(self.children)
        return rng.sample(children, rng.randint(0, len(children)))

    def wait_until_started(self, seconds: float = 60) -> None:
        """Wait until it has its lease."""
        self.wait_for_log("has lease", seconds)

    def wait_for_log(self, text: str, seconds: float = 20) -> None:
        """Wait until its log has a text."""
        wait_for(lambda: text in self.log, seconds, lambda: f"no {text!r} in:\n{self.log}")
        if self.start_seconds is None:
            self.start_seconds = time.monotonic() - self._began

    def kill(self) -> None:
        """End it as ``kill -9`` does."""
        self.process.kill()
        self.process.wait()

    def freeze(self) -> None:
        """Stop it in the middle of whatever it does."""
        self.process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Let it go on."""
        self.process.send_signal(signal.SIGCONT)

    def terminate(self) -> None:
        """Ask it to end, as a supervisor does."""
        self.process.terminate()

    def wait(self, seconds: float) -> float:
        """Wait for its end; return how long that took."""
        began = time.monotonic()
        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            message = f"still running after {seconds} s:\n{self.log}"
            raise AssertionError(message) from None
        return time.monotonic() - began

    def discard(self) -> None:
        """End it in any case, and remove its log."""
        self.kill()
        self.log_path.unlink(missing_ok=True)


def is_alive(pid: int) -> bool:
    """Whether a process runs, or stands still."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def send_signal(pid: int, number: int) -> None:
    """Send a signal to a process, which may have ended."""
    with suppress(ProcessLookupError):
        os.kill(pid, number)


class Crew:
    """The worker processes of one test."""

    def __init__(self, dsn: str, effects: Path) -> None:
        self.dsn = dsn
        self.effects = effects
        self.members: list[WorkerProcess] = []
        #: Of every member that is started from now on.
        self.options: dict[str, Any] = {}

    def start(self, *, wait: bool = True, dsn: str | None = None, **options) -> WorkerProcess:
        """Start one more."""
        member = WorkerProcess(dsn or self.dsn, self.effects, **self.options | options)
        self.members.append(member)
        if wait:
            member.wait_until_started()
        return member

    @property
    def logs(self) -> str:
        return "\n".join(f"--- {m.pid}\n{m.log}" for m in self.members)


@contextmanager
def crew(dsn: str, effects: Path) -> Iterator[Crew]:
    """Lend a crew, and end all of it afterwards."""
    workers = Crew(dsn, effects)
    try:
        yield workers
    finally:
        for member in workers.members:
            member.discard()
