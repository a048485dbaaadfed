"""A stress run in which operators retry, reschedule and reprioritise jobs while everything else
runs.
"""

import json
import random
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

import psycopg

from tests.support.engine import connect
from tests.support.stress import QUEUE, StressRun


@dataclass
class ChangeRun(StressRun):
    """A stress run with operators.

    Attributes:
        changed: how many jobs each act moved.
    """

    operators: int = 3
    changed: Counter[str] = field(default_factory=Counter)

    def _further_duties(self) -> list[tuple[str, Callable[[random.Random], None]]]:
        return [(f"operator {n}", self._operate) for n in range(self.operators)]

    def _count(self, rng: random.Random) -> None:
        """Nothing: until a claim has passed them, the old rows of moved jobs count as ready."""

    def _operate(self, rng: random.Random) -> None:
        with connect(self.dsn) as conn:
            while self._writing.is_set() and not self.errors:
                act = rng.choice(("retry", "reschedule", "reprioritise"))
                options = {}
                if act == "reschedule":
                    at = datetime.now(UTC) + timedelta(seconds=rng.random() * 0.5)
                    options = {"run_at": at.isoformat()}
                elif act == "reprioritise":
                    options = {"priority": rng.choice((1, 50, 100))}
                most = rng.choice((1, 10, 200))
                try:
                    rows = conn.execute(
                        "select answer, jobs from forebay.change_jobs(%s, %s, %s, most => %s)",
                        [act, json.dumps({"queue": QUEUE}), json.dumps(options), most],
                    ).fetchall()
                except psycopg.errors.LockNotAvailable:
                    continue
                except psycopg.Error as error:
                    if error.sqlstate != "JQ012":  # The machine delayed the call for seconds.
                        raise
                    continue
                with self._lock:
                    for _answer, jobs in rows:
                        self.changed[act] += jobs
                time.sleep(rng.random() * 0.05)
