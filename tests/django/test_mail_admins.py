"""Django mails dead jobs to the admins, with its own log handler."""

import logging

import django
import pytest
from django.core import mail
from django.test.utils import override_settings
from django.utils.log import AdminEmailHandler

from forebay.django import app
from tests.support.engine import connect

ADMINS = ["ops@example.com"] if django.VERSION >= (6, 0) else [("Ops", "ops@example.com")]


@pytest.fixture
def outbox(project, monkeypatch):
    """The mails that were sent."""
    monkeypatch.setattr(mail, "outbox", [], raising=False)
    handler = AdminEmailHandler()
    handler.setLevel(logging.ERROR)
    log = logging.getLogger("forebay")
    log.addHandler(handler)
    backend = "django.core.mail.backends.locmem.EmailBackend"
    with override_settings(ADMINS=ADMINS, EMAIL_BACKEND=backend):
        yield mail.outbox
    log.removeHandler(handler)


def test_a_dead_job_is_a_mail_with_its_traceback(project, outbox):
    """
    One mail, for the death and for no earlier attempt; the traceback begins with the project's
    code.
    """
    from tests.support.django_project.jobs import send_welcome

    with connect(project) as conn:
        send_welcome.enqueue(conn, user_id=-1)
        send_welcome.using(max_attempts=9).enqueue(conn, user_id=-2)
    app.run_worker(queues={"mail": 1}, until_idle=True)
    (sent,) = outbox
    assert "ERROR" in sent.subject
    assert "(send_welcome), attempt 1 of 1, failed" in sent.subject
    assert "\n" not in sent.subject
    assert "ValueError" in sent.body
    trace = sent.body.split("Traceback (most recent call last):")[1]
    assert "in send_welcome" in trace
    assert "forebay/worker" not in trace
