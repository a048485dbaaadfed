"""What is promised of limits when several worker processes run and some are killed."""

import random
import time
from collections import Counter
from itertools import pairwise

import pytest

from tests.support.effects import Effect, Effects
from tests.support.engine import enqueue_many, one
from tests.support.waiting import wait_for

#: Entries of one key are numbered from its multiple of this.
PER_KEY = 1_000_000


def enqueue_keys(conn, counts: dict[int, int], seconds: float) -> None:
    """Enqueue so many jobs of each key, key by key: whoever took them in order would serve the first key first."""
    for key, count in counts.items():
        for first in range(0, count, 5000):
            enqueue_many(
                conn,
                [
                    {
                        "kind": "work",
                        "limit_key": f"key {key}",
                        "args": {"entry": key * PER_KEY + number, "seconds": seconds},
                    }
                    for number in range(first, min(first + 5000, count))
                ],
            )


def spans(effects: Effects, kills: dict[int, float]) -> list[tuple[Effect, float]]:
    """Return each start with when it was over; a handler that never ended was over when its process was killed."""
    ends = {(end.pid, end.entry): end.at for end in effects.all("end")}
    last = max(kills.values(), default=0.0)
    return [
        (
            start,
            ends.get((start.pid, start.entry))
            or kills.get(start.pid)
            # A suspect's: in a child of one that was killed.
            or min((at for at in kills.values() if at >= start.at), default=max(last, start.at)),
        )
        for start in effects.all("start")
    ]


def most_at_once(found: list[tuple[Effect, float]]) -> Counter[int]:
    """Return for each key how many of its handlers ever ran at the same time."""
    events = sorted(
        [(start.at, 1, start.entry // PER_KEY) for start, _ in found]
        + [(end, -1, start.entry // PER_KEY) for start, end in found],
    )
    now: Counter[int] = Counter()
    most: Counter[int] = Counter()
    for _, change, key in events:
        now[key] += change
        most[key] = max(most[key], now[key])
    return most


@pytest.mark.slow
def test_five_of_a_key_at_once_over_four_processes_with_kills(
    conn, database, workers, effects, seed, is_long
):
    """Never more; and in a long run, though the killed hold theirs for a while, nine tenths of what the slots allow."""
    seconds, every, slots, duration = (60, 12, 5, 0.1) if is_long else (5, 2, 5, 0.1)
    keys = range(2)
    one(conn, "select forebay.limit_queue('default', key_concurrency => %s)", slots)
    enqueue_keys(conn, dict.fromkeys(keys, int(seconds / duration * slots) + 100), duration)
    options = {
        "concurrency": 4,
        "lease_seconds": 10.0,
        "lease_margin_seconds": 3.0,
        "poll_seconds": 0.1,
    }
    crew = [workers.start(**options) for _ in range(4)]
    rng = random.Random(seed)
    kills: dict[int, float] = {}
    wait_for(lambda: effects.entries("end"))
    began = time.monotonic()
    until = began + seconds
    next_kill = began + every

    while time.monotonic() < until:
        wait_for(lambda: time.monotonic() >= min(next_kill, until), seconds + 5)
        if time.monotonic() < until:
            victim = rng.randrange(len(crew))
            crew[victim].kill()
            kills[crew[victim].pid] = time.monotonic()
            crew[victim] = workers.start(wait=False, **options)
            next_kill += every
    ended = [effect for effect in effects.all("end") if began <= effect.at < until]
    share = len(ended) * duration / (slots * len(keys) * seconds)
    for member in workers.members:
        member.kill()
        kills.setdefault(member.pid, time.monotonic())
    most = most_at_once(spans(effects, kills))
    print(
        f"{len(kills) - 4} kills, {len(ended)} jobs, {share:.2f} of the slots used, most at once {dict(most)}"
    )
    assert set(most.values()) == {slots}, workers.logs[-5000:]
    assert share >= (0.9 if is_long else 0.5)


@pytest.mark.slow
def test_fifty_keys_get_even_shares_of_four_processes(conn, database, workers, effects, is_long):
    """One key has a thousand times as much as most: Jain's index over the jobs of the time is 0.95 or more."""
    seconds, keys = (30, 50) if is_long else (4, 20)
    one(conn, "select forebay.limit_queue('default', concurrency => 8)")
    for _ in range(4):
        workers.start(concurrency=4)
    enqueue_keys(conn, {0: 20_000} | dict.fromkeys(range(1, keys), 600 if is_long else 150), 0.02)
    began = time.monotonic()
    wait_for(lambda: time.monotonic() >= began + seconds, seconds + 5)
    counts = Counter(
        effect.entry // PER_KEY
        for effect in effects.all("end")
        if began <= effect.at < began + seconds
    )
    shares = [counts[key] for key in range(keys)]
    index = sum(shares) ** 2 / (keys * sum(share**2 for share in shares))
    print(f"{sum(shares)} jobs, {min(shares)} to {max(shares)} of a key, Jain's index {index:.4f}")
    assert index >= 0.95


@pytest.mark.slow
def test_a_rate_below_one_per_second_is_kept_over_a_minute(
    conn, database, workers, effects, is_long
):
    """0.2 a second is twelve in a minute, from four processes that all want more; a shorter look uses 2 a second."""
    seconds, rate = (60, 0.2) if is_long else (4, 2.0)
    one(conn, "select forebay.limit_queue('default', rate => %s, burst => 1)", rate)
    enqueue_many(conn, [{"kind": "work", "args": {"entry": number}} for number in range(100)])
    for _ in range(4):
        workers.start(concurrency=4)
    wait_for(lambda: effects.all("start"))
    first = effects.all("start")[0].at
    wait_for(lambda: time.monotonic() >= first + seconds + 1, seconds + 5)
    starts = [effect.at for effect in effects.all("start")]
    # A start at the very end of the time belongs to the next one.
    count = sum(1 for at in starts if at < first + seconds - 0.5 / rate)
    gaps = [later - earlier for earlier, later in pairwise(starts)]
    print(f"{count} starts in {seconds} s, {min(gaps):.2f} to {max(gaps):.2f} s apart")
    assert count == pytest.approx(seconds * rate, rel=0.05)
