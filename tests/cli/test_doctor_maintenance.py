"""What the doctor and the log say about duties of maintenance that fail or are behind."""

import asyncio
import logging

import pytest

from forebay.db.session import Session
from forebay.worker import Maintenance
from tests.support.engine import one

FAILURES = "select count(*) from forebay.failure"


def do(dsn, name, steps=1) -> None:
    """Do some steps of a duty, as a new leader of maintenance."""

    async def run():
        session = Session(dsn, name="test")
        try:
            schedule = Maintenance(session)._schedule
            (duty,) = [duty for duty in schedule.duties if duty.name == name]
            for _ in range(steps):
                await schedule.run_step(duty)
        finally:
            await session.close()

    asyncio.run(run())


@pytest.fixture
def finding(command, database):
    """Run the doctor; return what it found about maintenance."""

    def call():
        report = command("doctor", "--dsn", database, "--json").json["findings"]
        return [item for item in report if item["check"] == "maintenance"]

    return call


def test_a_duty_that_fails_is_a_warning_and_a_finding_until_it_works(
    database, conn, finding, caplog
):
    """The other duties are done meanwhile."""
    source = one(
        conn, "select pg_get_functiondef('forebay._trim_tombstones(text, integer)'::regprocedure)"
    )
    broken = source[: source.index("AS $function$")] + "AS $$ begin perform 1 / 0; end $$"
    conn.execute(broken)
    conn.execute(
        "insert into forebay.failure (job_id, group_id, enqueued_at, attempt, failed_at, outcome)"
        " select i, 1, now(), 1, now() - interval '100 days', 'failed' from "
        "generate_series(1, 10) i"
    )
    with caplog.at_level(logging.WARNING):
        do(database, "trim tombstones", 3)
    assert "trim tombstones failed 3 times: division by zero" in caplog.text
    do(database, "trim failures")
    assert one(conn, FAILURES) == 0
    (found,) = finding()
    assert found["level"] == "warning"
    assert "trim tombstones fails since" in found["what"]
    assert "division by zero" in found["what"]
    conn.execute(source)
    do(database, "trim tombstones")
    (found,) = finding()
    assert (found["level"], found["what"]) == ("ok", "no duty fails or is behind")


def test_the_doctor_names_duties_that_are_behind_or_that_no_worker_does(conn, finding):
    """A report that is no longer renewed says that no worker does the maintenance."""
    conn.execute("select forebay.record_duty_v1('trim batches', 1000)")
    (found,) = finding()
    assert "trim batches is behind: its pass is not over after 17 min" in found["what"]
    conn.execute("update forebay.duty set recorded_at = recorded_at - interval '1 hour'")
    (found,) = finding()
    assert "Start a worker" in found["remedy"]
    conn.execute("select forebay.record_duty_v1('trim batches')")
    (found,) = finding()
    assert found["level"] == "ok"
