"""Many short calls in child processes: each has a process of its own while it runs."""

import random
import signal
import time

import pytest

from tests.support.engine import depth, enqueue_many, one, state
from tests.support.waiting import wait_for
from tests.support.worker_process import send_signal
from tests.support.writers import for_seconds

APP = "tests.support.short_calls_app:app"
WARM = 80
MANY = 400
KINDS = ["short", "short_in_thread"]


def put(
    conn, kind: str, first: int, count: int, *, attempts: int = 1, **special: dict
) -> dict[int, int]:
    """Enqueue jobs at once; return their ids by entry. ``special``: further arguments, by
    ``e<entry>``.
    """
    entries = range(first, first + count)
    jobs = [
        {
            "kind": kind,
            "args": {"entry": entry} | special.get(f"e{entry}", {}),
            "max_attempts": attempts,
        }
        for entry in entries
    ]
    return dict(zip(entries, enqueue_many(conn, jobs), strict=True))


def waiting(conn) -> int:
    """Return how many jobs have not ended."""
    return one(conn, "select sum(ready + claimed + running)::int from forebay.depth()") or 0


@pytest.fixture
def warm(conn, workers, effects):
    """A worker of two processes that has run some jobs of a kind, so that it claims ahead."""

    def start(kind: str, **settings):
        worker = workers.start(app=APP, processes=2, **settings)
        put(conn, kind, 0, WARM)
        wait_for(lambda: len(effects.all("end")) == WARM, 30, lambda: workers.logs)
        wait_for(lambda: waiting(conn) == 0, 30, lambda: workers.logs)
        return worker

    return start


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_death_takes_the_running_call_only(conn, workers, effects, warm, kind):
    """
    The calls before it are done once, and those after it run in another process at their first
    attempt.
    """
    warm(kind)
    jobs = put(conn, kind, WARM, MANY, e200={"act": "kill"}, e300={"act": "kill"})
    wait_for(lambda: waiting(conn) == 0, 60, lambda: workers.logs)
    victims = {200, 300}
    assert {entry for entry, job in jobs.items() if state(conn, job) != "done"} == victims
    assert all(state(conn, jobs[victim]) == "dead" for victim in victims)
    rows = conn.execute("select job_id, error_type from forebay.failure").fetchall()
    assert sorted(rows) == sorted((jobs[victim], "WorkerLost") for victim in victims)
    starts = effects.count("start")
    assert set(starts.values()) == {1}
    assert {effect.attempt for effect in effects.all("end")} == {1}


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_no_call_waits_behind_a_slow_one(conn, workers, effects, warm, kind):
    """
    The slow handler ends when all others have ended: these run in another process.
    """
    warm(kind)
    others = WARM + MANY - 1
    jobs = put(conn, kind, WARM, MANY, e150={"act": "wait", "value": others})
    wait_for(lambda: len(effects.all("end")) == others + 1, 60, lambda: workers.logs)
    wait_for(lambda: waiting(conn) == 0, 30, lambda: workers.logs)
    assert {state(conn, job) for job in jobs.values()} == {"done"}
    assert effects.all("end")[-1].entry == 150
    assert set(effects.count("start").values()) == {1}


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_processes_that_are_killed_and_frozen_lose_no_call(
    conn, workers, effects, warm, kind, seed, is_long
):
    """
    Every call that counts as done has run to its end, and only calls that ran in a process that was
    killed run again.
    """
    rng = random.Random(seed)
    worker = warm(kind)
    kills, last = 0, WARM
    clock = for_seconds(60 if is_long else 10)
    while clock:
        last += len(put(conn, kind, last, 500, attempts=20))
        for pid in worker.some_children(rng):
            is_killed = rng.random() < 0.2
            kills += is_killed
            send_signal(pid, signal.SIGKILL if is_killed else signal.SIGSTOP)
        thaw_at = time.monotonic() + rng.choice([0.02, 0.06, 0.3])
        wait_for(lambda at=thaw_at: time.monotonic() >= at)
        for pid in worker.children:
            send_signal(pid, signal.SIGCONT)
        wait_for(lambda: waiting(conn) < 1000, 60, lambda: workers.logs)
    wait_for(lambda: not any(depth(conn)["default"]), 60, lambda: workers.logs)
    print(f"{last} jobs, {kills} kills")
    assert effects.entries("end") == set(range(last))
    starts = effects.count("start")
    assert starts.total() - len(starts) <= kills
    ends = effects.count("end")
    assert ends.total() - len(ends) <= kills
    assert "KeyError" not in workers.logs


@pytest.mark.slow
def test_a_timeout_and_failures_concern_their_jobs_only(conn, workers, effects, warm):
    """
    Each of them is recorded as that of a call of its own, and the calls behind it run.
    """
    kind = "short_with_timeout"
    warm(kind)
    jobs = put(
        conn,
        kind,
        WARM,
        MANY,
        e100={"act": "fail"},
        e101={"act": "fail"},
        e200={"act": "sleep", "value": 60},
        e250={"value": "not a number"},
    )
    wait_for(lambda: waiting(conn) == 0, 60, lambda: workers.logs)
    rows = conn.execute("select job_id, error_type from forebay.failure").fetchall()
    assert sorted(rows) == sorted(
        [
            (jobs[100], "ValueError"),
            (jobs[101], "ValueError"),
            (jobs[200], "forebay.errors.HardTimeout"),
            (jobs[250], "forebay.errors.InvalidJob"),
        ]
    )
    assert {entry for entry, job in jobs.items() if state(conn, job) != "done"} == {
        100,
        101,
        200,
        250,
    }
    assert set(effects.count("start").values()) == {1}


@pytest.mark.slow
def test_a_stop_releases_what_has_not_started(conn, workers, effects, warm):
    """
    Every job that started has ended, and the others are ready, at no attempt.
    """
    worker = warm("short")
    jobs = put(conn, "short", WARM, 3000)
    wait_for(lambda: len(effects.all("end")) > WARM + 200, 30, lambda: workers.logs)
    worker.terminate()
    worker.wait(20)
    started = effects.entries("start")
    assert started == effects.entries("end")
    states = {entry: state(conn, job) for entry, job in jobs.items()}
    assert {entry for entry, found in states.items() if found == "done"} == started - set(
        range(WARM)
    )
    assert set(states.values()) <= {"done", "ready"}
    assert one(conn, "select count(*) from forebay.failure") == 0
