"""Ordering keys whose dead letters hold them, under kills: producers, workers and an operator at
work at the same time.
"""

import faulthandler
import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest

from tests.support.effects import Effects
from tests.support.engine import connect, depth, enqueue_many, one
from tests.support.waiting import wait_for
from tests.support.worker_process import Crew

pytestmark = pytest.mark.slow

_DEAD = "select count(*) from forebay.dead_letter where redriven_at is null"


def produce(
    dsn: str, kind: str, per_key: int, seconds: float, dying: set[int], rng: random.Random
) -> None:
    """Enqueue the jobs of all keys, some in each transaction, together with other producers.

    A transaction locks the row of its key first and continues its numbers: the order of the numbers
    is the order of commits.
    """
    with psycopg.connect(dsn) as conn:
        while True:
            taken = conn.execute(
                (
                    "select key, next from place where next < %s order by random() limit 1 for "
                    "update skip locked"
                ),
                [per_key],
            ).fetchone()
            if (
                taken is None
                and one(conn, "select count(*) from place where next < %s", per_key) == 0
            ):
                return
            if taken is not None:
                key, first = taken
                last = min(per_key, first + rng.randint(1, max(4, per_key // 10)))
                jobs = [
                    {
                        "kind": kind,
                        "ordering_key": f"key {key}",
                        "args": {"entry": entry, "seconds": seconds, "dies": entry in dying},
                    }
                    for entry in range(key * per_key + first, key * per_key + last)
                ]
                enqueue_many(conn, jobs)
                conn.execute("update place set next = %s where key = %s", [last, key])
            conn.commit()


def operate(dsn: str, is_over: threading.Event) -> int:
    """Redrive every dead letter soon after it was written; return how many."""
    redriven = 0
    with connect(dsn) as conn:
        while not is_over.wait(0.2):
            redriven += one(conn, "select forebay.redrive_matching()")
    return redriven


def inversions(effects: Effects, per_key: int) -> list[str]:
    """Return each job that started before one of its key that comes earlier had succeeded, in
    the order of the file.
    """
    wrong = []
    succeeded: dict[int, set[int]] = {}
    reached: dict[int, int] = {}  # Of a key, the number of its first jobs that have all succeeded.
    for effect in effects.all():
        key, place = divmod(effect.entry, per_key)
        if effect.what == "start":
            if place > reached.get(key, 0):
                wrong.append(f"key {key}: {place} started before {reached.get(key, 0)} succeeded")
            continue
        ended = succeeded.setdefault(key, set())
        ended.add(place)
        while reached.setdefault(key, 0) in ended:
            ended.remove(reached[key])
            reached[key] += 1
    return wrong


def storm(
    dsn: str,
    workers: Crew,
    effects: Effects,
    seed: int,
    *,
    kind: str,
    keys: int,
    per_key: int,
    dead_share: float,
    seconds: float,
    crew_size: int,
    most_kills: float,
    deadline_seconds: float,
) -> list[str]:
    """Run all jobs of some keys while workers are killed; return the inversions."""
    rng = random.Random(seed)
    dying = set(rng.sample(range(keys * per_key), int(keys * per_key * dead_share)))
    with connect(dsn) as conn:
        conn.execute("create table place (key int primary key, next int not null)")
        conn.execute("insert into place select k, 0 from generate_series(0, %s) k", [keys - 1])
    workers.options = {
        "app": "tests.support.key_storm_app:app",
        "concurrency": 20,
        "lease_seconds": 15.0,
    }
    crew = [workers.start(wait=False) for _ in range(crew_size)]
    kills = 0
    is_over = threading.Event()
    deadline = time.monotonic() + deadline_seconds
    with ThreadPoolExecutor(4) as threads, connect(dsn) as conn:
        operator = threads.submit(operate, dsn, is_over)
        producers = [
            threads.submit(
                produce, dsn, kind, per_key, seconds, dying, random.Random(f"{seed} {n}")
            )
            for n in range(3)
        ]

        def is_calm() -> bool:
            if not all(producer.done() for producer in producers):
                return False
            # One snapshot: what is redriven between two would be in neither.
            with conn.transaction():
                conn.execute("set transaction isolation level repeatable read")
                return not any(map(sum, depth(conn).values())) and one(conn, _DEAD) == 0

        try:
            next_kill = time.monotonic() + 2
            while not is_calm():
                assert time.monotonic() < deadline, f"{depth(conn)}\n{workers.logs[-20_000:]}"
                now = time.monotonic()
                wait_for(lambda at=now: time.monotonic() >= at + 0.2)
                if kills < most_kills and now >= next_kill:
                    next_kill = now + 2
                    victim = rng.randrange(len(crew))
                    wait_for(lambda at=victim: "has lease" in crew[at].log, 30)
                    crew[victim].kill()
                    kills += 1
                    crew[victim] = workers.start(wait=False)
        finally:
            is_over.set()
        for producer in producers:
            producer.result()
        redriven = operator.result()
    starts = effects.count("start")
    print(f"{kills} kills, {redriven} redriven, {starts.total()} starts of {keys * per_key} jobs")
    assert effects.entries("end") == set(range(keys * per_key))
    assert redriven > 0
    return inversions(effects, per_key)


SIZES = [
    pytest.param(100, 50, 0.1, 3, 6, 120, id="short"),
    pytest.param(1000, 1000, 0.01, 6, float("inf"), 10_800, id="long", marks=pytest.mark.nightly),
]


@pytest.mark.parametrize(
    ("keys", "per_key", "seconds", "crew_size", "most_kills", "deadline_seconds"), SIZES
)
def test_held_keys_keep_their_order_while_workers_are_killed(
    database,
    workers,
    effects,
    seed,
    keys,
    per_key,
    seconds,
    crew_size,
    most_kills,
    deadline_seconds,
):
    """
    One job in a hundred dies and is redriven, a worker is killed every two seconds: no job starts
    before all earlier ones of its key have succeeded, by the order of commits, and none is lost.
    """
    if deadline_seconds > 240:
        faulthandler.cancel_dump_traceback_later()  # It is meant to last.
    found = storm(
        database,
        workers,
        effects,
        seed,
        kind="hold",
        keys=keys,
        per_key=per_key,
        dead_share=0.01,
        seconds=seconds,
        crew_size=crew_size,
        most_kills=most_kills,
        deadline_seconds=deadline_seconds,
    )
    assert found == []


def test_keys_that_are_not_held_lose_their_order(database, workers, effects, seed):
    """The control: later jobs of a key run before the one that died and was redriven."""
    found = storm(
        database,
        workers,
        effects,
        seed,
        kind="skip",
        keys=20,
        per_key=50,
        dead_share=0.03,
        seconds=0.05,
        crew_size=2,
        most_kills=2,
        deadline_seconds=100,
    )
    print(f"{len(found)} inversions")
    assert found
