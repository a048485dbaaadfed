"""What makes a worker ready and live, each condition by itself."""

import threading
from types import SimpleNamespace

import pytest

from forebay.config import WorkerSettings
from forebay.worker.process._health import HealthCheck


class Clock:
    now = 100.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def signals():
    """The signals of a worker that makes progress."""
    started = threading.Event()
    started.set()
    return SimpleNamespace(
        is_stopping=False,
        outage=SimpleNamespace(is_on=False),
        started=started,
        failed_claims=0,
        has_polled=True,
    )


@pytest.fixture
def leases():
    """The leases: one, confirmed now. It is trusted for 20 s."""
    return SimpleNamespace(
        current=SimpleNamespace(lost=False, trusted_until=120.0, trusted_seconds=20.0),
        trusted_seconds=20.0,
        problem="no schema",
    )


@pytest.fixture
def check(signals, leases, clock):
    settings = WorkerSettings(
        lease_seconds=30.0, lease_margin_seconds=10.0, suspect_seconds=5.0, heartbeat_seconds=1.0
    )
    check = HealthCheck(signals, settings, clock=clock)
    check.watch(leases)
    return check


def test_a_worker_that_makes_progress_is_ready(check):
    health = check.read()
    assert (health.state, health.is_live, health.is_ready, health.reasons) == (
        "running",
        True,
        True,
        (),
    )


def test_before_the_first_lease_it_starts(check, signals, leases):
    signals.started.clear()
    leases.current = None
    health = check.read()
    assert (health.state, health.is_live, health.is_ready) == ("starting", True, False)
    assert health.reasons == ("no schema",)
    leases.problem = None
    assert check.read().reasons == ("no lease",)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda s, _l: setattr(s, "is_stopping", True), "stopping"),
        (lambda s, _l: setattr(s.outage, "is_on", True), "waiting for the database"),
        (lambda s, _l: setattr(s, "failed_claims", 1), "polls or claims fail"),
        (lambda s, _l: setattr(s, "has_polled", False), "no poll yet"),
        (lambda _s, lease: setattr(lease.current, "lost", True), "no schema"),
        (
            lambda _s, lease: setattr(lease.current, "trusted_until", 109.9),
            "no heartbeat was confirmed for 10 s",
        ),
    ],
)
def test_each_condition_alone_makes_it_unready_and_not_dead(check, signals, leases, change, reason):
    change(signals, leases)
    health = check.read()
    assert health.reasons == (reason,)
    assert (health.is_ready, health.is_live) == (False, True)


def test_a_blocked_loop_is_late_at_first_and_dead_when_the_lease_is_given_up(check, clock, leases):
    for blocked, is_ready, is_live in ((4.9, True, True), (5.1, False, True), (20.1, False, False)):
        clock.now = 100.0 + blocked
        leases.current.trusted_until = clock.now + 20.0
        health = check.read()
        assert (health.is_ready, health.is_live) == (is_ready, is_live), blocked
