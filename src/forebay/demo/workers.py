"""The workers: ordinary processes, one of which is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import field
from pathlib import Path
from typing import Final

from forebay._dataclass import dataclass

#: How long a worker may take to end after SIGTERM.
_STOP_SECONDS: Final = 20


@dataclass(slots=True)
class WorkerProcess:
    """One process that runs ``forebay worker``.

    Attributes:
        state: starting, working, killed or stopped.
        held: jobs it held when last seen.
    """

    number: int
    process: subprocess.Popen[bytes] = field(repr=False)
    state: str = "starting"
    held: int = 0

    @classmethod
    def start(
        cls,
        number: int,
        dsn: str,
        *,
        concurrency: int,
        log: Path,
        app: str = "forebay.demo.app:app",
        settings: Mapping[str, str] = {},
    ) -> WorkerProcess:
        """Start a worker.

        Args:
            number: its number, used as its name.
            dsn: the database.
            concurrency: its number of slots.
            log: the file that its output is appended to.
            app: module and attribute of the application; default: the demo's.
            settings: additional environment variables.
        """
        with log.open("ab") as output:
            process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "forebay", "worker", app),
                    *("--concurrency", str(concurrency), "--log-level", "warning"),
                ],
                env={**_environment(), "FOREBAY_DATABASE_URL": dsn, **settings},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,  # on Ctrl-C the demo stops the workers in order
            )
        return cls(number, process)

    @property
    def pid(self) -> int:
        """Its process id."""
        return self.process.pid

    @property
    def is_alive(self) -> bool:
        """Whether the process runs."""
        return self.process.poll() is None

    def freeze(self) -> None:
        """Pause the process with SIGSTOP."""
        os.kill(self.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        """Let the process continue."""
        os.kill(self.pid, signal.SIGCONT)

    def kill(self) -> None:
        """Kill the process without warning."""
        self.process.kill()
        self.process.wait()
        self.state = "killed"


def stop_workers(workers: list[WorkerProcess]) -> None:
    """Stop all workers, in order where possible."""
    for worker in workers:
        if worker.is_alive:
            worker.process.terminate()
    deadline = time.monotonic() + _STOP_SECONDS
    for worker in workers:
        try:
            worker.process.wait(max(0.1, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            worker.process.kill()
            worker.process.wait()
        if worker.state != "killed":
            worker.state = "stopped"


def _environment() -> dict[str, str]:
    # Settings of the user who runs the demo are for other workers.
    return {name: value for name, value in os.environ.items() if not name.startswith("FOREBAY_")}
