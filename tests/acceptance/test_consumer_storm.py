"""Workers in Node, in the shell and in Python on one queue, killed at random: no job is lost, and
none is settled twice.
"""

import random
import time

import pytest

from tests.support.engine import connect, enqueue, one
from tests.support.other_languages import OtherWorker
from tests.support.waiting import wait_for
from tests.support.worker_process import SHORT_LEASE

pytestmark = pytest.mark.slow

#: Some jobs have an ordering key; the jobs of one take turns.
_KEYS = [None, None, "a", "b"]

#: Each language, and how many workers of it.
_CREW = ["node", "node", "shell", "python"]


class Storm:
    """The workers and what is asked of them; a place has a worker of one language, again and
    again.
    """

    def __init__(self, dsn, workers, tmp_path, rng) -> None:
        self.dsn, self.workers, self.rng = dsn, workers, rng
        self.log = tmp_path / "log"
        self.crew = [self.started(language) for language in _CREW]
        self.entries = 0

    def started(self, language):
        if language == "python":
            return self.workers.start(
                wait=False, app="tests.support.consumer_app:app", **SHORT_LEASE
            )
        return OtherWorker(self.dsn, language, "q", self.log, lease=2)

    def replace(self, place: int) -> None:
        self.crew[place].kill()
        self.crew[place] = self.started(_CREW[place])

    def enqueue_some(self, conn) -> None:
        for _ in range(self.rng.randint(1, 8)):
            self.entries += 1
            key = self.rng.choice(_KEYS)
            args = {"user_id": self.entries}
            # A job that a killed worker had, again and again, must not run out of attempts.
            enqueue(
                conn, kind="count_login", queue="q", args=args, ordering_key=key, max_attempts=1000
            )

    def end(self) -> None:
        for member in self.crew:
            if isinstance(member, OtherWorker) and member.process.poll() is None:
                member.kill()


def nothing_is_lost_or_doubled(dsn, workers, tmp_path, seconds: float, seed: int) -> None:
    """Kill for so long; then each job has its effect once, by whichever worker."""
    print("seed", seed)
    rng = random.Random(seed)
    with connect(dsn) as conn:
        conn.execute("create table login (user_id int, job_id bigint)")
        storm = Storm(dsn, workers, tmp_path, rng)
        try:
            until, kills = time.monotonic() + seconds, 0
            while time.monotonic() < until:
                storm.enqueue_some(conn)
                time.sleep(rng.uniform(0.02, 0.3))
                if rng.random() < 0.25:
                    storm.replace(rng.randrange(len(_CREW)))
                    kills += 1
            left = (
                "select sum(ready + claimed + running + scheduled + retrying)::int"
                " from forebay.depth('q')"
            )
            wait_for(
                lambda: one(conn, left) == 0,
                120,
                lambda: "\n".join(
                    [f"{one(conn, left)} left", storm.log.read_text()[-4000:], workers.logs[-4000:]]
                ),
            )
            rows = conn.execute("select user_id from login order by 1").fetchall()
            assert [number for (number,) in rows] == list(range(1, storm.entries + 1))
            assert kills > seconds / 4
            by = dict(
                conn.execute(
                    "select split_part(l.worker, '-', 1), count(*) from forebay.settlement s"
                    " join forebay.lease l using (lease_id) where l.worker ~ '^(node|shell)'"
                    " group by 1"
                ).fetchall()
            )
            print(storm.entries, "jobs,", kills, "kills, settlements", by)
            assert set(by) == {"node", "shell"}
        finally:
            storm.end()


@pytest.mark.parametrize("seconds", [10, pytest.param(60, marks=pytest.mark.nightly)])
def test_no_job_is_lost_or_settled_twice(database, workers, tmp_path, seconds):
    """Whatever language takes over from whatever other one."""
    nothing_is_lost_or_doubled(database, workers, tmp_path, seconds, random.randrange(2**32))
