"""Calls that change settings of the same queues at once wait for each other: none deadlocks."""

import json
import random
import threading
import time
from collections import Counter

import psycopg
import pytest

from tests.support.engine import connect
from tests.support.mutant import break_function


def _storm(database: str, seed: int, seconds: float) -> Counter[str]:
    """Apply, limit, drop and close at once; return the SQLSTATEs of what was refused."""
    refused: Counter[str] = Counter()
    end = time.monotonic() + seconds

    def declared(rng: random.Random) -> str:
        version = rng.randint(1, 3)
        return json.dumps(
            [
                {
                    "queue": f"q{n}",
                    "concurrency": version,
                    "key_concurrency": version,
                    "shards": version,
                    "dead_keep_days": version,
                    "groups": ["default", f"g{version}"],
                }
                for n in range(3)
            ]
        )

    def work(number: int) -> None:
        rng = random.Random(f"{seed} {number}")
        acts = [
            lambda: ("select forebay.apply_queues('app', %s, true)", declared(rng)),
            lambda: (f"select forebay.limit_queue(%s, concurrency => {rng.randint(5, 9)})", queue),
            lambda: ("select forebay.limit_key(%s, 'k', concurrency => 3)", queue),
            lambda: ("select forebay.limit_key(%s, 'k', remove => true)", queue),
            lambda: ("select forebay.shard_queue(%s, 5)", queue),
            lambda: ("select forebay.drop_queue(%s, force => true)", queue),
            lambda: ("select forebay.close_group(%s, 'g2', force => true)", queue),
            lambda: ("select forebay.open_group(%s, 'late', 'now')", queue),
            lambda: ("select forebay.sweep_v1() from (select %s) q", queue),
            lambda: ("select forebay.close_groups() from (select %s) q", queue),
        ]
        with connect(database) as conn:
            conn.execute("set deadlock_timeout = '50ms'")
            while time.monotonic() < end:
                queue = f"q{rng.randrange(3)}"
                statement, given = rng.choice(acts)()
                try:
                    conn.execute(statement, [given])
                except psycopg.Error as error:
                    refused[error.sqlstate or "lost"] += 1

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return refused


@pytest.mark.slow
def test_nobody_deadlocks(database, seed):
    """What is refused is a group that is being closed, or a queue that is not there."""
    refused = _storm(database, seed, 8)
    assert set(refused) <= {"JQ014", "JQ017"}, refused


@pytest.mark.slow
def test_without_the_settings_lock_they_deadlock(database, seed):
    """The guard of the test above."""
    lock = "lock table only forebay.lock_settings in share update exclusive mode;"
    break_function(database, "_lock_settings", (lock, "null;"))
    assert _storm(database, seed, 8)["40P01"] > 0
