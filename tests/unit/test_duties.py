"""The schedule of maintenance: small steps in turn, more at once while there is more, and what
is reported.
"""

import itertools
import logging
import time

import pytest

from forebay.errors import DatabaseUnavailable
from forebay.worker.maintain import _duties
from forebay.worker.maintain._duties import Duty, Schedule

pytestmark = pytest.mark.anyio

LOG = logging.getLogger("tests.duties")


class Report:
    """Keeps what a schedule reports."""

    def __init__(self):
        self.said = []

    async def __call__(self, name, seconds, error):
        self.said.append((name, seconds is not None, error))


def made(*duties, report=None) -> Schedule:
    return Schedule(duties, report or Report(), LOG)


def doing(done, *, has_more=lambda: False):
    async def step(duty):
        done.append(duty.name)
        return has_more()

    return step


async def test_duties_with_a_backlog_take_turns_and_urgent_ones_go_between():
    """No duty waits for the end of the backlog of another, and promotion waits for one step at
    most.
    """
    done = []
    always = doing(done, has_more=lambda: True)
    schedule = made(
        Duty("a", 60, always),
        Duty("b", 60, always),
        Duty("promote", 0.0, doing(done), is_urgent=True),
    )
    for _ in range(12):
        await schedule.run_next()
    assert done[:6].count("promote") == 3
    assert [name for name in done if name != "promote"] == ["a", "b"] * 3
    assert all((x == "promote") != (y == "promote") for x, y in itertools.pairwise(done))


async def test_a_duty_that_is_done_pauses():
    done = []
    schedule = made(Duty("a", 60, doing(done)))
    await schedule.run_next()
    await schedule.run_next()
    assert done == ["a"]
    assert 50 < schedule.pause_seconds < 70


async def test_slow_steps_look_at_fewer_rows_and_quick_ones_at_more(monkeypatch):
    """Steps are bounded in time as well: the number of rows follows how long they took."""
    duty = Duty("a", 0, doing([]), 5000)
    schedule = made(duty)
    monkeypatch.setattr(_duties, "_STEP_SECONDS", -1.0)
    await schedule.run_step(duty)
    await schedule.run_step(duty)
    assert duty.rows == 1250
    monkeypatch.setattr(_duties, "_STEP_SECONDS", 1.0)
    for _ in range(5):
        await schedule.run_step(duty)
    assert duty.rows == 5000


async def test_a_duty_that_fails_is_tried_with_fewer_rows_and_reported_until_it_works(caplog):
    """It stops no other duty, and one report a minute is enough."""
    report, fails = Report(), [True]

    async def step(duty):
        if fails[0]:
            raise RuntimeError("no")
        return False

    duty = Duty("a", 1, step, 5000)
    done = []
    schedule = made(duty, Duty("b", 0.0, doing(done)), report=report)
    for _ in range(5):
        await schedule.run_step(duty)
    assert report.said == [("a", True, "no")]
    assert duty.rows == 156
    assert [record.message for record in caplog.records] == ["a failed 3 times: no"]
    await schedule.run_next()
    assert done == ["b"]
    fails[0] = False
    await schedule.run_step(duty)
    assert report.said[-1] == ("a", False, None)


async def test_a_duty_whose_pass_does_not_end_is_behind(monkeypatch, caplog):
    """It is logged once and reported, and cleared when the pass is over."""
    report, more = Report(), [True]
    duty = Duty("a", 1, doing([], has_more=lambda: more[0]), 10)
    schedule = made(duty, report=report)
    await schedule.run_step(duty)
    assert report.said == []
    duty.began_at = time.monotonic() - 1000
    for _ in range(3):
        await schedule.run_step(duty)
    assert report.said == [("a", True, None)]
    assert [record.message for record in caplog.records] == [
        "a is behind: its pass has lasted 17 min"
    ]
    more[0] = False
    await schedule.run_step(duty)
    assert report.said[-1] == ("a", False, None)
    assert duty.due_at - time.monotonic() > 3000, (
        "a pass that lasted long is followed by a long pause"
    )


async def test_a_report_that_fails_stops_nothing():
    async def report(*_):
        raise RuntimeError("gone")

    duty = Duty("a", 1, doing([]))
    await made(duty, report=report).run_step(duty)
    assert not duty.is_clear


def test_a_duty_that_may_have_work_is_due_after_its_shortest_pause():
    """Its next pauses begin short again, one after a failure stays, and a duty without a long
    pause does not change.
    """
    now = time.monotonic()
    idle = Duty("fold", 256.0, doing([]), least_seconds=2.0, due_at=now + 200, well_at=now)
    idle.hasten()
    assert (idle.due_at, idle.every_seconds) == (now + 2.0, 2.0)
    soon = Duty("fold", 256.0, doing([]), least_seconds=2.0, due_at=now + 1, well_at=now)
    soon.hasten()
    assert soon.due_at == now + 1
    failed = Duty("fold", 2.0, doing([]), least_seconds=2.0, due_at=now + 30, well_at=now)
    failed.failures = 1
    failed.hasten()
    plain = Duty("retain", 30.0, doing([]), due_at=now + 30, well_at=now)
    plain.hasten()
    assert (failed.due_at, plain.due_at) == (now + 30, now + 30)


async def test_a_duty_that_fails_by_an_outage_is_no_line_of_the_log(caplog):
    """
    The outage is logged once for all parts of the worker.
    """
    caplog.set_level("INFO")
    fails = [True]

    async def step(duty):
        if fails[0]:
            raise DatabaseUnavailable("gone")
        return False

    duty = Duty("a", 1, step, 5000)
    schedule = made(duty)
    for _ in range(5):
        await schedule.run_step(duty)
    fails[0] = False
    await schedule.run_step(duty)
    assert not caplog.records
