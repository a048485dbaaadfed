"""What is promised of ordering keys when worker processes are killed and jobs fail."""

import random
import time

import pytest

from tests.support.effects import Effects
from tests.support.engine import enqueue_many
from tests.support.waiting import wait_for
from tests.support.writers import wait_until_drained


def broken_order(effects: Effects, kills: list[float], per_key: int) -> list[str]:
    """Read what the handlers wrote: every job starts after all before it of its key have ended,
    and alone.

    A start without an end is that of a process which was killed: there must be a kill before the
    key goes on.
    """
    wrong = []
    by_key: dict[int, list] = {}
    for effect in sorted(effects.all(), key=lambda effect: effect.at):
        by_key.setdefault(effect.entry // per_key, []).append(effect)
    for key, events in by_key.items():
        over: set[int] = set()
        running = None
        for event in events:
            if event.what == "start":
                if running is not None and not any(running.at < at < event.at for at in kills):
                    wrong.append(f"key {key}: {event.entry} starts beside {running.entry}")
                before = set(range(key * per_key, event.entry))
                if not before <= over:
                    wrong.append(
                        f"key {key}: {event.entry} starts before {sorted(before - over)[:3]}"
                    )
                running = event
            else:
                running = None
                if event.what == "end":
                    over.add(event.entry)
        if len(over) != per_key:
            wrong.append(f"key {key}: {len(over)} of {per_key} have ended")
    return wrong


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind", [pytest.param("step", marks=pytest.mark.nightly), "step_in_transaction"]
)
def test_each_key_runs_in_order_while_workers_are_killed_and_jobs_fail(
    conn, database, workers, effects, seed, is_long, kind
):
    """
    One job in ten fails twice, a worker is killed every three seconds: each key strictly in order,
    never two at once, nothing lost.
    """
    keys, per_key, crew_size = (100, 100, 8) if is_long else (12, 40, 3)
    rng = random.Random(seed)
    jobs = [
        {
            "kind": kind,
            "ordering_key": f"key {entry // per_key}",
            "args": {
                "entry": entry,
                "seconds": 0.01 if is_long else 0.03,
                "failures": 2 if rng.random() < 0.1 else 0,
            },
        }
        for entry in range(keys * per_key)
    ]
    places = [list(range(key * per_key, (key + 1) * per_key)) for key in range(keys)]
    mixed = []
    while places:
        place = rng.choice(places)
        mixed.append(jobs[place.pop(0)])
        places = [place for place in places if place]
    for first in range(0, len(mixed), 7):
        enqueue_many(conn, mixed[first : first + 7])

    options = {"concurrency": 6, "lease_seconds": 15.0}
    crew = [workers.start(wait=False, **options) for _ in range(crew_size)]
    kills = []
    deadline = time.monotonic() + (600 if is_long else 90)
    next_kill = time.monotonic() + 3

    def is_over() -> bool:
        return len(effects.entries("end")) == len(jobs)

    while not is_over():
        assert time.monotonic() < deadline, workers.logs[-20_000:]
        wait_for(lambda: is_over() or time.monotonic() >= next_kill, 20)
        if not is_over() and (is_long or len(kills) < 3):
            victim = rng.randrange(crew_size)
            crew[victim].kill()
            kills.append(time.monotonic())
            crew[victim] = workers.start(wait=False, **options)
        next_kill = time.monotonic() + 3
    wait_until_drained(database, 60, lambda: workers.logs[-20_000:])
    print(f"{len(kills)} kills, {len(effects.all('start'))} starts of {len(jobs)} jobs")
    assert broken_order(effects, kills, per_key) == []
