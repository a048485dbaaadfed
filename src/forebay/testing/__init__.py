"""For tests of code that enqueues jobs and handles them.

Two questions: was the right job enqueued, and what does it do when it runs? The first is asked
inside the test's own transaction, which never has to commit; the second on a database of its own,
where a real worker runs until nothing is left. ``forebay.testing.plugin`` has pytest fixtures.

    def test_a_new_user_is_welcomed(forebay_conn):
        register(forebay_conn, "ann@example.com")
        assert_enqueued(forebay_conn, send_welcome, args={"locale": "en"})

    def test_a_welcome_is_sent(forebay_dsn):
        send_welcome.enqueue(...)
        run_until_idle(app, forebay_dsn)

For targets of mirrors there is a contract to be tested, and one that lies.
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
