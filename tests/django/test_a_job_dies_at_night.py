"""A handler that fails, is retried and dies: everything that reaches an operator who has written
no code for it.
"""

import logging
from typing import Any

import pytest

from forebay import AttemptEnded, RetryPolicy
from forebay.django import app
from tests.django.test_mail_admins import outbox  # noqa: F401 - a fixture
from tests.support.engine import connect

TWICE = RetryPolicy(strategy="fixed", base_seconds=0.001, cap_seconds=0.001, max_attempts=2)


def find_user(user_id: int) -> None:
    raise LookupError(f"no user {user_id}")


@app.job(queue="night", retry=TWICE)
def close_day(user_id: int) -> None:
    find_user(user_id)


@pytest.fixture
def events(request):
    """The events that Sentry would have received, with its defaults."""
    sentry_sdk = pytest.importorskip("sentry_sdk", reason="sentry-sdk is part of the extra dev")
    from sentry_sdk.transport import Transport

    sent: list[Any] = []

    class Recorder(Transport):
        def capture_envelope(self, envelope):
            if (event := envelope.get_event()) is not None:
                sent.append(event)

    sentry_sdk.init(dsn="http://key@localhost/1", transport=Recorder)
    yield sent
    sentry_sdk.get_global_scope().set_client(None)


@pytest.mark.slow
def test_log_sentry_mail_and_listeners_report_it(project, outbox, events, caplog):  # noqa: F811
    """
    A warning for the first attempt and an error for the last one; one event and one mail, for the
    death alone, each with a traceback that begins in the handler; the listeners, the history and
    the dead letter say the same.
    """
    caplog.set_level(logging.INFO, "forebay")
    reported: list[AttemptEnded] = []
    app.on_failed(reported.append)

    with connect(project) as conn:
        job_id = close_day.using(tag="nightly").enqueue(conn, user_id=42)
        while app.client().job(job_id)[0].state != "dead":
            app.run_worker(queues={"night": 1}, until_idle=True)

    first, last = (record for record in caplog.records if getattr(record, "job_id", None) == job_id)
    assert (first.levelname, last.levelname) == ("WARNING", "ERROR")
    assert f"job {job_id} (close_day), attempt 1 of 2, failed after" in first.getMessage()
    assert "runs again" in first.getMessage()
    assert f"job {job_id} (close_day), attempt 2 of 2, failed after" in last.getMessage()
    assert (
        "is a dead letter now, no attempts are left: LookupError: no user 42" in last.getMessage()
    )
    assert (last.queue, last.attempt, last.max_attempts, last.tag) == ("night", 2, 2, "nightly")
    assert last.exc_info is not None

    (event,) = [each for each in events if each["level"] == "error"]
    (exception,) = event["exception"]["values"]
    assert (exception["type"], exception["value"]) == ("LookupError", "no user 42")
    assert [frame["function"] for frame in exception["stacktrace"]["frames"]] == [
        "close_day",
        "find_user",
    ]
    assert event["extra"]["job_id"] == job_id

    (sent,) = outbox
    assert "(close_day), attempt 2 of 2, failed" in sent.subject
    assert "in close_day" in sent.body
    assert "forebay/worker" not in sent.body.split("Traceback (most recent call last):")[1]

    assert [(each.outcome, each.job.attempt) for each in reported] == [("retried", 1), ("dead", 2)]
    (history,) = app.client().job_history(job_id)
    assert [error.message for error in history.errors] == ["no user 42"] * 2
    (letter,) = app.client().dead_letters(queue="night")
    assert (letter.job_id, letter.reason) == (job_id, "exhausted")
    (group,) = app.client().dead_groups(queue="night")
    assert (group.kind, group.error_type, group.jobs) == ("close_day", "LookupError", 1)
    assert group.dead_id == letter.dead_id
