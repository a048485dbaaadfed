"""Producers as processes with a library of their own: Python's enqueue and plain SQL, until told
to stop.

Each writes a line for every transaction: how it ended, what it had enqueued, when and how long the
enqueues took; and for every error. Run as ``python -m tests.support.producer_process DSN FILE
FIRST_ENTRY``.
"""

import json
import os
import random
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg

ROOT = Path(__file__).parents[2]
KINDS = ("work", "write", "write_in_thread", "step")


@dataclass
class Produced:
    """What a producer's file says."""

    committed: dict[int, str] = field(default_factory=dict)
    rolled_back: set[int] = field(default_factory=set)
    errors: list[str] = field(default_factory=list)
    took: list[tuple[float, float]] = field(default_factory=list)  # when, how long


class ProducerProcess:
    """One producer; ``library`` is what its ``PYTHONPATH`` begins with."""

    def __init__(self, dsn: str, path: Path, first_entry: int, library: Path) -> None:
        self.path = path
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.producer_process", dsn, path, str(first_entry)],
            cwd=ROOT,
            env=os.environ | {"PYTHONPATH": str(library)},
            start_new_session=True,
        )

    def stop(self) -> None:
        """Let it finish its transaction, and end."""
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(20) == 0

    def kill(self) -> None:
        """End it in any case."""
        self.process.kill()
        self.process.wait()

    def read(self) -> Produced:
        """Return what it has done so far."""
        found = Produced()
        lines = self.path.read_text().splitlines() if self.path.exists() else []
        for line in lines:
            said: dict[str, Any] = json.loads(line)
            found.took += [tuple(each) for each in said["took"]]
            entries = {int(entry): kind for entry, kind in said["entries"].items()}
            if said["ended"] == "committed":
                found.committed |= entries
            else:
                found.rolled_back |= entries.keys()
            if said["ended"] == "error":
                found.errors.append(said["error"])
        return found


def main(dsn: str, path: str, first_entry: int) -> None:
    from tests.support import worker_app

    stopping = []
    signal.signal(signal.SIGTERM, lambda *_: stopping.append(True))
    rng = random.Random(first_entry)
    entry = first_entry
    conn = None
    with Path(path).open("a", buffering=1) as file:
        while not stopping:
            entries: dict[int, str] = {}
            took = []
            said: dict[str, object] = {"ended": "committed"}
            try:
                if conn is None:
                    conn = psycopg.connect(dsn)
                for _ in range(rng.randint(1, 3)):
                    entry += 1
                    kind = rng.choice(KINDS)
                    args = {"entry": entry} | ({"failures": 1} if kind == "step" else {})
                    entries[entry] = kind
                    began = time.monotonic()
                    if rng.random() < 0.5:
                        getattr(worker_app, kind).enqueue(conn, **args)
                    else:
                        conn.execute("select forebay.enqueue(%s, %s)", [kind, json.dumps(args)])
                    took.append((began, time.monotonic() - began))
                    time.sleep(rng.random() * 0.004)
                if rng.random() < 0.2:
                    conn.rollback()
                    said["ended"] = "rolled back"
                else:
                    began = time.monotonic()
                    conn.commit()
                    took.append((began, time.monotonic() - began))
            except Exception as error:
                said |= {"ended": "error", "error": f"{type(error).__name__}: {error}"}
                conn = None
            file.write(json.dumps(said | {"entries": entries, "took": took}) + "\n")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
