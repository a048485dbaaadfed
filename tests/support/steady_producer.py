"""A producer at a steady rate, as a process: each job in a transaction by itself, until told to
stop.

It writes a line of a fixed width for each commit: the number of the job, the time of the commit,
and how long enqueue and commit took. An error ends it. Run as ``python -m
tests.support.steady_producer DSN FILE PER_SECOND QUEUE``.
"""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

import psycopg

ROOT = Path(__file__).parents[2]
WIDTH = 48


class Commit(NamedTuple):
    """One committed job: its number, when in seconds since 1970, and the seconds that the
    producer waited.
    """

    number: int
    at: float
    took: float


class SteadyProducer:
    """A producer process; ``with`` starts it, and ends it in any case."""

    def __init__(self, dsn: str, path: Path, per_second: int, queue: str) -> None:
        self._arguments = [dsn, str(path), str(per_second), queue]
        self.path = path

    def __enter__(self) -> "SteadyProducer":
        self.path.touch()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.steady_producer", *self._arguments],
            cwd=ROOT,
            env=os.environ,
            start_new_session=True,
        )
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()

    @property
    def count(self) -> int:
        """How many jobs it has committed."""
        return self.path.stat().st_size // WIDTH

    def stop(self) -> None:
        """Let it end; an error that it met fails the test."""
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(20) == 0

    def commits(self) -> list[Commit]:
        """Return all commits, oldest first."""
        lines = self.path.read_text().splitlines()
        return [Commit(int(n), float(at), float(took)) for n, at, took in map(str.split, lines)]


def main(dsn: str, path: str, per_second: int, queue: str) -> None:
    stopping: list[bool] = []
    signal.signal(signal.SIGTERM, lambda *_: stopping.append(True))
    number = 0
    with Path(path).open("a", buffering=1) as file, psycopg.connect(dsn) as conn:
        due = time.monotonic()
        while not stopping:
            time.sleep(max(0.0, due - time.monotonic()))
            # After a pause of the machine it does not catch up in a burst, which would be another
            # load.
            due = max(due + 1 / per_second, time.monotonic() - 0.1)
            began = time.monotonic()
            conn.execute(
                "select forebay.enqueue('moved', %s, queue => %s)",
                [json.dumps({"n": number}), queue],
            )
            conn.commit()
            took = time.monotonic() - began
            file.write(f"{number} {time.time():.6f} {took:.6f}".ljust(WIDTH - 1) + "\n")
            number += 1


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4])
