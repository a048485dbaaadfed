"""An outage as the parts of one worker see it together."""

import asyncio

import pytest

from forebay.errors import DatabaseUnavailable
from forebay.worker.ground.outage import Outage

pytestmark = pytest.mark.anyio


class Clock:
    """Seconds that the test sets."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def outage(clock: Clock | None = None) -> Outage:
    """Return an outage whose pauses last long, so that only a wake-up ends them in time."""
    found = Outage(clock or Clock(), lambda: 0.0)
    found.pause_seconds_max = 3600.0
    return found


async def test_the_first_part_that_is_back_wakes_the_others():
    """A pause ends long before its time."""
    found = outage()
    ends = []
    found.on_end = lambda: ends.append(True)
    for part in ("claims", "settlements"):
        found.failed(part, DatabaseUnavailable("gone"))
    pause = asyncio.create_task(found.pause(30))
    await asyncio.sleep(0)
    found.answered("claims")
    await asyncio.wait_for(pause, 5)
    assert ends == [True]


async def test_a_part_that_never_failed_wakes_no_other():
    """One part alone gets no connection: the calls of the others do not make it try more often."""
    found = outage()
    found.failed("settlements", DatabaseUnavailable("too many connections"))
    pause = asyncio.create_task(found.pause(30))
    await asyncio.sleep(0)
    found.answered("claims")
    await asyncio.sleep(0)
    assert not pause.done()
    found.wake()
    await asyncio.wait_for(pause, 5)


async def test_an_outage_is_a_line_when_it_begins_and_one_when_it_ends(caplog):
    """Not at each attempt, not by each part, and not for each wording. One that follows within a
    minute is two lines if it lasts longer than two seconds, else none.
    """
    caplog.set_level("INFO")
    clock = Clock()
    found = outage(clock)
    for problem in ("gone", "gone", "starts up", "gone"):
        for part in ("claims", "heartbeat"):
            found.failed(part, DatabaseUnavailable(problem))
    assert len(caplog.records) == 1
    found.answered("claims")
    assert len(caplog.records) == 2
    found.failed("settlements", DatabaseUnavailable("gone"))
    found.answered("settlements")
    assert len(caplog.records) == 2
    found.failed("settlements", DatabaseUnavailable("gone"))
    clock.now += 3
    found.failed("settlements", DatabaseUnavailable("gone"))
    assert len(caplog.records) == 3
    found.answered("settlements")
    clock.now += 120
    found.failed("claims", DatabaseUnavailable("gone"))
    found.answered("claims")
    assert len(caplog.records) == 6
