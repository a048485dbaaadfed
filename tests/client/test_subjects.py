"""Subjects through both clients and through the handlers of an app."""

import json
from datetime import UTC, datetime, timedelta

import psycopg
import pytest

import forebay
import forebay.testing
from forebay.errors import InvalidJob, PayloadTooLarge, SubjectNotFound
from forebay.model.subjects import SubjectRun
from tests.support.engine import connect, one

pytestmark = pytest.mark.anyio

LATER = {"run_at": "2040-01-01T00:00:00+00:00"}


@pytest.fixture
def crawl(app):
    @app.subject(queue="q", priority=7, tag="t")
    def crawl(url: str, depth: int = 1) -> None: ...

    return crawl


async def test_the_life_of_a_subject(database, conn):
    client = forebay.AsyncClient(database)
    item = {"kind": "crawl", "queue": "q", "subject": "a", "args": {"n": 1}, **LATER}
    assert str((await client.push_subjects([item]))[0]) == "created"
    assert str((await client.push_subjects([item]))[0]) == "skipped: exists"
    found = await client.subject("q", "a")
    assert (found.state, found.args, found.due_at, found.iterations) == (
        "scheduled",
        {"n": 1},
        datetime(2040, 1, 1, tzinfo=UTC),
        0,
    )
    assert [each.subject for each in await client.subjects("q", state="scheduled")] == ["a"]
    assert await client.subjects("q", after="a") == []
    assert await client.kill_subject("q", "a", "why") == "killed"
    (row,) = await client.upsert_subjects([{"queue": "q", "subject": "a", "args": {}}])
    assert (row.result, row.reason) == ("skipped", "killed")
    (row,) = await client.upsert_subjects([{"queue": "q", "subject": "a"}], revive=True)
    assert row.result == "updated"
    assert await client.kill_subject("q", "a") in ("killed", "requested")
    assert await client.revive_subject("q", "a", datetime(2041, 1, 1, tzinfo=UTC)) == "revived"
    assert (await client.subject("q", "a")).due_at.year == 2041
    assert [each.subjects for each in await client.subject_counts("q")] == [1]
    assert (await client.subject_history("q", "a", limit=1))[0].what == "scheduled"
    assert (await client.trace("a"))[0].subject == "a"
    assert await client.drop_subject("q", "a") == "dropped"
    for call in (
        client.subject,
        client.drop_subject,
        client.kill_subject,
        client.revive_subject,
    ):
        with pytest.raises(SubjectNotFound) as raised:
            await call("q", "a")
        assert (raised.value.queue, raised.value.subject) == ("q", "a")


async def test_all_subjects_of_a_queue_are_dropped_in_chunks(database):
    client = forebay.AsyncClient(database)
    rows = [{"queue": "q", "subject": f"s{n}", "kind": "crawl", "delay": 60} for n in range(5)]
    await client.push_subjects([*rows, rows[0] | {"queue": "other"}])
    with pytest.raises(InvalidJob):
        await client.drop_subjects("q", chunk=0)
    assert await client.drop_subjects("q", chunk=2) == 5
    assert [each.queue for each in await client.subject_counts() if each.subjects] == ["other"]
    assert await client.drop_subjects("q") == 0


async def test_the_methods_of_a_handler(app, crawl, conn, database):
    """
    A push and an upsert carry what the handler declares; they are part of the transaction of their
    connection.
    """
    with conn.transaction():
        assert crawl.push(conn, "a", "x").result == "created"
        raise psycopg.Rollback
    assert one(conn, "select count(*) from forebay.subject") == 0
    later = crawl.using(delay=timedelta(hours=1))
    assert later.push(None, "a", "x", depth=3).result == "created"
    found = app.client().subject("q", "a")
    assert (found.kind, found.priority, found.args) == ("crawl", 7, {"url": "x", "depth": 3})
    assert found.options == {"tag": "t"}
    due_at = found.due_at
    assert crawl.upsert(conn, "a", "y").result == "updated"
    found = app.client().subject("q", "a")
    assert (found.args, found.due_at) == ({"url": "y"}, due_at)
    assert crawl.upsert(conn, "a", "y").result == "unchanged"
    assert (
        crawl.using(run_at=datetime(2040, 1, 1, tzinfo=UTC)).upsert(conn, "a", "y").result
        == "updated"
    )
    assert app.client().subject("q", "a").due_at.year == 2040
    name = later.append(conn, "x")
    assert app.client().subject("q", name).args == {"url": "x"}
    async with await psycopg.AsyncConnection.connect(database, autocommit=True) as other:
        assert (await later.apush(other, "b", "x")).result == "created"
        assert (await later.aupsert(other, "b", "y")).result == "updated"
        assert (await later.apush_many(other, [("c", {"url": "x"})]))[0].result == "created"
        assert (await later.aupsert_many(None, [crawl.item("c", "x")]))[0].result == "unchanged"
        assert len(await later.aappend(other, "x")) == 36


def test_an_upsert_leaves_a_priority_that_nobody_has_chosen(app, conn):
    @app.subject(queue="q")
    def plain() -> None: ...

    plain.using(priority=5, delay=3600).push(conn, "a")
    plain.upsert(conn, "a")
    assert app.client().subject("q", "a").priority == 5
    plain.using(priority=100).upsert(conn, "a")
    assert app.client().subject("q", "a").priority == 100


def test_a_bulk_push_reports_each_row_across_chunks(app, crawl, conn):
    later = crawl.using(delay=3600)
    later.push(conn, "s3", "x")
    results = later.push_many(conn, [(f"s{n}", {"url": str(n)}) for n in range(7)], chunk=2)
    assert [(each.subject, str(each)) for each in results] == [
        (f"s{n}", "skipped: exists" if n == 3 else "created") for n in range(7)
    ]
    items = [crawl.item(f"s{n}", "new" if n % 2 else str(n)) for n in range(7)]
    results = later.upsert_many(conn, items, chunk=3)
    assert [each.result for each in results] == ["unchanged", "updated"] * 3 + ["unchanged"]


@pytest.mark.parametrize(
    ("items", "index", "problem"),
    [
        ([("a", {"url": "x"}), ("a", {"url": "y"})], 1, "is given twice"),
        ([("a", {"url": "x"}), ("b", {"nosuch": 1})], 1, "nosuch"),
        ([("a", {"url": "x"}), ("", {"url": "x"})], 1, "is empty"),
        ([("a", {"url": "x"}), ("é" * 257, {"url": "x"})], 1, "514 bytes"),
        ([("a", {"url": "x"}), 7], 1, "not a subject"),
        ([("a", {"url": "x"}), "b"], 1, "url"),
    ],
)
def test_a_bad_item_refuses_the_call(app, crawl, conn, items, index, problem):
    """
    All are checked before the first one is sent, also those of later chunks.
    """
    with pytest.raises(InvalidJob, match=problem) as raised:
        crawl.push_many(conn, items, chunk=1)
    assert raised.value.index == index
    assert one(conn, "select count(*) from forebay.subject") == 0


def test_the_index_of_what_the_database_refuses_counts_over_chunks(database, conn):
    items = [{"kind": "k" * (10 if n != 3 else 125), "subject": str(n)} for n in range(5)]
    with pytest.raises(InvalidJob) as raised:
        forebay.Client(database).push_subjects(items, chunk=2)
    assert raised.value.index == 3
    assert "2 jobs of this call were written" in raised.value.detail


def test_options_of_jobs_that_subjects_do_not_have_are_refused(crawl):
    for options in ({"unique": forebay.Once("x")}, {"expires_in": 5}, {"nosuch": 1}):
        with pytest.raises(InvalidJob):
            crawl.using(**options)


@pytest.mark.parametrize(
    "item",
    [
        {"kind": "a", "subject": "x", "unique": {"once": "k"}},
        {"kind": "a", "subject": "x", "run_at": "tomorrow"},
        {"kind": "a", "subject": "x", "run_at": "2040-01-01T00:00:00"},
        {"kind": "a", "subject": "x", "version": -1},
        {"kind": "a b", "subject": "x"},
        {"kind": "a", "subject": "x", "args": [1]},
        {"kind": "a", "subject": "x", "delay": 1, "run_at": "2040-01-01T00:00:00+00:00"},
        "x",
    ],
)
def test_a_bad_mapping_is_refused(database, conn, item):
    with pytest.raises(InvalidJob) as raised:
        forebay.Client(database).push_subjects([{"kind": "a", "subject": "first"}, item])
    assert raised.value.index == 1
    assert one(conn, "select count(*) from forebay.subject") == 0


def test_a_handler_of_subjects_enqueues_no_jobs(crawl):
    for name in ("enqueue", "aenqueue", "enqueue_now", "enqueue_many", "calls", "callback"):
        with pytest.raises(AttributeError, match=r"crawl\.push"):
            getattr(crawl, name)
    crawl("x")  # It is still a function.


@pytest.mark.parametrize(
    "options",
    [
        {"every": 0.5},
        {"every": -1},
        {"every": "1 week"},
        {"version": -1},
        {"version": 10_000},
        {"version": True},
    ],
)
def test_a_bad_declaration_is_refused(app, options):
    with pytest.raises(forebay.ForebayError, match=r"subject crawl|every must be|version must be"):

        @app.subject(**options)
        def crawl() -> None: ...


def test_a_client_of_an_app_knows_the_queue_of_a_kind(app, crawl, conn):
    app.client().push_subjects([{"kind": "crawl", "subject": "a", "args": {"url": "x"}}])
    assert app.client().subject("q", "a").kind == "crawl"


def test_too_large_arguments_are_refused(crawl, conn):
    with pytest.raises(PayloadTooLarge):
        crawl.push(conn, "a", "x" * 2_000_000)


# --- upgrades ---


def push_old(client, count, **options):
    items = [
        {"kind": "crawl", "queue": "q", "subject": f"s{n:03}", "args": {"n": n}, **options}
        for n in range(count)
    ]
    client.push_subjects(items)


def test_an_upgrade_gives_each_subject_once_the_new_version(database, conn):
    """
    Chunks, then a pass that finds none of the version; subjects of other kinds and versions stay.
    """
    client = forebay.Client(database)
    push_old(client, 25, **LATER)
    client.push_subjects([{"kind": "other", "queue": "q", "subject": "z", **LATER}])
    seen, steps = [], []

    def convert(args, state):
        seen.append(args["n"])
        return {"number": args["n"]}

    done = client.upgrade_subjects("q", "crawl", 0, 1, convert, chunk=10, progress=steps.append)
    assert (done.upgraded, done.running, done.is_done) == (25, 0, True)
    assert sorted(seen) == list(range(25))
    assert steps[0].upgraded == 10
    assert steps[-1] == done
    versions = {(each.kind, each.version) for each in client.subjects("q")}
    assert versions == {("crawl", 1), ("other", 0)}
    assert client.subject("q", "s007").args == {"number": 7}


async def test_an_upgrade_that_failed_goes_on_where_it_stopped(database, conn):
    """
    The chunk of the error is rolled back, those before it stay; the repeated call converts no
    subject twice.
    """
    client = forebay.AsyncClient(database)
    push_old(forebay.Client(database), 25, **LATER)
    seen = []
    is_broken = True

    def convert(args, state):
        if is_broken and args["n"] == 15:
            raise RuntimeError("no")
        assert "number" not in args
        seen.append(args["n"])
        return {"number": args["n"]}, {"was": 0}

    with pytest.raises(RuntimeError) as raised:
        await client.upgrade_subjects("q", "crawl", 0, 1, convert, chunk=10)
    assert "s015" in raised.value.__notes__[0]
    assert one(conn, "select count(*) from forebay.subjects('q') where version = 1") == 10
    is_broken = False
    done = await client.upgrade_subjects("q", "crawl", 0, 1, convert, chunk=10)
    assert (done.upgraded, done.is_done) == (15, True)
    assert sorted(seen) == sorted([*range(25), *range(10, 15)])
    assert (await client.subject("q", "s020")).data == {"was": 0}


def test_an_upgrade_passes_over_subjects_that_run_or_are_locked(database, conn):
    """
    A locked subject keeps its version and comes with the next call.
    """
    client = forebay.Client(database)
    push_old(client, 3, **LATER)
    with connect(database) as other, other.transaction():
        other.execute("select from forebay.subject where subject = 's001' for no key update")
        done = client.upgrade_subjects("q", "crawl", 0, 1, lambda args, state: args, wait=0)
        assert (done.upgraded, done.running, done.is_done) == (2, 1, False)
    done = client.upgrade_subjects("q", "crawl", 0, 1, lambda args, state: args, wait=0)
    assert (done.upgraded, done.is_done) == (1, True)


def test_what_an_upgrade_returns_is_checked(database, conn):
    client = forebay.Client(database)
    push_old(client, 1, **LATER)
    for found in (None, [1], {"x": object()}, ({}, 5)):
        with pytest.raises(InvalidJob):
            client.upgrade_subjects("q", "crawl", 0, 1, lambda args, state, found=found: found)
    assert client.subject("q", "s000").version == 0
    with pytest.raises(InvalidJob):
        client.upgrade_subjects("q", "crawl", 1, 1, lambda args, state: args)


# --- the header of a run ---


def test_a_header_that_is_not_one_is_no_subject():
    for text in ("", "[]", "{}", "7", "null", '{"subject": 1}', "x" * 9000):
        assert SubjectRun.of({"forebay-subject": text}) is None
    good = {
        "id": 1,
        "no": 2,
        "subject": "a",
        "iterations": 4,
        "version": 0,
        "state": None,
        "due_at": "2026-01-01T00:00:00+00:00",
        "last_at": None,
    }
    found = SubjectRun.of({"forebay-subject": json.dumps(good)})
    assert found == SubjectRun(
        name="a",
        iterations=4,
        version=0,
        due_at=datetime(2026, 1, 1, tzinfo=UTC),
        last_at=None,
        state={},
    )


def test_a_handler_of_subjects_is_performed_in_a_test(app):
    """
    Performer gives the handler a subject with a state, and the outcome is that of a worker.
    """

    @app.subject(every=60)
    def count(ctx: forebay.Context, by: int = 1) -> forebay.Again | None:
        ctx.state["n"] = ctx.state.get("n", 0) + by
        return forebay.Again("+1 week") if by > 1 else None

    done = forebay.testing.Performer(state={"n": 5}).perform(count, 2)
    assert (done.outcome, done.returned) == ("done", forebay.Again("+1 week"))
    assert done.context.state == {"n": 7}
    ctx = forebay.testing.context(count, subject="a", state={"n": 1})
    assert count(ctx) is None
    assert (ctx.subject.name, ctx.state) == ("a", {"n": 2})
