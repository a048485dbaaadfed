"""Each attempt whose handler ran has a duration, whichever way its end is written."""

import json

import pytest

import forebay
from forebay.config import Settings, WorkerSettings
from tests.support.durations_app import SORTS, app
from tests.support.engine import one
from tests.support.fix_worker import run_until_idle, running
from tests.support.waiting import wait_for, wait_for_async
from tests.support.worker_process import FAST

pytestmark = pytest.mark.anyio

FATES = ("returns", "fails", "dies", "snoozes")


def enqueue_all(conn, *, fates=FATES) -> None:
    for fate in fates:
        for kind in SORTS:
            one(conn, "select forebay.enqueue(%s, %s::jsonb)", kind, json.dumps({"fate": fate}))


def counted(database) -> dict[str, tuple[int, int]]:
    """Return by kind how many attempts ended, and how many durations there are."""
    found: dict[str, tuple[int, int]] = {}
    for each in forebay.Client(database).stats():
        ended = each.done + each.failed + each.dead + each.snoozed + each.lost + each.cancelled
        before = found.get(each.kind, (0, 0))
        found[each.kind] = (before[0] + ended, before[1] + sum(each.durations))
    return found


async def test_each_path_of_settlement_records_a_duration(conn, database):
    """Done, with a result, failed, dead, snoozed, in a transaction, in a batch, of a subject."""
    app._internals.use(dsn=database, settings=Settings(worker=WorkerSettings(**FAST)))
    enqueue_all(conn)
    for fate in ("returns", "dies"):
        one(conn, "select forebay.enqueue('batch', %s::jsonb)", json.dumps({"fate": fate}))
        one(
            conn,
            "select forebay.upsert_subject('subject', %s, %s::jsonb, 'subjects')",
            fate,
            json.dumps({"fate": fate}),
        )
    await run_until_idle(app)
    found = counted(database)
    assert {kind: pair for kind, pair in found.items() if pair[0] != pair[1]} == {}
    # Returns, fails twice, dies, snoozes and returns.
    assert {kind: found[kind][0] for kind in SORTS} == dict.fromkeys(SORTS, 6)
    assert (found["batch"][0], found["subject"][0]) == (2, 2)


@pytest.mark.slow
def test_each_path_through_a_child_process_records_a_duration(conn, database, workers):
    """Also of one that killed its process."""
    workers.start(app="tests.support.durations_app:app", processes=1)
    enqueue_all(conn)
    one(conn, "select forebay.enqueue('simple-plain', '{\"fate\": \"kills\"}', max_attempts => 1)")
    jobs = (len(FATES) + 2) * len(SORTS)
    wait_for(lambda: sum(pair[0] for pair in counted(database).values()) > jobs, 30)
    assert {k: pair for k, pair in counted(database).items() if pair[0] != pair[1]} == {}


async def test_a_released_job_has_no_duration(conn, database):
    """It comes back as if it had not been claimed."""
    app._internals.use(dsn=database, settings=Settings(worker=WorkerSettings(**FAST)))
    one(conn, "select forebay.enqueue('no-such-kind', '{}')")
    async with running(app, grace_seconds=0.0):
        await wait_for_async(lambda: one(conn, "select count(*) from forebay.settlement"))
    assert one(conn, "select count(*) from forebay.settlement, unnest(millis) m where m > 0") == 0
