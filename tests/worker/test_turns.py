"""Short calls that a child process gets several at a time: each starts once, or is taken back."""

import os
import random
import signal
import time
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock, Mock

import pytest

import forebay
from forebay.config import WorkerSettings
from forebay.worker.run._turns import Turns
from forebay.worker.run.children import Children
from tests.support.engine import depth, enqueue_many, one, state
from tests.support.waiting import wait_for
from tests.support.worker_process import send_signal
from tests.support.writers import for_seconds
from tests.unit.test_call_queue import CallQueue, held

APP = "tests.support.turns_app:app"
WARM = 80
MANY = 400
KINDS = ["short", "short_in_thread"]


def put(
    conn, kind: str, first: int, count: int, *, attempts: int = 1, **special: dict
) -> dict[int, int]:
    """Enqueue jobs at once; return their ids by entry. ``special``: further arguments, by ``e<entry>``."""
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
    """A worker of two processes that knows how short the handlers of a kind are."""

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
    The calls that were sent to the process before it are done once, those after it run in another process at their first attempt.
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
    The slow handler ends when all others have ended: those that were sent with it run in another process.
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
def test_a_process_that_stood_still_is_not_mistaken_for_the_next_one(
    conn, workers, effects, warm, kind
):
    """
    It stands still before its first call, so another process gets its calls. It continues while the other one runs them.
    """
    warm(kind)
    frozen = {effect.pid for effect in effects.all("end")}
    for pid in frozen:
        os.kill(pid, signal.SIGSTOP)
    try:
        jobs = put(conn, kind, WARM, MANY)
        wait_for(lambda: len(effects.all("start")) > WARM, 30, lambda: workers.logs)
    finally:
        for pid in frozen:
            os.kill(pid, signal.SIGCONT)
    jobs |= put(conn, kind, WARM + MANY, MANY)
    wait_for(lambda: waiting(conn) == 0, 60, lambda: workers.logs)
    assert {state(conn, job) for job in jobs.values()} == {"done"}
    assert effects.entries("end") == set(range(WARM + 2 * MANY))
    assert set(effects.count("start").values()) == {1}
    assert "ERROR" not in workers.logs


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_processes_that_are_killed_and_frozen_lose_no_call(
    conn, workers, effects, warm, kind, seed, is_long
):
    """
    Every call that counts as done has run to its end, and only calls that ran in a process that was killed run again.
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


@pytest.fixture
def kind():
    app = forebay.App()

    @app.job(name="work")
    def work() -> None:
        """Do nothing."""

    return app.kinds.get("work")


def turns(
    queue: CallQueue, concurrency: int, *, children: Any = None, reporter: Any = None
) -> Turns:
    """Return the messages of a worker, without processes."""
    slots = SimpleNamespace(concurrency=concurrency, reserved=0, busy=concurrency)
    nothing = lambda *_: None  # noqa: E731
    return Turns(
        children, slots, queue, reporter, group="default",
        on_done=nothing, on_put_back=nothing, on_free=nothing, on_progress=nothing,
    )  # fmt: skip


def filled(kind, count: int) -> CallQueue:
    """Return a queue of jobs of one claim."""
    queue = CallQueue()
    batch = held(0, 1).batch
    for number in range(count):
        job = held(number, 1)
        job.batch = batch
        queue.append(kind, job, None)
    return queue


@pytest.mark.parametrize(
    ("count", "slots", "mean_seconds", "taken"),
    [
        (200, 4, 0.00001, 50),  # the share of a slot
        (1000, 4, 0.00001, 64),  # the most of one message
        (1000, 4, 0.001, 5),  # 5 ms
        (1000, 4, 0.003, None),
        (1000, 4, None, None),
        (4, 4, 0.00001, None),
        (5, 4, 0.00001, 2),
    ],
)
def test_a_message_has_a_share_of_short_calls(kind, count, slots, mean_seconds, taken):
    """
    No slot is without a call because of it, and it lasts about 5 ms; a call whose duration is not known is sent alone.
    """
    queue = filled(kind, count)
    first = queue.pop()[1][0]
    helds = turns(queue, slots).take(kind, first, mean_seconds)
    assert (None if helds is None else len(helds)) == taken
    if helds is not None:
        assert [job.row.seq for job in helds] == list(range(taken))
    assert queue.jobs == count - (taken or 1)


def test_calls_that_are_put_back_are_the_next_ones(kind):
    """
    In their order, before all others of their priority.
    """
    queue = filled(kind, 5)
    helds = [queue.pop()[1][0] for _ in range(3)]
    queue.put_back(kind, helds)
    assert queue.jobs == 5
    assert [queue.pop()[1][0].row.seq for _ in range(5)] == [0, 1, 2, 3, 4]
    assert queue.jobs == queue.size == 0


def test_calls_of_other_kinds_and_claims_are_left(kind):
    """
    A message has jobs of one kind and one claim.
    """
    queue = CallQueue()
    jobs = [held(number, 1) for number in range(3)]
    jobs[1].batch = jobs[0].batch
    for job in jobs:
        queue.append(kind, job, None)
    first = queue.pop()[1][0]
    helds = turns(queue, 1).take(kind, first, 0.00001)
    assert helds is not None
    assert [job.row.seq for job in helds] == [0, 1]
    assert queue.jobs == 1


@pytest.mark.anyio
async def test_an_error_of_the_library_releases_the_jobs_of_its_message_only(kind):
    """
    The worker cannot read an answer, after it has taken back the last two of three calls. These wait for their turn as before.
    """
    queue = filled(kind, 5)
    helds = [queue.pop()[1][0] for _ in range(3)]
    for number, job in enumerate(helds):
        job.row.offset = number
    reporter, child = Mock(), AsyncMock()
    child.send_in_turn = Mock()
    child.take_back = Mock(return_value=2)
    child.done_records = Mock(return_value=[])
    children = AsyncMock()
    children.leave = Mock()
    children.take = AsyncMock(return_value=child)
    messages = turns(queue, 1, children=children, reporter=reporter)

    async def answer():
        (message,) = messages._messages
        message._take_back(child)
        raise RuntimeError("a bug")

    child.answer = answer
    await messages.run(kind, helds)
    assert [call.args[0] for call in reporter.finish.call_args_list] == helds[:1]
    assert [queue.pop()[1][0].row.seq for _ in range(4)] == [1, 2, 3, 4]
    children.leave.assert_called_once_with(child, keep=False)
    child.kill.assert_awaited()


@pytest.mark.anyio
async def test_a_taken_child_has_one_call():
    """
    Two calls concern the same job: the first was taken back and is not answered yet. Each gives back its own process.
    """
    children = Children(None, WorkerSettings(), lambda *_: None)
    first, second = Mock(), Mock()
    first.process.returncode = second.process.returncode = None
    children._keep(first)
    assert await children.take(7) is first
    children._keep(second)
    assert await children.take(7) is second
    assert children.running_job_ids() == [7, 7]
    children.leave(first, keep=True)
    assert await children.take(8) is first
    assert sorted(children.running_job_ids()) == [7, 8]
