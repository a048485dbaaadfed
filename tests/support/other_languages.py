"""The example workers in other languages, as processes."""

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from psycopg.conninfo import conninfo_to_dict

from forebay_bench.peers import javascript
from tests.support.worker_process import ROOT

EXAMPLES = ROOT / "examples" / "other_languages"

#: The commands of the workers, by language; the queue follows.
COMMANDS = {"node": ["node", "worker.cjs"], "shell": ["bash", "worker.sh"]}


def environment(dsn: str, language: str) -> dict[str, str]:
    """Return the environment of a worker on a database; skip the test where it cannot run."""
    found = conninfo_to_dict(dsn)
    # The driver of Node reads an address without a host in its place, and the variables of libpq.
    variables = {
        "PGHOST": str(found["host"]),
        "PGPORT": str(found["port"]),
        "PGUSER": str(found["user"]),
        "PGDATABASE": str(found["dbname"]),
        "PGPASSWORD": str(found.get("password", "")),
    }
    if language == "node":
        try:
            return javascript.environment() | variables
        except javascript.MissingPeerError as error:
            pytest.skip(error.message)
    if shutil.which("psql") is None:
        pytest.skip("psql is not installed")
    return dict(os.environ) | variables | {"DATABASE_URL": dsn}


class OtherWorker:
    """One process of an example worker."""

    def __init__(self, dsn: str, language: str, queue: str, log: Path, lease: int = 3) -> None:
        self.log = log
        with log.open("a", encoding="utf-8") as file:
            self.process = subprocess.Popen(
                [*COMMANDS[language], queue],
                cwd=EXAMPLES,
                env=environment(dsn, language) | {"LEASE_SECONDS": str(lease)},
                stdout=file,
                stderr=file,
                start_new_session=True,
            )

    def kill(self) -> None:
        """Kill it with all that it started."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(30)

    def stop(self) -> int:
        """Ask it to stop; return its exit status."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(60)


@contextmanager
def other_worker(
    dsn: str, language: str, queue: str, log: Path, **how: int
) -> Iterator[OtherWorker]:
    """Run one, and kill it at the end if it still runs."""
    worker = OtherWorker(dsn, language, queue, log, **how)
    try:
        yield worker
    finally:
        if worker.process.poll() is None:
            worker.kill()
