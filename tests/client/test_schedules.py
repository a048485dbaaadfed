"""Schedules through both clients."""

from datetime import UTC, datetime, timedelta

import pytest

import forebay
from forebay.errors import InvalidJob, ScheduleChanged, ScheduleNotFound
from tests.support.engine import one, shift_clock

pytestmark = pytest.mark.anyio

HOUR = timedelta(hours=1)


async def test_the_life_of_a_schedule(database, conn):
    client = forebay.AsyncClient(database)
    assert (
        await client.create_schedule("report", "work", "0 9 * * *", tz="Europe/Rome") == "created"
    )
    assert (
        await client.create_schedule("report", "work", "0 9 * * *", tz="Europe/Rome") == "unchanged"
    )
    made = await client.create_schedule(
        "often",
        "work",
        every=timedelta(hours=1),
        args={"a": 1},
        options={"tag": "t", "expires_in": HOUR},
        jitter=60,
        overlap="allow",
        starts_at=datetime(2026, 1, 1, tzinfo=UTC),
    )
    assert made == "created"
    found = await client.schedule("often")
    assert (found.every, found.args, found.options) == (
        3600.0,
        {"a": 1},
        {"tag": "t", "expires_in": 3600},
    )
    assert [each.name for each in await client.schedules()] == ["often", "report"]
    assert await client.pause_schedule("often", "why")
    assert (await client.schedule("often")).pause_note == "why"
    assert await client.resume_schedule("often")
    job_id = await client.run_schedule("often")
    (row,) = await client.schedule_history("often")
    assert (row.status, row.job_id, row.occurrence) == ("manual", job_id, 1)
    assert await client.schedule_history("often", before=row.scheduled_for) == []
    assert await client.drop_schedule("often")
    assert not await client.drop_schedule("often")
    for call in (
        client.schedule,
        client.run_schedule,
        client.schedule_history,
        client.preview_schedule,
    ):
        with pytest.raises(ScheduleNotFound):
            await call("often")


async def test_a_preview_is_by_the_clock_of_the_database(database, conn):
    """
    Without a start it begins now, as the database sees it; jitter is part of the start of a job.
    """
    client = forebay.Client(database)
    client.create_schedule("daily", "work", "0 9 * * *", tz="Europe/Rome", jitter=600)
    shift_clock(conn, 400 * 86_400)
    (first, second) = client.preview_schedule("daily", limit=2)
    assert timedelta(0) < first.scheduled_for - one(conn, "select forebay._now()") <= 25 * HOUR
    assert second.scheduled_for - first.scheduled_for in (23 * HOUR, 24 * HOUR, 25 * HOUR)
    assert timedelta(0) <= first.starts_at - first.scheduled_for < timedelta(minutes=10)
    begin = datetime(2028, 3, 25, tzinfo=UTC)
    found = client.preview_schedule("daily", begin, begin + 48 * HOUR)
    assert [each.scheduled_for.hour for each in found] == [8, 7]


async def test_a_backfill_needs_the_token_of_its_dry_run(database, conn):
    client = forebay.Client(database)
    client.create_schedule("hourly", "work", "0 * * * *", overlap="allow")
    end = one(conn, "select forebay._now()")
    plan = client.backfill_schedule("hourly", end - 5 * HOUR, end + 9 * HOUR)
    assert (plan.jobs, plan.is_done) == (5, False)
    with pytest.raises(ScheduleChanged):
        client.backfill_schedule("hourly", end - 4 * HOUR, end, token=plan.token)
    done = client.backfill_schedule("hourly", end - 5 * HOUR, end + 9 * HOUR, token=plan.token)
    assert (done.jobs, done.is_done) == (5, True)
    assert (
        one(
            conn, "select count(*) from forebay.log where headers ->> 'forebay-schedule' = 'hourly'"
        )
        == 5
    )
    assert client.backfill_schedule("hourly", end - 5 * HOUR, end).jobs == 0
    client.create_schedule("seconds", "work", "* * * * * *")
    with pytest.raises(InvalidJob, match="10,000"):
        client.backfill_schedule("seconds", end - 3 * HOUR, end)
    with pytest.raises(InvalidJob, match="not after"):
        client.backfill_schedule("seconds", end, end)


@pytest.mark.parametrize(
    "wrong",
    [{"cron": (
            "61 * * * "
            "*"
            )}, {"tz": "Europe/Nowhere"}, {"every": 60}, {"overlap": "x"}, {"missed": "x"},
            {"options": {"run_at": 1}},
     {"missed_max": 0}, {"jitter": -1}, {"name": "a b"}, {"starts_at": "2026-01-01"}],
)  # fmt: skip
async def test_a_bad_definition_is_refused_before_the_database(wrong):
    given = {"name": "a", "kind": "work", "cron": "* * * * *"} | wrong
    with pytest.raises(InvalidJob):
        forebay.Client("postgresql://nowhere.invalid").create_schedule(**given)
