"""The order of waiting calls: whose arguments are text may be passed, but not by others of their lane."""

import msgspec
import pytest

import forebay
from forebay.ops.protocol import ClaimedJob, ReadyLane
from forebay.worker._call_queue import CallQueue
from forebay.worker._held import Batch, HeldJob, Lease


@pytest.fixture
def kind():
    app = forebay.App()

    @app.job(name="work")
    async def work() -> None:
        """Do nothing."""

    return app.kinds.get("work")


def held(number: int, lane: int, *, is_text: bool) -> HeldJob:
    args = msgspec.Raw(b"{}") if is_text else {}
    ready = ReadyLane(1, lane, f"q{lane}", 0, is_private=False, is_suspect=False)
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
