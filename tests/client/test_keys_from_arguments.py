"""Limit keys and ordering keys from arguments, which producers in SQL need not know."""

import asyncio
import json
import random
import re
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import psycopg
import pytest

import forebay
from forebay import App, Coalesce, Debounce, Job, Once
from forebay.errors import ConfigError
from forebay.ops import protocol
from forebay.testing import run_until_idle
from tests.support.engine import one

app = App()


@app.job(queue="crawl", limit_by=("host",), order_by=("host", "page"), unique_by=("host", "page"))
def fetch(host: str | None, page: int | None = None, title: str = "") -> None: ...


@app.job(queue="crawl", limit_by=["host"])
def robots(host: str = "none.org") -> None: ...


@app.subject(queue="sites", limit_by=("host",))
def visit(host: str, depth: int = 1) -> None: ...


@app.batch_job(limit_by=("anything",), unique_by=("anything",), unique=Coalesce)
def every(jobs: list[Job]) -> None: ...


@pytest.fixture
def conn(database):
    with psycopg.connect(database, autocommit=True) as conn:
        yield conn


def record(conn):
    """Record the kinds as a worker of the application does."""
    operation = protocol.record_kinds(
        "w",
        {kind.name: kind.queue for kind in app.kinds},
        (),
        {kind.name: kind.keys.as_json() for kind in app.kinds if kind.keys is not None},
    )
    conn.execute(operation.sql, operation.params)


def keys(conn):
    """Return the keys of each job, in the order of their ids."""
    return conn.execute(
        "select limit_key, ordering_key, unique_key from forebay.log"
        " where kind not like '@%' and enqueued_at is not null and args <> 'null'"
        " union all select limit_key, ordering_key, unique_key from forebay.deferred"
    ).fetchall()


FOUND = ("a.org", '["a.org",2]', 'fetch:["a.org",2]')


def test_python_makes_the_keys_before_any_worker_has_run(conn, database):
    """
    One argument is the key itself; several are the JSON of a list. Every call of Python has them.
    """
    client = app.client()
    fetch.enqueue(conn, "a.org", 2)
    fetch.enqueue_many(conn, [fetch.call("b.org")])
    client.enqueue(conn, "fetch", {"host": "c.org"})
    robots.enqueue_many(conn, ["d.org"])
    robots.enqueue(conn)
    visit.push(conn, "s1", "e.org")
    assert keys(conn) == [
        FOUND,
        ("b.org", '["b.org",null]', 'fetch:["b.org",null]'),
        ("c.org", '["c.org",null]', 'fetch:["c.org",null]'),
        ("d.org", None, None),
        ("none.org", None, None),
        ("e.org", None, None),
    ]


@pytest.mark.parametrize(
    "statement",
    [
        "select forebay.enqueue('fetch', %s)",
        "select forebay.enqueue('fetch', %s, queue => 'crawl')",
        "select forebay.enqueue('fetch', %s, queue => 'crawl', delay => '1 hour')",
        """select forebay.enqueue_many(jsonb_build_array(
            jsonb_build_object('kind', 'fetch', 'args', %s::jsonb)))""",
        """select forebay.enqueue_each(jsonb_build_array(
            jsonb_build_object('kind', 'fetch', 'args', %s::jsonb)))""",
        "select forebay.enqueue_many('fetch', array[%s::jsonb], delay => '1 min')",
        "select forebay.backfill('fetch', format($q$ select %%L::jsonb as args $q$, %s::text))",
    ],
)
def test_every_producer_in_sql_gets_the_keys_that_the_workers_declared(conn, statement):
    """
    Whatever function it calls; the queue may be given.
    """
    record(conn)
    conn.execute(statement, [json.dumps({"host": "a.org", "page": 2.0})])
    assert keys(conn) == [FOUND]


def test_the_runs_of_a_subject_have_them(conn):
    """
    With the arguments that an upsert gives the key of a subject changes.
    """
    record(conn)
    conn.execute("select forebay.push_subject('visit', 's', '{\"host\": \"a.org\"}')")
    conn.execute("select forebay.upsert_subject('visit', 's', '{\"host\": \"b.org\"}')")
    conn.execute("select forebay.upsert_subject('visit', 's', priority => 5)")
    assert keys(conn)[0] == ("a.org", None, None)
    options = conn.execute("select options from forebay.subject_state order by no").fetchall()
    assert [each["limit_key"] for (each,) in options] == ["a.org", "a.org", "b.org", "b.org"]


def test_a_key_that_is_given_wins(conn):
    """
    In Python and in SQL; without a unique key if told so.
    """
    record(conn)
    fetch.using(limit_key="mine", unique=Once("x")).enqueue(conn, "a.org")
    fetch.using(ordering_key="o", unique=None).enqueue(conn, "a.org")
    fetch.using(unique=None).enqueue_many(conn, [("a.org",), ("a.org",)])
    conn.execute(
        "select forebay.enqueue("
        "'fetch', '{\"host\": \"a.org\"}', limit_key => 'l', unique_as => '\"none\"')"
    )
    conn.execute(
        "select forebay.enqueue_many(%s::jsonb)",
        [json.dumps([{"kind": "fetch", "limit_key": "m", "unique_as": {"once": "k"}}])],
    )
    assert [(limit, unique) for limit, _, unique in keys(conn)] == [
        ("mine", "x"), ("a.org", None), ("a.org", None), ("a.org", None), ("l", None), ("m", "k"),
    ]  # fmt: skip


def test_arguments_that_are_null_make_no_key():
    """
    Such a job is limited by no key, and waits for none.
    """
    options = fetch.call(None).options
    assert (options.limit_key, options.ordering_key) == (None, None)
    assert robots.using(limit_key=None).call("a").options.limit_key == "a"


def some(draw: random.Random, depth: int = 0) -> Any:
    """Draw a JSON value, among them those that have several texts."""
    texts = ["", "a.org", "ä\u2028\x7f", 'q"\\\n\x01', "x" * 201, "2030-01-01T09:00:00+02:00"]
    texts += ["2030-01-01T09:00:00.5Z", "2030-02-30T09:00:00Z", "2030-01-01"]
    numbers = [0, -1, 1.0, 1.5, 1e-7, -0.25, 2**70, 123456.789, 1e20, 0.1]
    choices: list[Any] = [None, True, False, draw.choice(texts), draw.choice(numbers)]
    if depth < 2:
        choices.append([some(draw, depth + 1) for _ in range(draw.randrange(3))])
        choices.append({draw.choice(["b", "aa", "ä", "B"]): some(draw, depth + 1) for _ in "12"})
    return draw.choice(choices)


def test_sql_makes_the_same_keys_as_python(conn):
    """
    For any arguments: a producer in another language shares the keys of those in Python.
    """
    record(conn)
    seed = random.randrange(10**6)
    print(f"--seed {seed}")
    draw = random.Random(seed)
    for _ in range(300):
        args = json.dumps({"anything": some(draw)})
        kind = app.kinds.get("every")
        assert kind.keys is not None
        made = kind.keys.options(args, forebay.JobOptions())
        row = conn.execute(
            "select * from forebay._declared_keys('every', %s, 'default', null, null, null)",
            [args],
        ).fetchone()
        assert made.unique is not None
        assert row == (made.limit_key, None, made.unique.as_json()), args


def test_no_key_is_read_in_the_queues_of_the_library(conn):
    """
    An event type, or a sink, may have the name of a kind.
    """
    record(conn)
    conn.execute("select forebay.create_event_type('fetch')")
    conn.execute("select forebay.publish('fetch', '{\"host\": \"a.org\"}')")
    assert keys(conn) == [(None, None, None)]


def test_the_worker_that_starts_last_decides(database):
    """
    It records the keys of its kinds with its lease; a kind that declares none any more has none.
    """
    mine = App(database)

    @mine.job(limit_by=("host",), unique_by=("host",), unique=lambda key: Debounce(key, wait=9))
    def fetch(host: str) -> None: ...

    asyncio.run(mine.worker().run(until_idle=True))
    with psycopg.connect(database, autocommit=True) as conn:
        found = one(conn, "select keys from forebay.kind_queue where kind = 'fetch'")
        assert found["mode"] == "debounce"
        assert found["more"] == {"wait": 9.0}
        conn.execute("select forebay.enqueue('fetch', '{\"host\": \"a\"}')")
        assert keys(conn) == [("a", None, 'fetch:["a"]')]
        conn.execute("select forebay.record_kinds_v1('w', '{fetch}', '{default}')")
        assert one(conn, "select keys from forebay.kind_queue where kind = 'fetch'") is None


def test_two_times_of_one_instant_are_one_key(conn):
    """
    As for unique keys: what counts is the instant.
    """
    mine = App()

    @mine.job(order_by=("at",))
    def remind(at: datetime) -> None: ...

    there = timezone(timedelta(hours=9))
    at = datetime(2030, 1, 1, tzinfo=UTC)
    assert remind.call(at).options.ordering_key == "2030-01-01T00:00:00Z"
    assert remind.call(at.astimezone(there)).options.ordering_key == "2030-01-01T00:00:00Z"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"limit_by": ("hots",)}, "kind f: limit_by has 'hots', which is not an argument"),
        ({"order_by": "host"}, "kind f: order_by must be names of arguments, not 'host'"),
        ({"order_by": 5}, "kind f: order_by must be names of arguments, not 5"),
        ({"limit_by": ("host", 1)}, "kind f: limit_by must be names of arguments"),
        ({"limit_by": ("host", "host")}, "kind f: limit_by names an argument twice: host, host"),
        ({"unique": Coalesce}, "kind f: unique has no effect without unique_by"),
    ],
)
def test_a_declaration_that_is_a_mistake_names_its_parameter(options, message):
    """
    For jobs, jobs in batches and subjects alike.
    """

    def f(host: str) -> None: ...

    with pytest.raises(ConfigError, match=re.escape(message)):
        App().job(**options)(f)


def test_a_schedule_that_orders_its_jobs_refuses_another_order():
    """
    ``overlap="queue"`` gives all jobs of the schedule one ordering key.
    """
    mine = App()

    @mine.job(order_by=("host",))
    def fetch(host: str = "a") -> None: ...

    with pytest.raises(ConfigError, match="overlap 'queue' orders the jobs of the schedule"):
        mine.cron("0 9 * * *", overlap="queue")(fetch)


def test_the_limit_holds_for_a_job_of_a_producer_that_did_not_name_it(database):
    """
    Two jobs of one host do not run at once, enqueued by SQL without any option.
    """
    mine = App(database)
    running: list[str] = []

    @mine.job(queue="polite", limit_by=("host",))
    async def fetch(host: str) -> None:
        running.append(host)
        assert running.count(host) == 1
        await asyncio.sleep(0)
        running.remove(host)

    mine.client().limit_queue("polite", key_concurrency=1)
    run_until_idle(mine)
    with psycopg.connect(database) as conn:
        for host in "aabb":
            conn.execute(
                "select forebay.enqueue('fetch', jsonb_build_object('host', %s::text))", [host]
            )
        conn.commit()
        assert (
            one(conn, "select count(distinct limit_key) from forebay.log where kind = 'fetch'") == 2
        )
    assert run_until_idle(mine).done == 4
