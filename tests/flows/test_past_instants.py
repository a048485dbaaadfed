"""An instant that lies far in the past means now: nothing expires because of it."""

import json
from datetime import UTC, datetime, timedelta

import pytest

import forebay
from forebay.errors import WaitTimeout
from tests.support.consumer import Consumer
from tests.support.engine import one, shift_clock, state
from tests.support.fix_worker import run_retries, run_until_idle
from tests.support.mutant import break_function, violation

pytestmark = pytest.mark.anyio

LONG_AGO = datetime.now(UTC) - timedelta(days=400)
MINUTE = {"expires_in": 60}


def declared(app: forebay.App, seen: list[str]):
    """Return handlers that wait for an instant in the past."""
    snoozed: list[int] = []

    @app.job()
    def flow(ctx: forebay.Context) -> None:
        ctx.step("begin", int)
        ctx.sleep("until then", until=LONG_AGO)
        seen.append("ran")

    @app.job()
    def snoozes() -> forebay.Outcome | None:
        snoozed.append(1)
        if len(snoozed) == 1:
            return forebay.Snooze(until=LONG_AGO)
        seen.append("ran")
        return None

    @app.job()
    def plain(n: int = 0) -> None:
        seen.append("ran")

    return flow, snoozes, plain


async def sleeps(app, conn, flow, snoozes, plain):
    return flow.enqueue(conn)


async def is_snoozed(app, conn, flow, snoozes, plain):
    return snoozes.enqueue(conn)


async def is_enqueued(app, conn, flow, snoozes, plain):
    return plain.using(run_at=LONG_AGO).enqueue(conn)


async def is_enqueued_with_an_expiry(app, conn, flow, snoozes, plain):
    return plain.using(run_at=LONG_AGO, **MINUTE).enqueue(conn)


async def is_unique(app, conn, flow, snoozes, plain):
    return plain.using(run_at=LONG_AGO, **MINUTE, unique=forebay.Once("k")).enqueue(conn)


async def is_one_of_many(app, conn, flow, snoozes, plain):
    plain.using(run_at=LONG_AGO, **MINUTE).enqueue_many(conn, [1])
    return one(conn, "select max(seq) from forebay.log")


async def is_backfilled(app, conn, flow, snoozes, plain):
    conn.execute("create table source as select 1 as n")
    options = json.dumps({"run_at": LONG_AGO.isoformat(), "expires_in": 60})
    query = "select * from forebay.backfill('plain', 'select n from source', %s::jsonb)"
    conn.execute(query, [options])
    return one(conn, "select max(seq) from forebay.log")


async def is_failed(app, conn, flow, snoozes, plain):
    job = plain.enqueue(conn)
    with Consumer(app.dsn) as consumer:
        assert consumer.settle("failed", consumer.take(), "bad", retry_at=LONG_AGO) == ["settled"]
    return job


async def is_rescheduled(app, conn, flow, snoozes, plain):
    job = plain.using(delay=3600).enqueue(conn)
    query = "select answer from forebay.change_jobs('reschedule', %s, %s, most => 10)"
    options = json.dumps({"run_at": LONG_AGO.isoformat()})
    one(conn, query, json.dumps({"ids": [int(job)]}), options)
    return job


async def is_rewound(app, conn, flow, snoozes, plain):
    @app.job()
    def waits(ctx: forebay.Context) -> None:
        ctx.sleep("until then", until=LONG_AGO)
        ctx.wait("never", key="k")

    job = waits.enqueue(conn)
    await run_retries(app, conn)
    one(conn, "select forebay.rewind(%s, 'until then')", job)
    forebay.signal(conn, "never", "k")
    return job


WAYS = [
    sleeps, is_snoozed, is_enqueued, is_enqueued_with_an_expiry, is_unique, is_one_of_many,
    is_backfilled, is_failed, is_rescheduled, is_rewound,
]  # fmt: skip


@pytest.mark.parametrize("way", WAYS)
async def test_an_instant_in_the_past_means_now(app, conn, way):
    """The job runs; it does not expire."""
    seen: list[str] = []
    job = await way(app, conn, *declared(app, seen))
    await run_retries(app, conn)
    await run_until_idle(app)
    assert state(conn, int(job)) == "done"
    assert one(conn, "select count(*) from forebay.dead_letter") == 0
    assert seen == ([] if way is is_rewound else ["ran"])


@pytest.mark.parametrize("attempt", ["first", "later"])
@pytest.mark.parametrize("verb", ["sleep", "wait", "taken"])
async def test_a_rest_that_is_over_counts_as_now(app, conn, verb, attempt):
    """Also in attempts that find the checkpoint: they do not look at what is left by then."""
    rests = [timedelta(seconds=-5 if attempt == "first" else 60), *[timedelta(days=-1)] * 9]
    seen: list[object] = []

    @app.job()
    async def flow(ctx: forebay.Context) -> None:
        rest = rests.pop(0)
        if verb == "sleep":
            await ctx.sleep("until due", rest)
        else:
            try:
                seen.append(await ctx.wait("approval", key=1, timeout=rest))
            except WaitTimeout as error:
                seen.append(error.seconds)
            await ctx.sleep("a while", 60)
        seen.append("end")

    job = flow.enqueue(conn)
    if verb == "taken":
        forebay.signal(conn, "approval", 1, "yes")
    for minutes in range(1, 4):
        await run_until_idle(app)
        shift_clock(conn, 61 * minutes)
    await run_until_idle(app)
    assert state(conn, int(job)) == "done"
    waited = 0.0 if attempt == "first" else 60.0
    assert seen == {"sleep": [], "wait": [waited] * 2, "taken": ["yes"] * 2}[verb] + ["end"]


async def test_a_sleep_in_the_past_would_end_the_flow(app, conn, database):
    """Its row would expire 30 days after the instant, which is long ago."""
    later = "greatest(p_run_at, forebay._now())"
    break_function(database, "_continue_job", (later, "coalesce(p_run_at, forebay._now())"))
    with violation():
        await test_an_instant_in_the_past_means_now(app, conn, sleeps)
