"""Helpers for tests of code that enqueues and handles jobs.

Two questions: was the right job enqueued, and what does it do when it runs? Answer the first inside
the test's transaction, which need not commit. Answer the second on a separate database, where a real
worker runs until no job is left. ``forebay.testing.plugin`` has pytest fixtures.

    def test_a_new_user_is_welcomed(forebay_conn):
        register(forebay_conn, "ann@example.com")
        assert_enqueued(forebay_conn, send_welcome, args={"locale": "en"})

    def test_a_welcome_is_sent(forebay_dsn):
        send_welcome.enqueue(...)
        run_until_idle(app, forebay_dsn)

For targets of mirrors there is a contract to test, and a target that misbehaves.
"""

from forebay.testing._enqueued import (
    assert_enqueued,
    assert_enqueued_async,
    assert_not_enqueued,
    assert_not_enqueued_async,
    enqueued,
    enqueued_async,
)
from forebay.testing._running import run_until_idle, run_until_idle_async
from forebay.testing._targets import LyingTarget, TargetContract

__all__ = [
    "LyingTarget",
    "TargetContract",
    "assert_enqueued",
    "assert_enqueued_async",
    "assert_not_enqueued",
    "assert_not_enqueued_async",
    "enqueued",
    "enqueued_async",
    "run_until_idle",
    "run_until_idle_async",
]
