"""When the leader of maintenance looks for due jobs."""

import pytest

from forebay.worker.maintain._looks import LOOK_SECONDS_MAX, Looks

OFTEN = 0.1


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def looks(clock):
    return Looks(OFTEN, clock)


def look(looks, clock, *, found=False, due=1000.0, is_announced=True):
    """Look once; return the pause, and let it pass."""
    sleep = looks.begin(is_announced=is_announced)
    due = due if sleep is None else min(due, sleep / 1000)
    pause = looks.end(has_found=found, due_seconds=due)
    clock.now += OFTEN if pause is None else pause
    return pause


def test_pauses_become_longer_while_nothing_is_due(looks, clock):
    assert [look(looks, clock) for _ in range(5)] == [0.2, 0.4, 0.8, 0.8, LOOK_SECONDS_MAX]


def test_without_notifications_the_pause_is_the_usual_one(looks, clock):
    assert [look(looks, clock, is_announced=False) for _ in range(3)] == [None] * 3
    assert looks.begin(is_announced=False) is None


def test_it_looks_when_the_next_job_is_due(looks, clock):
    for _ in range(5):
        look(looks, clock)
    assert look(looks, clock, due=0.3) == 0.3
    assert look(looks, clock, due=0.0) == 0.02, "not at once: the clocks may differ"
    assert look(looks, clock, found=True, due=0.0) == 0.1
    assert look(looks, clock) == 0.2, "no job was late: the look before knew of it"


def test_a_job_that_nobody_announced_brings_back_the_usual_pauses_for_a_minute(looks, clock):
    for _ in range(5):
        look(looks, clock)
    assert look(looks, clock, found=True) == 0.1
    clock.now += 0.01  # The notification had 0.1 s.
    began = clock.now
    while look(looks, clock) is None:
        pass
    assert 59 < clock.now - began < 61


def test_a_notification_that_comes_a_little_later_is_not_lost(looks, clock):
    for _ in range(5):
        look(looks, clock)
    began = clock.now
    look(looks, clock, found=True)
    assert looks.after_notification() == clock.now
    assert look(looks, clock) == 0.2
    clock.now = began + 0.01


@pytest.mark.parametrize("when", ["before the look", "while it looks"])
def test_a_job_that_a_notification_led_to_was_announced(looks, clock, when):
    for _ in range(5):
        look(looks, clock)
    if when == "before the look":
        looks.after_notification()
    looks.begin(is_announced=True)
    if when == "while it looks":
        looks.after_notification()
    pause = looks.end(has_found=True, due_seconds=0.8)
    assert pause == (0.1 if when == "before the look" else 0.02), "it may have come too late"
    clock.now += 1
    assert look(looks, clock) is not None, "it would look often for a minute"


def test_many_notifications_do_not_make_it_look_all_the_time(looks, clock):
    """At most 50 in a second, and at most three tenths of the time."""
    for took, pause in ((0.0, 0.02), (0.006, 0.02), (0.06, 0.2)):
        began = clock.now
        looks.begin(is_announced=True)
        clock.now += took
        looks.end(has_found=True, due_seconds=0.0)
        assert looks.after_notification() == pytest.approx(began + pause)
        clock.now += 1
        assert looks.after_notification() == clock.now
