"""Helpers for tests of code that enqueues and handles jobs.

Was the right job enqueued? Ask inside the test's transaction, which need not commit. What does its
handler do? Perform one attempt. What do all jobs do together, with retries and delays? Run a real
worker on a database of the test's own until no job is left. ``forebay.testing.plugin`` has pytest
fixtures.

    def test_a_new_user_is_welcomed(forebay_conn):
        register(forebay_conn, "ann@example.com")
        assert_enqueued(forebay_conn, send_welcome, args={"locale": "en"})

    def test_a_welcome_is_sent():
        assert perform(send_welcome, 42).outcome == "done"

    def test_registration_from_end_to_end(forebay_dsn):
        ...
        run_until_idle(app, forebay_dsn, with_scheduled=True)

For targets of mirrors and for sinks of drains there is a contract to test, and a target and a sink
that misbehave.
"""

from forebay.testing._clock import install_clock, travel, travel_async
from forebay.testing._contexts import RecordingContext, context
from forebay.testing._enqueued import (
    assert_enqueued,
    assert_enqueued_async,
    assert_not_enqueued,
    assert_not_enqueued_async,
    enqueued,
    enqueued_async,
)
from forebay.testing._failed import JobFailed
from forebay.testing._performing import Performed, Performer, perform, perform_async
from forebay.testing._running import IdleRun, run_until_idle, run_until_idle_async
from forebay.testing._sinks import LyingSink, Received, SinkContract, make_message
from forebay.testing._targets import LyingTarget, TargetContract

__all__ = [
    "IdleRun",
    "JobFailed",
    "LyingSink",
    "LyingTarget",
    "Performed",
    "Performer",
    "Received",
    "RecordingContext",
    "SinkContract",
    "TargetContract",
    "assert_enqueued",
    "assert_enqueued_async",
    "assert_not_enqueued",
    "assert_not_enqueued_async",
    "context",
    "enqueued",
    "enqueued_async",
    "install_clock",
    "make_message",
    "perform",
    "perform_async",
    "run_until_idle",
    "run_until_idle_async",
    "travel",
    "travel_async",
]
