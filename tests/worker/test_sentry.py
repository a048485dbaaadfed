"""Sentry reports dead jobs, without a line of code for it."""

import json
import os
import subprocess
import sys

import pytest

from tests.support.engine import enqueue

pytest.importorskip("sentry_sdk", reason="sentry-sdk is part of the extra dev")

SHOP = """
import json

import sentry_sdk
from sentry_sdk.transport import Transport

import forebay


class Recorder(Transport):
    def capture_envelope(self, envelope):
        event = envelope.get_event()
        if event is not None:
            with open("events", "a") as file:
                print(json.dumps(event, default=str), file=file)


sentry_sdk.init(dsn="http://key@localhost/1", transport=Recorder)

app = forebay.App()
NOW = forebay.RetryPolicy(strategy="fixed", base_seconds=0.001, cap_seconds=0.001, max_attempts=2)


def find(user_id):
    raise LookupError(f"no user {user_id}")


@app.job(retry=NOW)
def send_welcome(user_id: int) -> None:
    find(user_id)


@app.job(retry=NOW)
async def snooze_forever(user_id: int) -> forebay.Outcome:
    return forebay.Retry(after=0.001, reason="not yet")


@app.job(max_attempts=1, executor="process")
def render(user_id: int) -> None:
    find(user_id)


@app.batch_job(max_attempts=1, size=3)
def index(jobs: list[forebay.Job]) -> None:
    find(0)
"""


@pytest.fixture
def events(database, conn, tmp_path):
    """Run jobs until they have ended; return the events that Sentry received, by kind."""
    (tmp_path / "shop.py").write_text(SHOP)

    def run(*kinds: str) -> dict[str, list[dict]]:
        for kind in kinds:
            enqueue(conn, kind=kind, args={"user_id": 42})
        for _ in range(5):
            subprocess.run(
                [sys.executable, "-m", "forebay", "worker", "shop:app", "--until-idle", "--dsn",
                    database],
                cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(tmp_path)}, timeout=120,
                check=True,
                capture_output=True,
            )  # fmt: skip
            waiting = "select count(*) from forebay.deferred"
            if conn.execute(waiting).fetchone() == (0,):
                break
        found: dict[str, list[dict]] = {}
        for line in (tmp_path / "events").read_text().splitlines():
            event = json.loads(line)
            found.setdefault(event["extra"]["kind"], []).append(event)
        return found

    return run


@pytest.mark.slow
def test_a_dead_job_is_an_event_with_its_traceback(events):
    """
    One event for the job, none for the attempt before: exception, frames of the application only,
    facts of the job.
    """
    found = events("send_welcome", "snooze_forever", "render", "index", "index")
    (event,) = found["send_welcome"]
    assert event["level"] == "error"
    (exception,) = event["exception"]["values"]
    assert (exception["type"], exception["value"]) == ("LookupError", "no user 42")
    frames = exception["stacktrace"]["frames"]
    assert [frame["function"] for frame in frames] == ["send_welcome", "find"]
    assert event["logger"] == "forebay.worker"
    extra = event["extra"]
    assert (extra["attempt"], extra["max_attempts"], extra["outcome"]) == (2, 2, "dead")
    assert (extra["queue"], extra["job_id"]) == ("default", 1)

    (event,) = found["snooze_forever"]
    assert "exception" not in event
    assert "(snooze_forever), %s, failed%s and is a dead letter now" in event["logentry"]["message"]
    assert event["logentry"]["params"][-1] == "Retry: not yet"

    (event,) = found["render"]
    cause, exception = event["exception"]["values"]
    assert (exception["type"], exception["value"]) == ("LookupError", "no user 42")
    assert "in render" in cause["value"]
    assert "in find" in cause["value"]

    # Sentry drops repetitions of one exception.
    assert [event["exception"]["values"][-1]["value"] for event in found["index"]] == ["no user 0"]
