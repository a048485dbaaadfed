"""Workers record which kind waits in which queue, and an enqueue without a queue goes there."""

import json

import pytest

import forebay
from forebay.errors import BackfillChanged
from tests.support.engine import connect, one
from tests.support.plans import pages, stated_pages, without_autovacuum

KINDS = {"mail": "post", "pay": "money", "free": "default"}


def record(conn, worker="w", **kinds):
    """Record kinds as a worker does; return those that had another queue."""
    return conn.execute(
        "select * from forebay.record_kinds_v1(%s, %s, %s)",
        [worker, list(kinds), list(kinds.values())],
    ).fetchall()


def queues(conn):
    """Return the queue of each job, in the order of their ids."""
    return [
        queue
        for (queue,) in conn.execute(
            "select l.queue from forebay.log g join forebay.lane l using (lane)"
            " union all select l.queue from forebay.deferred d join forebay.lane l using (lane)"
        )
    ]


@pytest.mark.parametrize(
    "statement",
    [
        "select forebay.enqueue('mail')",
        "select forebay.enqueue('mail', queue => null)",
        "select forebay.enqueue('mail', delay => '1 hour')",
        "select forebay.enqueue('mail', ordering_key => 'k')",
        "select forebay.enqueue('mail', limit_key => 'k')",
        "select forebay.enqueue('mail', expires_at => now() + interval '1 hour', tag => 't')",
        """select forebay.enqueue('mail', unique_as => '{"once": "k"}')""",
        """select forebay.enqueue_unique('mail', '{}', '{"once": "k"}')""",
        """select forebay.enqueue_many('[{"kind": "mail"}]')""",
        """select forebay.enqueue_many(
            '[{"kind": "mail", "queue": null, "unique_as": {"once": "k"}}]')""",
        "select forebay.enqueue_many('mail', array['{}'::jsonb])",
        "select forebay.backfill('mail', 'select 1 as n')",
        "select forebay.backfill('mail', 'select ''{}''::jsonb as args')",
    ],
)
def test_an_enqueue_without_a_queue_goes_where_the_workers_serve_the_kind(conn, statement):
    """
    Every way to enqueue; a queue that is given stays, also `default`.
    """
    conn.execute(statement)
    assert queues(conn) == ["default"]
    conn.execute("truncate forebay.log, forebay.deferred, forebay.unique_key")
    record(conn, **KINDS)
    conn.execute(statement)
    assert queues(conn) == ["post"]


@pytest.mark.parametrize("queue", ["default", "other"])
def test_a_queue_that_is_given_stays(conn, queue):
    """
    Also the queue `default`.
    """
    record(conn, **KINDS)
    conn.execute("select forebay.enqueue('mail', queue => %s)", [queue])
    conn.execute(
        "select forebay.enqueue_unique('mail', '{}', '{\"once\": \"k\"}', queue => %s)", [queue]
    )
    conn.execute("select forebay.enqueue_many('mail', array['{}'::jsonb], queue => %s)", [queue])
    jobs = json.dumps([{"kind": "mail", "queue": queue}])
    conn.execute("select forebay.enqueue_many(%s::jsonb)", [jobs])
    options = json.dumps({"queue": queue})
    conn.execute("select forebay.backfill('mail', 'select 1 as n', options => %s)", [options])
    assert queues(conn) == [queue] * 5


def test_a_bulk_of_several_kinds_goes_to_the_queue_of_each(conn):
    """
    Jobs of unknown kinds go to `default`.
    """
    record(conn, **KINDS)
    jobs = [{"kind": kind} for kind in ("mail", "unknown", "pay")] + [
        {"kind": "pay", "queue": "post"}
    ]
    conn.execute("select forebay.enqueue_many(%s::jsonb)", [json.dumps(jobs)])
    assert queues(conn) == ["post", "default", "money", "post"]


def test_the_plain_client_takes_the_queue_of_the_kind(database, conn):
    """
    A client without an app; a queue that is given stays.
    """
    record(conn, **KINDS)
    client = forebay.Client(database)
    assert (client.queue_of("mail"), client.queue_of("unknown")) == ("post", None)
    client.enqueue_now("mail")
    client.enqueue_now("mail", queue="default")
    client.enqueue_now("mail", delay=60.0)
    client.backfill("pay", "select 1 as n")
    assert client.plan_backfill("pay", "select 1 as n").queue == "money"
    assert sorted(queues(conn)) == ["default", "money", "post", "post"]


def test_a_backfill_in_chunks_stays_in_the_queue_in_which_it_began(database, conn):
    """
    And a token is that of the queue: when the kind moves, the dry run is to be repeated.
    """
    record(conn, **KINDS)
    client = forebay.Client(database)
    token = client.plan_backfill("mail", "select 1 as n").token
    query = "select n from generate_series(1, 4) n"

    def move(progress):
        if progress.jobs_done == 2:
            record(conn, mail="other")

    client.backfill("mail", query, chunk=2, key="n", progress=move)
    assert queues(conn) == ["post"] * 4
    with pytest.raises(BackfillChanged):
        client.backfill("mail", "select 1 as n", token=token)


def test_a_restart_writes_nothing_and_the_last_worker_is_right(conn):
    """
    Of two versions that disagree, the newest start wins; what changed is returned, for the worker's
    log.
    """
    assert record(conn, "first", **KINDS) == []
    written = "select array_agg((xmin, xmax, ctid)::text order by kind) from forebay.kind_queue"
    before = one(conn, written)
    assert record(conn, "second", **KINDS) == []
    assert one(conn, written) == before

    assert record(conn, "second", mail="letters", pay="money") == [("mail", "letters", "post")]
    assert one(conn, "select forebay.queue_of('mail')") == "letters"
    assert one(conn, "select alternated_at from forebay.kind_queue where kind = 'mail'") is None
    assert record(conn, "first", mail="post") == [("mail", "post", "letters")]
    assert one(conn, "select alternated_at from forebay.kind_queue where kind = 'mail'") is not None


@pytest.mark.parametrize("kinds", [{"bad kind": "post"}, {"mail": ""}, {"mail": "a b"}])
def test_a_bad_name_is_refused(conn, kinds):
    """
    And nothing is written.
    """
    with pytest.raises(Exception, match="not a name") as refused:
        record(conn, good="post", **kinds)
    assert refused.value.sqlstate == "JQ001"
    assert one(conn, "select count(*) from forebay.kind_queue") == 0


def test_an_enqueue_with_a_queue_does_not_read_the_kinds(database, conn):
    """
    Not one page more than before, whatever the kinds; without a queue it is one probe of the index.
    """
    without_autovacuum(database)
    with connect(database) as other:
        other.execute("set lock_timeout = '50ms'")
        conn.execute("begin")
        conn.execute("lock table forebay.kind_queue in access exclusive mode")
        other.execute("select forebay.enqueue('mail', queue => 'post')")
        other.execute("select forebay.enqueue_many('mail', array['{}'::jsonb], queue => 'post')")
        with pytest.raises(Exception, match="lock timeout"):
            other.execute("select forebay.enqueue('mail')")
        conn.execute("rollback")


def test_a_lookup_is_one_probe_among_many_kinds(database, conn):
    """
    10,000 kinds, no statistics.
    """
    without_autovacuum(database)
    record(conn, **{f"k{number}": "post" for number in range(10_000)})
    stated = stated_pages()
    conn.execute("select forebay.queue_of('k1')")
    assert pages(conn, "select forebay.queue_of('k777')", []) <= stated["queue_of"][""]
    for _ in range(50):
        conn.execute("select forebay.enqueue('k1', queue => 'post')")
    named = min(pages(conn, "select forebay.enqueue('k7', queue => 'post')", []) for _ in range(9))
    asked = min(pages(conn, "select forebay.enqueue('k7')", []) for _ in range(9))
    print(f"pages: {named} with a queue, {asked} without")
    assert asked <= named + 5
    many = [json.dumps([{"kind": "k7", **given}] * 20) for given in ({"queue": "post"}, {})]
    named, asked = (
        min(pages(conn, "select forebay.enqueue_many(%s::jsonb)", [jobs]) for _ in range(9))
        for jobs in many
    )
    print(f"pages of 20 jobs: {named} with a queue, {asked} without")
    assert asked <= named + 20 * 5
    call = "select forebay.record_kinds_v1('w', array['k5', 'k6'], array['post', 'post'])"
    conn.execute(call)
    allowed = stated["record_kinds_v1"][""] + 2 * stated["record_kinds_v1"]["kind"]
    assert pages(conn, call, []) <= allowed
