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
    """Enqueue so many jobs of each key, key by key: whoever took them in order would serve the
    first key first.
    """
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
    """Return each start with when it was over.

    A handler that never ended was over when its process was killed.
    """
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
@pytest.mark.parametrize(
    "is_long", [False, pytest.param(True, marks=pytest.mark.nightly)], ids=["short", "long"]
)
def test_five_of_a_key_at_once_over_four_processes_with_kills(
    conn, database, workers, effects, seed, is_long
):
    """
    Never more, and every job ends, though the killed hold their slots until their leases are
    revoked. In a long run three quarters of the slots are in use all the time.
    """
    slots, duration, keys = 5, 0.1, range(2)
    per_key, every, deaths = (3000, 1000, 5) if is_long else (150, 80, 2)
    one(conn, "select forebay.limit_queue('default', key_concurrency => %s)", slots)
    options = {
        "concurrency": 4,
        "lease_seconds": 10.0,
        "lease_margin_seconds": 3.0,
        "poll_seconds": 0.1,
    }
    crew = [workers.start(**options) for _ in range(4)]
    rng = random.Random(seed)
    kills: dict[int, float] = {}
    began = time.monotonic()
    # All workers are there before the jobs: on a slow machine the first of them could do all of
    # them alone.
    enqueue_keys(conn, dict.fromkeys(keys, per_key), duration)
    for death in range(1, deaths + 1):
        wait_for(
            lambda: len(effects.all("end")) >= death * every, 300, lambda: workers.logs[-5000:]
        )
        victim = rng.randrange(len(crew))
        crew[victim].kill()
        kills[crew[victim].pid] = time.monotonic()
        crew[victim] = workers.start(wait=False, **options)
    everything = {key * PER_KEY + number for key in keys for number in range(per_key)}
    wait_for(lambda: effects.entries("end") == everything, 300, lambda: workers.logs[-5000:])
    ended = sorted(effect.at for effect in effects.all("end"))
    # The last jobs of a killed worker come back long after the others have ended.
    until = ended[int(len(ended) * 0.98)]
    for member in workers.members:
        member.kill()
        kills.setdefault(member.pid, time.monotonic())
    found = spans(effects, kills)
    most = most_at_once(found)
    held = sum(options["lease_seconds"] for _, over in found if over in kills.values())
    busy = sum(over - start.at for start, over in found if over <= until)
    used = (busy + held) / (slots * len(keys) * (until - began))
    print(f"{deaths} kills, {len(ended)} jobs, {used:.2f} of the slots in use, most at once {most}")
    assert set(most.values()) == {slots}, workers.logs[-5000:]
    if is_long:
        assert used >= 0.75


@pytest.mark.slow
def test_fifty_keys_get_even_shares_of_four_processes(conn, database, workers, effects, is_long):
    """One key has a thousand times as much as most: Jain's index over the next jobs is 0.95 or
    more.
    """
    jobs, keys = (6000, 50) if is_long else (800, 20)
    one(conn, "select forebay.limit_queue('default', concurrency => 8)")
    for _ in range(4):
        workers.start(concurrency=4)
    enqueue_keys(conn, {0: 20_000} | dict.fromkeys(range(1, keys), 600 if is_long else 150), 0.02)
    # While the first key's jobs arrived, no other waited.
    before = len(effects.all("end"))
    wait_for(lambda: len(effects.all("end")) >= before + jobs, 300)
    ended = effects.all("end")[before : before + jobs]
    counts = Counter(effect.entry // PER_KEY for effect in ended)
    shares = [counts[key] for key in range(keys)]
    index = sum(shares) ** 2 / (keys * sum(share**2 for share in shares))
    print(f"{sum(shares)} jobs, {min(shares)} to {max(shares)} of a key, Jain's index {index:.4f}")
    assert index >= 0.95


@pytest.mark.slow
@pytest.mark.nightly
def test_a_rate_below_one_per_second_is_kept_over_a_minute(
    conn, database, workers, effects, is_long
):
    """
    0.2 a second from four processes that all want more; a shorter look uses 2 a second. By the
    database's clock no job is claimed before its time; in a long run all of them are started at it,
    twelve in a minute.
    """
    count, rate = (13, 0.2) if is_long else (9, 2.0)
    one(conn, "select forebay.limit_queue('default', rate => %s, burst => 1)", rate)
    for _ in range(4):
        workers.start(concurrency=4)
    began = one(conn, "select extract(epoch from clock_timestamp())::float8")
    enqueue_many(conn, [{"kind": "work", "args": {"entry": number}} for number in range(100)])
    wait_for(lambda: len(effects.all("start")) >= count, 300, lambda: workers.logs[-5000:])
    claims = conn.execute(
        (
            "select extract(epoch from b.claimed_at)::float8 - %s from forebay.batch b, "
            "unnest(b.seqs) order by 1"
        ),
        [began],
    ).fetchall()
    claimed = [at for (at,) in claims]
    gaps = [later - earlier for earlier, later in pairwise(claimed)]
    print(
        f"{len(claimed)} claims, the first after {claimed[0]:.4f} s, {min(gaps):.4f} to "
        f"{max(gaps):.4f} s apart"
    )
    assert [at for number, at in enumerate(claimed) if at < number / rate] == []
    if is_long:
        assert max(gaps) <= 1.1 / rate
