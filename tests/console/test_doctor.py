"""The page of the doctor: what it finds without counting all that waits, and how often it looks."""

import asyncio
import re

import pytest
from starlette.testclient import TestClient

from forebay.cli._database import run
from forebay.console import _doctor, asgi
from forebay.console._source import Source
from forebay.doctor.examine import examine
from forebay.errors import DatabaseUnavailable
from forebay.watch import operations
from tests.support.engine import Reader, enqueue, one
from tests.support.waiting import wait_for, wait_for_async

pytestmark = pytest.mark.anyio


@pytest.fixture
def browse(database):
    """A client of a console of the test's database."""
    with TestClient(asgi(database), base_url="http://127.0.0.1:8040") as client:
        yield client


def without_numbers_of_time(what: str) -> str:
    """Two runs are some milliseconds apart."""
    return re.sub(r"[0-9.]+ (s|ms|min|h)\b", "T", what)


def test_queues_are_judged_alike_by_the_sample_and_by_the_count(database, conn):
    """
    Paused, busy, never served, with an open breaker, in another group, and empty: the findings of
    the page are those of the command line.
    """
    for queue, jobs in (("never", 3), ("paused", 2), ("busy", 2), ("broken", 1), ("empty", 0)):
        one(conn, "select forebay.open_group(%s, 'default')", queue)
        for _ in range(jobs):
            enqueue(conn, queue=queue)
    one(conn, "select forebay.open_group('never', 'other')")
    conn.execute("select forebay.pause_queue('paused')")
    with Reader(database, "busy") as reader:
        reader.claim(1)
        conn.execute("update forebay.batch set claimed_at = claimed_at - interval '1 hour'")
        conn.execute(
            "insert into forebay.breaker (queue, key, failures, threshold, cooldown,"
            " cooldown_max, opened_at, probe_at, error)"
            " values ('broken', 'k', 3, 3, 60, 60, now(), now(), 'away')"
        )
        conn.execute("select forebay.heartbeat_v1(array[%s::bigint])", [reader.lease_id])
        data = run(database, operations.measurements())
        counted = asyncio.run(examine(database))
        judged = asyncio.run(examine(database, data=data))
    found, expected = (
        [
            (one.check, one.level, without_numbers_of_time(one.what), one.remedy, one.facts)
            for one in findings
            if one.check in ("queues", "unserved")
        ]
        for findings in (judged, counted)
    )
    assert found == expected
    assert len(found) == 4


def test_viewers_share_a_run_and_see_how_old_it_is(database, conn, browse, monkeypatch):
    """
    Many readers at once cause one run; ten seconds later there is another one, beside the page. The
    comparison of the schema is made once, and kept.
    """
    runs = {"examine": 0, "compare": 0}

    def counted(name):
        real = getattr(_doctor, name)

        async def called(*arguments, **options):
            runs[name] += 1
            return await real(*arguments, **options)

        monkeypatch.setattr(_doctor, name, called)

    counted("examine")
    counted("compare")
    first = browse.get("/main/doctor")
    assert "The checks ran" in first.text
    for _ in range(5):
        assert browse.get("/main/doctor").status_code == 200
    wait_for(lambda: "objects match the migrations" in browse.get("/main/doctor").text, 20)
    assert "the schema was compared with the migrations" in browse.get("/main/doctor").text
    assert runs["compare"] == 1
    seen = runs["examine"]
    assert seen <= 3  # and once more for the comparison
    monkeypatch.setattr(_doctor, "_SECONDS", 0.0)
    monkeypatch.setattr(_doctor, "_SHARE", 1e9)
    browse.get("/main/doctor")
    wait_for(lambda: browse.get("/main/doctor") and runs["examine"] > seen, 20)
    assert runs["compare"] == 1


async def test_after_an_act_it_looks_again(database, conn):
    """
    A queue that a person has just resumed is not shown as paused.
    """
    enqueue(conn, queue="mail")
    one(conn, "select forebay.open_group('mail', 'default')")
    conn.execute("select forebay.pause_queue('mail')")
    source = Source("main", database)
    try:
        before = await source.doctor.examined()
        assert any("paused" in one.what for one in before.found)
        conn.execute("select forebay.resume_queue('mail')")
        source.forget()
        after = await source.doctor.examined()
        assert not any("paused" in one.what for one in after.found)
        await wait_for_async(lambda: source.doctor._objects is not None, 20)
    finally:
        await source.close()


def test_a_database_without_the_schema_has_a_doctor_too(empty_database):
    """
    It says that the schema is missing; other pages only say that they cannot be.
    """
    with TestClient(asgi(empty_database), base_url="http://127.0.0.1:8040") as client:
        page = client.get("/main/doctor")
        assert page.status_code == 200, page.text
        assert "state-error" in page.text


async def test_a_database_that_is_away_is_an_error():
    source = Source("main", "postgresql://nobody@127.0.0.1:1/none")
    with pytest.raises(DatabaseUnavailable):
        await source.doctor.examined()
    await source.close()
