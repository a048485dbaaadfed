"""Dropping a queue: what waits is cancelled, its groups are closed, and its settings are gone."""

import json

import pytest

from tests.support.engine import (
    Reader,
    connect,
    depth,
    enqueue,
    enqueue_many,
    one,
    open_group,
    sqlstate,
    state,
)
from tests.support.mutant import break_function, violation

#: Tables with settings of queues.
SETTINGS = (
    "queue_limits",
    "key_limits",
    "queue_shards",
    "key_pause",
    "queue_attempts",
    "dead_retention",
    "queue_notices",
    "applied_setting",
    "kind_queue",
)
SET = """
select forebay.limit_queue('mail', max_waiting => 100, rate => 5),
       forebay.limit_key('mail', 'customer', rate => 1),
       forebay.shard_queue('mail', 4),
       forebay.pause_key('mail', ordering_key => 'k'),
       forebay.pause_key('mail', limit_key => 'k'),
       forebay.set_max_attempts('mail', 3),
       forebay.set_notices('mail', true),
       forebay.keep_dead('mail', 7);
insert into forebay.applied_setting values ('mail', 'rate', '5', 'shop', now());
insert into forebay.kind_queue (kind, queue, recorded_at, recorded_by) values ('send', 'mail',
    now(), 'w');
"""


def drop(conn, **options) -> dict:
    """Drop the queue; return what that did."""
    names = "".join(f", {name} => %s" for name in options)
    query = f"select to_jsonb(d) from forebay.drop_queue('mail'{names}) d"
    return one(conn, query, *options.values())


def finish_closing(conn) -> None:
    """Do all steps of closing groups."""
    while one(conn, "select forebay.close_groups()"):
        pass


def rows(conn, table: str) -> int:
    """Count the rows of a table for the queue."""
    return one(conn, f"select count(*) from forebay.{table} where queue = 'mail'")


def test_a_dropped_queue_leaves_nothing_to_run_and_no_setting(database, conn):
    """Jobs of other queues, and their settings, stay; so do dead letters."""
    conn.execute(SET)
    conn.execute(SET.replace("'mail'", "'other'").replace("'send'", "'write'"))
    open_group(conn, "mail", "audit", "beginning")
    with Reader(database, "mail", "audit") as reader:
        conn.execute("select forebay.resume_key('mail', ordering_key => 'k')")
        enqueue(conn, queue="mail", kind="bad")
        (batch,) = reader.claim_all()
        assert reader.settle(batch.claim_no, ended=[{"offset": 1, "outcome": "dead"}])
        conn.execute("select forebay.close_lease_v1(%s)", [reader.lease_id])
    jobs = [enqueue(conn, queue="mail") for _ in range(3)]
    jobs.append(enqueue(conn, queue="mail", delay="1 hour"))
    jobs.append(enqueue(conn, queue="mail", limit_key="customer"))
    kept = enqueue(conn, queue="other")
    for queue, delay in [("mail", 0), ("mail", 3600), ("other", 3600)]:
        row = {"kind": "crawl", "queue": queue, "subject": f"s{delay}", "delay": delay}
        conn.execute("select from forebay.push_subjects(%s)", [json.dumps([row])])
    before = drop(conn, dry_run=True)
    assert (before["cancelled"], before["subjects"]) == (5, 2)
    assert rows(conn, "queue_limits") == 1
    done = drop(conn)
    assert done == before
    assert done["settings"] == [
        "limits",
        ("key limits"),
        "shards",
        "paused keys",
        "max attempts",
        "dead letters",
        "notices",
        "declared",
        "kinds",
        "subjects",
    ]
    finish_closing(conn)
    assert done["groups"] == ["audit"]
    assert {table: rows(conn, table) for table in SETTINGS} == dict.fromkeys(SETTINGS, 0)
    others = "select count(*) from forebay.queue_limits where queue = 'other'"
    assert one(conn, others) == 1
    assert one(conn, "select count(*) from forebay.dead_letter where queue = 'mail'") == 1
    assert state(conn, kept) == "ready"
    event = "select count, new -> 'groups' from forebay.event where act = 'queues.drop'"
    assert conn.execute(event).fetchall() == [(5, ["audit"])]
    # A worker that serves it again gets only what is enqueued from now on.
    later = enqueue(conn, queue="mail")
    with Reader(database, "mail") as reader:
        conn.execute("select forebay.promote_v1()")
        assert [batch.job_ids for batch in reader.claim_all()] == [[later]]
    assert set(jobs).isdisjoint([later])


def test_a_queue_that_was_never_served_is_dropped_too(database, conn):
    """Its jobs are cancelled; the implied group stays, and is not paused any more."""
    enqueue(conn, queue="mail")
    conn.execute("select forebay.pause_queue('mail')")
    assert drop(conn)["cancelled"] == 1
    later = enqueue(conn, queue="mail")
    with Reader(database, "mail") as reader:
        assert [batch.job_ids for batch in reader.claim_all()] == [[later]]


def refused_while_served(database: str) -> None:
    """Nothing changes while a worker has jobs of the queue; with force its jobs finish."""
    with connect(database) as conn, Reader(database, "mail") as reader:
        running, waiting = (enqueue(conn, queue="mail") for _ in range(2))
        batch = reader.claim(1)
        assert sqlstate(conn, "select forebay.drop_queue('mail')") == "JQ017"
        assert one(conn, "select count(*) from forebay.tombstone") == 0
        assert drop(conn, force=True) == {
            "cancelled": 1,
            "running": 1,
            "groups": ["default"],
            "subjects": 0,
            "settings": [],
        }
        assert reader.claim_ready().jobs == []
        reader.finish(batch)
        finish_closing(conn)
        assert one(conn, "select count(*) from forebay.queue_group where not is_implied") == 0
        assert depth(conn, "mail").get("default", (0, 0, 0))[1] == 0
        assert running < waiting


def test_a_queue_that_workers_serve_is_not_dropped(database):
    """Unless it is forced."""
    refused_while_served(database)


def test_without_the_look_at_the_workers_it_would_be(database):
    """The condition is what refuses it."""
    break_function(database, "drop_queue", ("v_state.served is not null and", "false and"))
    with violation():
        refused_while_served(database)


def test_the_token_is_that_of_a_truncation(conn):
    """More jobs than those of the dry run refuse the drop, and nothing is changed."""
    conn.execute("select forebay.limit_queue('mail', rate => 5)")
    enqueue(conn, queue="mail")
    query = "select token from forebay.plan_change('truncate', '{\"queue\": \"mail\"}') limit 1"
    token = one(conn, query)
    enqueue_many(conn, [{"kind": "work", "queue": "mail"} for _ in range(20)])
    assert sqlstate(conn, "select forebay.drop_queue('mail', %s)", token) == "JQ042"
    assert rows(conn, "queue_limits") == 1
    assert drop(conn, token=one(conn, query))["cancelled"] == 21


@pytest.mark.parametrize(
    ("queue", "code"), [("nowhere", "JQ014"), (None, "JQ001"), ("forebay.deliver", "JQ001")]
)
def test_what_cannot_be_dropped(conn, queue, code):
    """A queue that does not exist, and those of Forebay."""
    assert sqlstate(conn, "select forebay.drop_queue(%s)", queue) == code
