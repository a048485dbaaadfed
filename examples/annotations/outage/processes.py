"""The processes of the demo. All end with it."""

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Generator, Mapping
from pathlib import Path

from forebay.errors import ForebayError

EXAMPLES = Path(__file__).parents[2]

_STOP_SECONDS = 15.0


class ProcessGroup:
    """Some processes, with one file for their standard error."""

    def __init__(self, log: Path) -> None:
        self.log = log
        self.environment: dict[str, str] = {}
        self._started: list[tuple[str, subprocess.Popen[str]]] = []

    def start(
        self, name: str, *command: str, settings: Mapping[str, str] = {}
    ) -> subprocess.Popen[str]:
        """Start a Python program; its input and output are pipes."""
        kept = {
            k: v for k, v in os.environ.items() if not k.startswith(("FOREBAY_", "ANNOTATIONS_"))
        }
        path = os.pathsep.join(filter(None, [str(EXAMPLES), os.environ.get("PYTHONPATH")]))
        with self.log.open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", *command],
                env={**kept, "PYTHONPATH": path, **self.environment, **settings},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,  # Ctrl-C is for the demo, which ends them
            )
        self._started.append((name, process))
        return process

    def serve(self, name: str, service: str, socket: Path) -> None:
        """Start a web service on a socket, and wait until it accepts connections."""
        process = self.start(
            name,
            *(
                "uvicorn",
                service,
                "--uds",
                str(socket),
                "--log-level",
                "warning",
                "--no-access-log",
            ),
            *("--timeout-keep-alive", "600"),
        )
        until = time.monotonic() + 60
        while not socket.exists():
            if process.poll() is not None or time.monotonic() > until:
                raise self.failure(name)
            time.sleep(0.05)

    def check(self) -> None:
        """Check that all are alive.

        Raises:
            ForebayError: one is not.
        """
        for name, process in self._started:
            if process.poll() not in (None, 0):
                raise self.failure(name)

    def failure(self, name: str) -> ForebayError:
        return ForebayError(
            f"{name} of the demo ended by itself",
            detail=self.log.read_text(errors="replace")[-4000:],
        )

    def stop(self) -> None:
        """End all, in the reverse order of their start."""
        for _, process in reversed(self._started):
            with contextlib.suppress(OSError):
                process.terminate()
        until = time.monotonic() + _STOP_SECONDS
        for _, process in self._started:
            try:
                process.wait(max(0.1, until - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            for stream in (process.stdin, process.stdout):
                if stream is not None:
                    with contextlib.suppress(OSError):
                        stream.close()


@contextlib.contextmanager
def process_group(log: Path) -> Generator[ProcessGroup, None, None]:
    found = ProcessGroup(log)
    try:
        yield found
    finally:
        found.stop()


def line_of(process: subprocess.Popen[str]) -> str:
    """Return the next line of a process's output."""
    assert process.stdout is not None
    return process.stdout.readline().strip()


def send_line(process: subprocess.Popen[str], line: str) -> None:
    """Send a process a line."""
    assert process.stdin is not None
    process.stdin.write(line + "\n")
    process.stdin.flush()


def send(process: subprocess.Popen[str], line: str) -> None:
    """Send a process a line, and wait for its answer."""
    send_line(process, line)
    line_of(process)
