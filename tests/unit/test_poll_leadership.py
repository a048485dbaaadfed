"""What the leader of polls concludes from the notifications that come, and from those that do
not.
"""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from forebay.config import WorkerSettings
from forebay.worker.claim import polling
from forebay.worker.claim.polling import PollLeadership


@pytest.fixture
def clock(monkeypatch) -> SimpleNamespace:
    clock = SimpleNamespace(now=1000.0)
    monkeypatch.setattr(polling, "time", SimpleNamespace(monotonic=lambda: clock.now))
    return clock


def leadership_of(settings: WorkerSettings) -> PollLeadership:
    session = cast("Any", SimpleNamespace(is_pooled=False))
    return PollLeadership(session, settings, 1, alone=False)


@pytest.fixture
def leadership(clock) -> PollLeadership:
    return leadership_of(WorkerSettings())


@pytest.mark.parametrize("seconds", [0.001, 0.05, 1.0, 4.0, 20.0, 60.0])
def test_producers_believe_every_sleep(clock, seconds):
    """
    A worker that was notified, or that is quiet, polls less often. Producers ignore a sleep of more
    than 70 s, because its time may be from before the clock was set back.
    """
    leadership = leadership_of(WorkerSettings(poll_seconds=seconds))
    leadership.producers_notify = True
    sleeps = [leadership.sleep_millis]
    clock.now += 5.0
    sleeps.append(leadership.sleep_millis)
    leadership.record_notification("mail")
    sleeps.append(leadership.sleep_millis)
    assert all(sleep is not None and 1000 * seconds <= sleep <= 65_000 for sleep in sleeps)
    assert leadership.poll_seconds <= max(seconds, 5.0)


def test_a_job_whose_notification_is_under_way_was_announced(leadership, clock):
    leadership.record_unannounced(["mail"])
    clock.now += 0.05
    leadership.record_notification("mail")
    clock.now += 1.0
    assert not leadership.misses_notifications
    assert leadership.poll_seconds > WorkerSettings().poll_seconds


def test_a_notification_of_another_queue_announces_nothing(leadership, clock):
    leadership.record_unannounced(["mail"])
    leadership.record_notification("other")
    assert not leadership.misses_notifications
    clock.now += 1.0
    assert leadership.misses_notifications
    assert leadership.poll_seconds == WorkerSettings().poll_seconds


def test_a_missed_notification_is_forgotten_after_a_minute(leadership, clock):
    leadership.record_unannounced(["mail"])
    clock.now += 1.0
    assert leadership.misses_notifications
    clock.now += 60.0
    assert not leadership.misses_notifications
