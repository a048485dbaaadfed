"""Schedulers as processes, to be killed, frozen and given a wrong clock: ``python -m
tests.support.scheduler_process DSN``.
"""

import asyncio
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from forebay.db.session import Session
from forebay.worker.ground.outage import Outage
from forebay.worker.maintain import scheduler
from forebay.worker.maintain.scheduler import Scheduler
from tests.support.stepping_server import SteppingClock, faketime_library

ROOT = Path(__file__).parents[2]


class SchedulerProcess:
    """One scheduler, as each worker has one, in a process of its own.

    Args:
        dsn: its database.
        folder: where its log and the offset of its clock are.
        speed: how fast its clocks run; else than 1, also the monotonic one.
    """

    def __init__(self, dsn: str, folder: Path, *, speed: float = 1.0) -> None:
        with tempfile.NamedTemporaryFile(dir=folder, suffix=".log", delete=False) as log:
            self.log_path = Path(log.name)
            offset = self.log_path.with_suffix(".offset")
            offset.write_text("+0\n")
            self._clock = SteppingClock(offset)
            self.is_stepping = speed == 1.0
            faked = {"LD_PRELOAD": str(faketime_library()), "FAKETIME_DONT_RESET": "1"}
            if self.is_stepping:
                faked |= {
                    "FAKETIME_TIMESTAMP_FILE": str(offset),
                    "FAKETIME_NO_CACHE": "1",
                    "FAKETIME_DONT_FAKE_MONOTONIC": "1",
                }
            else:
                faked |= {"FAKETIME": f"+0 x{speed}"}
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.support.scheduler_process", dsn],
                cwd=ROOT,
                env=os.environ | faked,
                stdout=log,
                stderr=log,
            )

    @property
    def log(self) -> str:
        return self.log_path.read_text(errors="replace")

    def set_clock(self, seconds: int) -> None:
        """Let its clock be so many seconds ahead of the real time, or behind it."""
        self._clock.set(seconds)

    def discard(self) -> None:
        """End it as ``kill -9`` does."""
        self.process.kill()
        self.process.wait()


async def _run(dsn: str) -> None:
    session = Session(dsn, name=f"scheduler {os.getpid()}")
    await Scheduler(lambda: session, ("storm", []), Outage()).run()


if __name__ == "__main__":
    scheduler._POLL_SECONDS = 0.3
    asyncio.run(_run(sys.argv[1]))
