"""Lines of the log for jobs that a claim, the sweep or a revocation made dead letters."""

import json
import logging
from typing import Any

import pytest

from forebay.db.session import Session
from forebay.errors import ForebayError
from forebay.ops.operation import Operation, nothing
from forebay.policy.cause import cause_of
from forebay.worker.process._deaths import LINES_MAX, log_deaths
from tests.support.engine import Reader, connect, enqueue, one
from tests.support.fix_worker import run_until_idle
from tests.support.waiting import wait_for_async

pytestmark = pytest.mark.anyio


async def told(database: str, call: str, **values: Any) -> list[str]:
    """Return what one call tells of dead letters."""
    reports: list[str] = []
    session = Session(database, name="test", on_deaths=reports.extend)
    try:
        await session.run(Operation(call, nothing, values))
    finally:
        await session.close()
    return reports


def deaths(caplog) -> list[logging.LogRecord]:
    return [r for r in caplog.records if getattr(r, "outcome", None) == "dead"]


async def all_expired(conn) -> None:
    await wait_for_async(
        lambda: one(conn, "select max(expires_at) < clock_timestamp() from forebay.log")
    )


@pytest.mark.parametrize("ordering_key", [None, "customer 1"])
async def test_jobs_that_a_claim_finds_expired_are_errors(app, conn, caplog, ordering_key):
    """
    One line each with the facts of the job, of ordinary and of keyed lanes.
    """

    @app.job
    async def work() -> None: ...

    caplog.set_level(logging.INFO, "forebay.worker")
    options = {"ordering_key": ordering_key} if ordering_key else {}
    ids = [work.using(expires_in=1.0, tag="t", **options).enqueue(conn) for _ in range(3)]
    await all_expired(conn)
    await run_until_idle(app)
    found = deaths(caplog)
    assert [(r.job_id, r.levelname, r.kind, r.queue, r.reason, r.tag) for r in found] == [
        (job, "ERROR", "work", "default", "expired", "t") for job in ids
    ]
    assert (
        "(work) expired before a worker started it and is a dead letter now"
        in found[0].getMessage()
    )


def test_a_muted_cause_is_no_error(caplog):
    """
    The same line at INFO.
    """
    caplog.set_level(logging.INFO, "forebay.worker")
    report = (
        '{"total": 1, "jobs": [{"job_id": 7, "kind": "work", "queue": "q", "reason": '
        '"expired", "attempt": 0,'
        f' "max_attempts": null, "tag": null, "correlation_id": null, "cause": '
        f'"{cause_of("work", "expired")}"}}]}}'
    )
    log_deaths([report], {cause_of("work", "expired")})
    (record,) = deaths(caplog)
    assert record.levelname == "INFO"
    assert record.getMessage().endswith("(this cause is muted)")


@pytest.mark.parametrize(("is_muted", "level"), [(True, "INFO"), (False, "ERROR")])
def test_the_number_of_further_deaths_is_an_error_unless_their_cause_is_muted(
    caplog, is_muted, level
):
    """
    What is not named one by one is judged by what is named. No more lines than ``LINES_MAX``,
    however many jobs are reported.
    """
    caplog.set_level(logging.INFO, "forebay.worker")
    cause = cause_of("work", "expired")
    job = {
        "job_id": 7,
        "kind": "work",
        "queue": "q",
        "reason": "expired",
        "attempt": 0,
        "cause": cause,
    }
    report = json.dumps({"total": 1000, "jobs": [job] * (LINES_MAX + 5)})
    log_deaths([report], {cause} if is_muted else set())
    *named, last = [record for record in caplog.records if record.name == "forebay.worker"]
    assert len(named) == LINES_MAX
    assert (
        last.getMessage() == f"{1000 - LINES_MAX} more jobs are dead letters now: forebay dead list"
    )
    assert last.levelname == level


def test_a_log_that_fails_harms_no_worker(monkeypatch, capsys):
    """
    A log handler may raise any exception. The claim that reported the deaths continues.
    """

    class Failing(logging.Handler):
        def emit(self, record):
            raise OSError("the disk is full")

    handler = Failing()
    logger = logging.getLogger("forebay.worker")
    logger.addHandler(handler)
    try:
        log_deaths(["not JSON"], set())
        log_deaths(
            [
                (
                    '{"total": 1, "jobs": [{"job_id": 7, "kind": "work", "queue": "q", '
                    '"reason": "expired", "attempt": 0, "cause": "c"}]}'
                )
            ],
            set(),
        )
    finally:
        logger.removeHandler(handler)
    said = capsys.readouterr().err
    assert "JSON is malformed" in said
    assert "the disk is full" in said


async def test_many_deaths_of_one_call_are_some_lines_and_a_number(app, conn, caplog):
    """
    An expired backlog does not flood the log.
    """

    @app.job
    async def work() -> None: ...

    caplog.set_level(logging.INFO, "forebay.worker")
    for _ in range(LINES_MAX + 30):
        work.using(expires_in=1.0).enqueue(conn)
    await all_expired(conn)
    # One claim takes them all, however slow the first one was.
    await run_until_idle(app, concurrency=LINES_MAX + 30)
    count = one(conn, "select count(*) from forebay.dead_letter")
    assert count == LINES_MAX + 30
    numbers = [
        r.args[0] for r in caplog.records if "more jobs are dead letters now" in r.getMessage()
    ]
    assert len(deaths(caplog)) + sum(numbers) == count
    assert len(deaths(caplog)) < count


async def test_a_job_with_the_last_worker_that_it_killed_is_told_by_the_revocation(
    database, caplog
):
    """
    With its attempt; jobs that only come back are not told.
    """
    with connect(database) as conn, Reader(database) as lost:
        killer = enqueue(conn, max_attempts=1)
        enqueue(conn, max_attempts=1)
        lost.claim()
        assert (
            await told(database, "select forebay._revoke(%(l)s, 'revoked', true)", l=lost.lease_id)
            == []
        )
        lost.open_lease()
        alone = lost.claim_ready(100)
        lost.conn.execute(
            "select forebay.start_suspect_v1(%s, %s)", [lost.lease_id, alone.claim_no]
        )
        reports = await told(
            database, "select forebay._revoke(%(l)s, 'revoked', true)", l=lost.lease_id
        )
    log_deaths(reports, ())
    (record,) = deaths(caplog)
    assert (record.job_id, record.reason, record.attempt) == (killer, "worker lost", 1)
    assert (
        "attempt 1, killed its worker each time it ran alone and is a dead letter"
        in record.getMessage()
    )


async def test_a_call_that_fails_tells_nothing(database):
    """
    Its dead letters were rolled back: what it told before it failed is forgotten.
    """
    reports: list[str] = []
    session = Session(database, name="test", on_deaths=reports.extend)
    fails = (
        "do $$ begin perform forebay._report_deaths('{1}'); raise exception using errcode = "
        "'JQ010'; end $$"
    )
    try:
        with pytest.raises(ForebayError):
            await session.run(Operation(fails, nothing, {}))
        await session.run(Operation("select 1", nothing, {}))
    finally:
        await session.close()
    assert reports == []
