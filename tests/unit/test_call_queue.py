"""The order of waiting calls: whose arguments are text may be passed, but not by others of their
lane.
"""

import msgspec
import pytest

import forebay
from forebay.ops.claimed import ClaimedJob
from forebay.ops.protocol import ReadyLane
from forebay.worker.ground.held import Batch, HeldJob, Lease
from forebay.worker.run._call_queue import CallQueue


@pytest.fixture
def kind():
    app = forebay.App()

    @app.job(name="work")
    async def work() -> None:
        """Do nothing."""

    return app.kinds.get("work")


def held(
    number: int, lane: int, *, is_text: bool = False, priority: int = 0, queue: str | None = None
) -> HeldJob:
    args = msgspec.Raw(b"{}") if is_text else {}
    ready = ReadyLane(1, lane, queue or f"q{lane}", priority, is_private=False, is_suspect=False)
    return HeldJob(
        ClaimedJob(number, "work", 0, args, job_id=number, size=10),
        Batch(Lease(1, float("inf")), 1, 1, {1}),
        ready,
    )


def filled(kind) -> CallQueue:
    """Two lanes: 1 has text and then a small job, 2 has small jobs."""
    queue = CallQueue()
    for number, lane, is_text in ((1, 2, False), (2, 1, True), (3, 1, False), (4, 2, False)):
        queue.append(kind, held(number, lane, is_text=is_text), None)
    return queue


def popped(call) -> int:
    return call[1][0].row.seq


def test_calls_of_several_jobs_wait_behind_text_of_their_lane(kind):
    """And pass that of another lane."""
    queue = filled(kind)
    for lane, numbers in ((1, (5, 6)), (2, (7, 8))):
        jobs = [held(number, lane) for number in numbers]
        queue.append_many(kind, jobs, [None, None])
    assert (queue.jobs, queue.size, queue.texts) == (8, 80, 1)
    assert queue.last is not None
    assert [popped(queue.pop_passing()) for _ in range(queue.passing)] == [1, 4, 7]
    assert queue.last is None
    assert [popped(queue.pop()) for _ in range(len(queue))] == [2, 3, 5]
    assert (queue.jobs, queue.size, queue.texts) == (0, 0, 0)


def test_calls_leave_in_the_order_in_which_they_came(kind):
    queue = filled(kind)
    assert (len(queue), queue.jobs, queue.size, queue.texts) == (4, 4, 40, 1)
    starts = []
    order = []
    while queue:
        starts.append(queue.starts_with_text)
        order.append(popped(queue.pop()))
    assert order == [1, 2, 3, 4]
    assert starts == [False, True, False, False]
    assert (queue.jobs, queue.size, queue.texts, queue.last) == (0, 0, 0, None)


def test_only_other_lanes_pass(kind):
    queue = filled(kind)
    assert queue.passing == 2
    assert [popped(queue.pop_passing()) for _ in range(2)] == [1, 4]
    assert queue.passing == 0
    assert [popped(queue.pop()) for _ in range(2)] == [2, 3]
    queue.append(kind, held(5, 1, is_text=False), None)
    assert queue.passing == 1


def test_dropped_calls_hold_up_no_lane(kind):
    queue = filled(kind)
    assert queue.drop(lambda held: held.row.seq in {2, 3}) == [2, 3]
    assert (len(queue), queue.jobs, queue.texts) == (2, 2, 0)
    queue.append(kind, held(5, 1, is_text=False), None)
    assert queue.passing == 3
    assert [popped(queue.pop()) for _ in range(3)] == [1, 4, 5]


def test_a_higher_priority_passes_in_the_turns_of_its_own_queue(kind):
    queue = CallQueue()
    for number, lane, name, priority in (
        (1, 1, "mail", 100),
        (2, 2, "other", 100),
        (3, 1, "mail", 100),
        (4, 3, "mail", 10),
        (5, 2, "other", 100),
        (6, 3, "mail", 10),
    ):
        queue.append(kind, held(number, lane, queue=name, priority=priority), None)
    assert [popped(queue.pop()) for _ in range(6)] == [4, 2, 6, 1, 5, 3]
    assert not queue


def test_a_higher_priority_also_passes_calls_whose_arguments_are_text(kind):
    queue = CallQueue()
    for number, lane, priority in ((1, 1, 100), (2, 1, 100), (3, 2, 10)):
        queue.append(kind, held(number, lane, is_text=True, queue="mail", priority=priority), None)
    assert [popped(queue.pop()) for _ in range(3)] == [3, 1, 2]
    assert queue.texts == 0


def test_dropped_calls_of_a_priority_leave_their_turns_to_others(kind):
    queue = CallQueue()
    for number, lane, priority in ((1, 1, 100), (2, 2, 10), (3, 1, 100), (4, 2, 10)):
        queue.append(kind, held(number, lane, queue="mail", priority=priority), None)
    assert queue.drop(lambda held: held.lane.priority == 10) == [2, 4]
    assert [popped(queue.pop()) for _ in range(len(queue))] == [1, 3]
