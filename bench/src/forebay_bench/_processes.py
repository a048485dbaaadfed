"""Processes that a scenario starts: workers as a user runs them, and scripts of the benchmark
that load the server.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import psycopg

from forebay.demo.workers import WorkerProcess, stop_workers
from forebay.errors import ForebayError

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterator, Mapping, Sequence

T = TypeVar("T")

#: The application of ``jobs``, as the command line names it.
APP: Final = "forebay_bench.jobs:app"

#: Connections of a worker without work: claims, settlements, maintenance, wake-up, heartbeat.
CONNECTIONS_OF_WORKER: Final = 5

#: Connections left for others: the scenario, the server's workers, a person who inspects.
_CONNECTIONS_LEFT: Final = 20

_START_SECONDS: Final = 60.0
_PAUSE_SECONDS: Final = 0.02


def wait_until(condition: Callable[[], T], seconds: float, what: str) -> T:
    """Check until a condition is true, and return its value.

    Args:
        condition: the check.
        seconds: how long to try.
        what: a description for the error.

    Raises:
        ForebayError: it did not become true.
    """
    deadline = time.monotonic() + seconds
    while not (answer := condition()):
        if time.monotonic() > deadline:
            raise ForebayError(f"{what}: not within {seconds:g} s")
        time.sleep(_PAUSE_SECONDS)
    return answer


def connections_for_workers(dsn: str) -> int:
    """Return for how many workers the server has connections."""
    with psycopg.connect(dsn, autocommit=True) as conn:
        row = conn.execute(
            "select current_setting('max_connections')::integer - count(*)::integer"
            " from pg_stat_activity where backend_type = 'client backend'"
        ).fetchone()
    assert row is not None
    return max(0, int(row[0]) - _CONNECTIONS_LEFT) // CONNECTIONS_OF_WORKER


class Workers:
    """Worker processes of ``jobs`` on one database, started a few at a time.

    Args:
        dsn: the database.
        log: the file for their output.
        concurrency: slots of each.
        settings: further variables of their environment, such as ``FOREBAY_QUEUE``.
    """

    def __init__(
        self, dsn: str, log: Path, *, concurrency: int, settings: Mapping[str, str]
    ) -> None:
        self._dsn = dsn
        self._log = log
        self._concurrency = concurrency
        self._settings = settings
        self.members: list[WorkerProcess] = []

    def start(self, count: int = 1, *, wait: bool = True) -> None:
        """Start more workers.

        Args:
            count: how many.
            wait: until each has its lease.

        Raises:
            ForebayError: one of them ended instead, or takes too long.
        """
        started = [
            WorkerProcess.start(
                len(self.members) + 1 + number,
                self._dsn,
                concurrency=self._concurrency,
                log=self._log,
                app=APP,
                settings=self._settings,
            )
            for number in range(count)
        ]
        self.members += started
        if wait:
            pids = {worker.pid for worker in started}
            wait_until(lambda: pids <= self._at_work(), _START_SECONDS, "workers get their leases")

    def raise_when_one_ended(self) -> None:
        """Raise a ``ForebayError`` if a process ended that was not killed."""
        for worker in self.members:
            if worker.state != "killed" and not worker.is_alive:
                raise ForebayError(
                    f"a worker process ended by itself, with {worker.process.returncode}",
                    detail=self._log.read_text(errors="replace")[-4000:],
                )

    def _at_work(self) -> set[int]:
        self.raise_when_one_ended()
        with psycopg.connect(self._dsn, autocommit=True) as conn:
            rows = conn.execute(
                "select split_part(worker, ':', 2)::integer from forebay.lease where "
                "closed_at is null"
            ).fetchall()
        return {pid for (pid,) in rows}


@contextlib.contextmanager
def workers(
    dsn: str, *, concurrency: int = 10, settings: Mapping[str, str] | None = None
) -> Iterator[Workers]:
    """Yield worker processes, none at first; all end with the block."""
    with tempfile.TemporaryDirectory(prefix="forebay-bench-") as folder:
        worker_processes = Workers(
            dsn, Path(folder) / "workers.log", concurrency=concurrency, settings=settings or {}
        )
        try:
            yield worker_processes
        finally:
            stop_workers(worker_processes.members)


class Script:
    """A module of the benchmark that runs in a separate process.

    Commands and answers are lines of JSON.

    Args:
        module: uses the messages of ``_child``.
        arguments: its command line.
    """

    def __init__(self, module: str, *arguments: str) -> None:
        self._start([sys.executable, "-m", module, *arguments], None)

    @classmethod
    def of(
        cls, command: Sequence[str | os.PathLike[str]], environment: Mapping[str, str]
    ) -> Script:
        """Return a process of another program that uses the same messages."""
        script = cls.__new__(cls)
        script._start(command, environment)
        return script

    def _start(
        self, command: Sequence[str | os.PathLike[str]], environment: Mapping[str, str] | None
    ) -> None:
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the process
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            start_new_session=True,
            env=environment,
        )

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def send(self, command: object) -> None:
        """Send a command."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # the wait for its answer reports why it ended
            self._process.stdin.write(json.dumps(command) + "\n")
            self._process.stdin.flush()

    def read_message(self) -> Any:
        """Wait for an answer.

        Raises:
            ForebayError: the process ended instead.
        """
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            self._errors.seek(0)
            raise ForebayError(
                "a process of the benchmark ended by itself",
                detail=self._errors.read()[-4000:].decode(errors="replace"),
            )
        return json.loads(line)

    def dismiss(self) -> None:
        """Close its input; it then ends."""
        with contextlib.suppress(BrokenPipeError):
            if self._process.stdin is not None:
                self._process.stdin.close()

    def close(self) -> None:
        """Wait for its end, or end it."""
        self.dismiss()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()
        self._errors.close()


@contextlib.contextmanager
def scripts(module: str, *arguments: list[str]) -> Iterator[list[Script]]:
    """Yield a process of a module for each list of arguments, once all are ready."""
    started = [Script(module, *each) for each in arguments]
    try:
        for script in started:
            script.read_message()
        yield started
    finally:
        for script in started:
            script.dismiss()
        for script in started:
            script.close()
