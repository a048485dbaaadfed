"""The polls of a worker between two of its claims, without a database."""

import asyncio
from types import SimpleNamespace

import pytest

from forebay.ops.protocol import ReadyLane
from forebay.worker.claim._ready_lanes import ReadyLanes
from forebay.worker.ground.held import Lease
from forebay.worker.ground.signals import Signals

FIRST = ReadyLane(1, 1, "default", 0, is_private=False, is_suspect=False)
SECOND = ReadyLane(1, 2, "default", 5, is_private=False, is_suspect=False)

#: The poll's answer comes only when a test allows it.
LATE = object()


class Database:
    """Answers polls, one after another; an exception is raised."""

    def __init__(self, *answers):
        self.answers = list(answers)
        self.may_answer = asyncio.Event()

    async def run(self, operation):
        answer = self.answers.pop(0)
        if answer is LATE:
            await self.may_answer.wait()
            answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


class Leadership:
    """Polls the database, as each worker does through its leadership."""

    poll_seconds = 0.05
    sleep_millis = 80

    def __init__(self, database, held):
        self.database = database
        self.held = held

    async def poll(self, groups):
        assert groups == [1]
        return await self.database.run("poll")


def ready_lanes(*answers, leads=frozenset()):
    lease = Lease(1, float("inf"))
    database = Database(*answers)
    polls = ReadyLanes(
        database,
        SimpleNamespace(groups=[1], current=lease),
        Leadership(database, leads),
        Signals(),
        {"default": 1},
    )
    return polls, lease, database


def test_a_lane_that_is_still_alone_is_claimed_from_again():
    async def story():
        polls, lease, _ = ready_lanes([FIRST], [SECOND])
        assert await polls.only_until(lease, FIRST) == polls.until > 0
        assert await polls.next(10) == [SECOND]

    asyncio.run(story())


def test_an_answer_with_other_lanes_goes_to_the_next_plan():
    async def story():
        polls, lease, database = ready_lanes([FIRST, SECOND])
        assert await polls.only_until(lease, FIRST) == 0.0
        assert database.answers == []
        assert await polls.next(10) == [FIRST, SECOND]

    asyncio.run(story())


def test_claimed_jobs_do_not_wait_for_a_late_answer():
    async def story():
        polls, lease, database = ready_lanes(LATE, [FIRST])
        assert await polls.only_until(lease, FIRST) == 0.0
        database.may_answer.set()
        assert await polls.next(10) == [FIRST]

    asyncio.run(story())


def test_claimed_jobs_are_started_although_the_poll_failed():
    async def story():
        polls, lease, _ = ready_lanes(OSError("no answer"))
        assert await polls.only_until(lease, FIRST) == 0.0
        with pytest.raises(OSError, match="no answer"):
            await polls.next(10)

    asyncio.run(story())


def test_an_answer_without_lanes_is_not_used_later():
    """Otherwise a worker that ends when it is idle would leave what its last jobs made ready."""

    async def story():
        polls, lease, _ = ready_lanes([], [FIRST])
        assert await polls.only_until(lease, FIRST) == 0.0
        assert await polls.next(10) == [FIRST]

    asyncio.run(story())


def test_a_leader_and_a_worker_without_its_lease_do_not_poll_between_claims():
    async def story():
        polls, lease, database = ready_lanes([FIRST], leads=frozenset({1}))
        assert await polls.only_until(lease, FIRST) == 0.0
        assert database.answers == [[FIRST]]
        polls, _, database = ready_lanes([FIRST])
        assert await polls.only_until(Lease(2, float("inf")), FIRST) == 0.0
        assert database.answers == [[FIRST]]

    asyncio.run(story())
