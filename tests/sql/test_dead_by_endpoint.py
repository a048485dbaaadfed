"""Dead letters and jobs by endpoint: counts, filters and redrives name the endpoint, never a queue
or a key of the engine.
"""

import json

import pytest

from forebay.client import Client
from forebay.model.change import JobFilter
from tests.support.delivering import bury, create_endpoint, send
from tests.support.engine import connect, enqueue, one, shift_clock, sqlstate, trim

URL = {"url": "https://a.example/hook"}


@pytest.fixture
def conn(database):
    with connect(database) as conn:
        for name in ("shop", "mail"):
            create_endpoint(conn, name, "http", URL)
        yield conn


@pytest.fixture
def client(database):
    return Client(database)


def test_the_summary_has_a_row_for_each_endpoint(database, conn, client):
    """With those that were redriven and deleted, and when the first and the last died."""
    send(conn, "shop", 3)
    send(conn, "mail")
    bury(database)
    conn.execute("select forebay.redrive(max(dead_id)) from forebay.dead_letter")
    rows = {line.endpoint: line for line in client.dead_summary()}
    assert {name: (line.kept, line.not_redriven, line.redriven) for name, line in rows.items()} == {
        "shop": (3, 3, 0),
        "mail": (1, 0, 1),
    }
    (shop,) = client.dead_summary(endpoint="shop")
    died = conn.execute(
        "select min(died_at), max(died_at) from forebay.dead_letter where limit_key = 'shop'"
    ).fetchone()
    assert (shop.oldest_at, shop.newest_at) == died
    one(conn, "select forebay.keep_dead(days => 1)")
    shift_clock(conn, 2 * 86_400)
    trim(conn)
    gone = {line.endpoint: (line.kept, line.deleted) for line in client.dead_summary()}
    assert gone == {"shop": (0, 3), "mail": (0, 1)}
    assert client.dead_summary(endpoint="shop")[0].oldest_at is None


def test_a_job_that_is_no_delivery_has_no_endpoint(database, conn, client):
    """Whatever its limit key is."""
    enqueue(conn, queue="forebay.deliver-2", limit_key="shop")
    send(conn, "shop")
    bury(database)
    assert [line.endpoint for line in client.dead_summary()] == ["shop"]
    found = client.jobs(limit=10)
    assert {job.queue: job.endpoint for job in found} == {
        "forebay.deliver-2": None,
        "forebay.deliver": "shop",
    }


def test_a_cause_is_grouped_by_endpoint(database, conn, client):
    send(conn, "shop", 2)
    send(conn, "mail")
    bury(database)
    groups = client.dead_groups()
    assert {group.endpoint: group.jobs for group in groups} == {"shop": 2, "mail": 1}
    assert len({group.cause for group in groups}) == 1
    assert [group.jobs for group in client.dead_groups(endpoint="shop")] == [2]


def test_dead_letters_are_listed_and_redriven_by_endpoint(database, conn, client):
    send(conn, "shop", 2)
    send(conn, "mail")
    bury(database)
    assert len(client.dead_letters(endpoint="shop")) == 2
    assert client.dead_letters(endpoint="no") == []
    plan = client.plan_redrive(endpoint="shop")
    assert plan.jobs == 2
    assert client.redrive_matching(endpoint="shop", token=plan.token) == 2
    assert [letter.endpoint for letter in client.dead_letters()] == ["mail"]
    act = one(conn, "select new ->> 'endpoint' from forebay.event where act = 'dead.redrive'")
    assert act == "shop"


def test_jobs_are_found_by_endpoint(conn, client):
    """In lists, searches and acts; with a queue or a limit key the filter is refused."""
    (job,) = send(conn, "shop")
    send(conn, "mail")
    which = JobFilter(endpoint="shop")
    assert [one.job_id for one in client.jobs(which=which)] == [job]
    assert [one.job_id for one in client.search_jobs(which).jobs] == [job]
    assert client.where("shop").found_as == "endpoint"
    for other in ("queue", "limit_key"):
        bad = json.dumps({"endpoint": "shop", other: "x"})
        assert sqlstate(conn, "select * from forebay.search_jobs(%s)", bad) == "JQ001"
    assert client.cancel_matching(which).taken == 1
    assert client.job(job)[0].state == "cancelled"


def test_measurements_have_the_dead_letters_and_the_breaker_of_each_endpoint(database, conn):
    send(conn, "shop", 3)
    bury(database)
    found = {
        each["endpoint"]: (each["dead"], each["breaker"], each["waiting_since"])
        for each in one(conn, "select forebay.measurements()")["endpoints"]
    }
    assert found == {"shop": (3, "closed", None), "mail": (0, "closed", None)}
    one(conn, "select forebay.redrive_endpoint('shop', 2)")
    measured = one(conn, "select forebay.measurements()")["endpoints"]
    assert {each["endpoint"]: each["dead"] for each in measured} == {"shop": 1, "mail": 0}
