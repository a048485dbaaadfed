"""Backfills from Python, on both faces: the rows that were meant, whatever their values are."""

import uuid
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import forebay
from forebay import BackfillProgress, Once, Rows
from forebay.errors import BackfillChanged, BackfillNotFound, InvalidJob, QueueFull
from forebay.testing import run_until_idle
from tests.client.test_clients import Awaited, Synchronous
from tests.support.engine import connect, one

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


@pytest.fixture(params=[Synchronous, Awaited], ids=["sync", "async"])
def face(request):
    face = request.param()
    yield face
    face.close()


@pytest.fixture
def client(face, database):
    return face.client(database)


@pytest.fixture
def conn(database):
    with connect(database) as conn:
        conn.execute("""
            create table page (id bigint primary key, site int, owner text, at timestamptz,
                code uuid, done boolean);
            insert into page select i, mod(i, 10), case when i > 5 then 'o''' || mod(i, 3) end,
                '2026-01-01 12:00+00'::timestamptz
                + i * interval '1 hour', md5(i::text)::uuid, i > 90 from generate_series(1,
                    100) i""")
        yield conn


def ids(conn):
    """Return what was enqueued, and forget it."""
    found = [
        row[0] for row in conn.execute("select (args ->> 'id')::int from forebay.log order by seq")
    ]
    conn.execute("truncate forebay.log")
    return sorted(found)


CONDITIONS = {
    "ids": (Rows("page", ids=[3, 5, 500]), {3, 5}),
    "no ids": (Rows("page", ids=[]), set()),
    ("other ids"): (
        Rows("page", ids=[uuid.UUID("c4ca4238a0b923820dcc509a6f75849b")], id_column="code"),
        {1},
    ),
    "equal": (Rows("page", equal={"site": 3, "done": True}), {93}),
    ("text with a quote"): (
        Rows("page", equal={"owner": "o'1"}),
        {i for i in range(6, 101) if i % 3 == 1},
    ),
    "null": (Rows("page", equal={"owner": None}), {1, 2, 3, 4, 5}),
    "any of": (Rows("page", equal={"site": [1, 2]}), {i for i in range(101) if i % 10 in {1, 2}}),
    ("both ends"): (
        Rows("page", between={"at": (NOON + timedelta(hours=3), NOON + timedelta(hours=5))}),
        {3, 4, 5},
    ),
    "one end": (Rows("page", between={"id": (98, None)}), {98, 99, 100}),
    "where": (Rows("page", where="id % 50 = 0"), {50, 100}),
    ("where or"): (
        Rows(
            "page",
            equal={"site": 3},
            where=("id = %(a)s or id = %(b)s -- or so"),
            params={"a": 3, "b": 4},
        ),
        {3},
    ),
    "query": (Rows.query("select id from page where id = any(%(ids)s)", {"ids": [7, 8]}), {7, 8}),
    "text": ("select id from page where id < 3", {1, 2}),
}


@pytest.mark.parametrize(("rows", "expected"), CONDITIONS.values(), ids=CONDITIONS)
def test_the_rows_that_were_meant_become_jobs(client, conn, rows, expected):
    """
    Id lists, users, groups, time ranges with both ends, any condition; planned and done alike.
    """
    plan = client.plan_backfill("index", rows)
    assert plan.jobs == len(expected)
    assert client.backfill("index", rows, token=plan.token) == len(expected)
    assert ids(conn) == sorted(expected)


HOSTILE = st.one_of(
    st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])),
    st.sampled_from(
        [
            ("'; delete from page; --"),
            "' or true --",
            "\\'; delete from page; --",
            "$$; delete from page; $$",
            ("%s %(a)s %1$L %% %"),
            "') or (true",
            "1",
            "NULL",
            '{"a"}',
            "E'\\''",
            "/*",
            "\u02bc",
            "\u2019",
        ]
    ),
)


@pytest.mark.slow
@pytest.mark.parametrize("strings", ["on", "off"])
def test_no_value_becomes_sql(database, conn, strings):
    """
    Any text, alone and in a list, finds exactly the rows with that text, also where backslashes
    escape.
    """
    conn.execute(f"alter database {conn.info.dbname} set standard_conforming_strings = {strings}")
    conn.execute(f"alter database {conn.info.dbname} set escape_string_warning = off")
    client = forebay.Client(database)

    @settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
    @given(HOSTILE, HOSTILE)
    def check(text, other):
        conn.execute(
            "update page set owner = case id when 1 then %s when 2 then %s end", [text, other + "x"]
        )
        where = "owner = %(a)s or owner = any(%(b)s)"
        rows = Rows(
            "page", where=where, params={"a": text, "b": [text, text + "y"]}, equal={"owner": text}
        )
        assert client.plan_backfill("index", rows).jobs == (2 if other + "x" == text else 1)

    check()
    assert one(conn, "select count(*) from page") == 100


@pytest.mark.parametrize(
    "name",
    ['x"; delete from page; --', "page where true --", 'page"', "%s", "%1$L", "pg_catalog.nothing"],
)
def test_no_name_becomes_sql(client, conn, name):
    """
    Tables and columns are names, whatever is in them.
    """
    for rows in (
        Rows(name),
        Rows("page", name),
        Rows("page", equal={name: 1}),
        Rows("page", {name: "ID"}),
    ):
        with pytest.raises(InvalidJob, match="the query failed: "):
            client.backfill("index", rows)
    conn.execute('create table "Odd ""% name" ("%s \'" int); insert into "Odd ""% name" values (5)')
    rows = Rows('Odd "% name', {"%(a)s": "%s '"}, equal={"%s '": 5})
    assert client.backfill("index", rows) == 1
    assert one(conn, "select count(*) from page") == 100


def test_options_go_with_every_job(client, conn):
    """
    Those of a job, arguments that all have, and an expiry by the database's clock.
    """
    at = datetime(2036, 1, 1, tzinfo=UTC)
    count = client.backfill(
        "index", Rows("page", ids=[7]), args={"force": True}, queue="q", priority=3, run_at=at,
        expires_in=timedelta(hours=1), tag="t", max_attempts=2, headers={"a": "b"}, limit_key="k",
        correlation_id="c",
    )  # fmt: skip
    assert count == 1
    row = conn.execute(
        "select args, run_at, expires_at, tag, max_attempts, headers, correlation_id from "
        "forebay.deferred"
    ).fetchone()
    assert row == ({"id": 7, "force": True}, at, at + timedelta(hours=1), "t", 2, {"a": "b"}, "c")
    with pytest.raises(InvalidJob, match="unique would give all jobs the same key"):
        client.backfill("index", Rows("page"), unique=Once("k"))


def test_a_backfill_joins_the_callers_transaction(face, client, database, conn):
    """
    It commits or vanishes with what else the connection does.
    """
    with face.connect(database) as mine:
        assert client.backfill("index", Rows("page"), conn=mine) == 100
        mine.rollback()
        assert client.backfill("index", Rows("page", ids=[1]), conn=mine) == 1
        mine.commit()
    assert ids(conn) == [1]


def test_a_token_is_refused_when_the_jobs_changed(client, conn):
    """
    With a typed error, and nothing enqueued, in one statement and in chunks.
    """
    plan = client.plan_backfill("index", Rows("page", equal={"site": 1}))
    conn.execute("update page set site = 2 where id = 11")
    for chunk in (None, 3):
        with pytest.raises(BackfillChanged) as caught:
            client.backfill("index", Rows("page", equal={"site": 1}), token=plan.token, chunk=chunk)
        assert caught.value.hint.startswith("Nothing was enqueued.")
    assert ids(conn) == []


def test_chunks_are_committed_one_by_one_and_told(client, conn):
    """
    Progress counts up to what there is; the jobs of each chunk are there when it is told.
    """
    seen = []

    def watch(step: BackfillProgress) -> None:
        assert one(conn, "select count(*) from forebay.log") == step.jobs_done
        seen.append((step.enqueued, step.jobs_done, step.jobs_all, step.seconds > 0))

    assert client.backfill("index", Rows("page"), chunk=40, progress=watch) == 100
    assert seen == [(40, 40, 100, True), (40, 80, 100, True), (20, 100, 100, True)]
    assert ids(conn) == list(range(1, 101))


def test_what_stopped_is_resumed_with_nothing_lost_and_nothing_twice(client, conn):
    """
    The error says which backfill it was; what is done already enqueues nothing.
    """
    client.limit_queue("default", max_waiting=50)
    with pytest.raises(QueueFull) as caught:
        client.backfill("index", Rows("page"), chunk=20)
    number = one(conn, "select backfill_id from forebay.backfill")
    assert f"Backfill {number} can be resumed." in caught.value.hint
    client.limit_queue("default", max_waiting=None)
    assert client.resume_backfill(number) == 60
    assert client.resume_backfill(number) == 0
    assert ids(conn) == list(range(1, 101))
    with pytest.raises(BackfillNotFound):
        client.resume_backfill(number + 1)


def test_chunks_need_no_connection_and_a_key(face, client, database, conn):
    """
    A chunk commits, which the caller's transaction must not; a query has no key of its own.
    """
    with face.connect(database) as mine:
        with pytest.raises(InvalidJob, match="contradicts conn"):
            client.backfill("index", Rows("page"), chunk=5, conn=mine)
    with pytest.raises(InvalidJob, match="key is missing"):
        client.backfill("index", "select id from page", chunk=5)
    assert client.backfill("index", "select id from page", chunk=5, key="id") == 100


@pytest.mark.anyio
async def test_the_functions_of_the_package_do_the_same(database, conn):
    """
    One call, without a client.
    """
    assert forebay.backfill("index", Rows("page", ids=[1]), dsn=database) == 1
    assert await forebay.abackfill("index", Rows("page", ids=[2]), dsn=database) == 1
    assert ids(conn) == [1, 2]


def test_the_jobs_run(database, conn):
    """
    They are jobs like any other.
    """
    app = forebay.App(database)
    seen = []

    @app.job
    def index(id: int, force: bool = False) -> None:  # noqa: A002
        seen.append((id, force))

    assert app.client().backfill("index", Rows("page", ids=[4, 5]), args={"force": True}) == 2
    run_until_idle(app)
    assert sorted(seen) == [(4, True), (5, True)]


def test_subjects_are_made_of_rows_and_an_interrupted_backfill_goes_on(client, conn):
    """Names and arguments are columns; a token stands for the rows; what exists is left alone."""
    rows = Rows("page", {"subject": "id", "site": "site"}, equal={"site": 3})
    plan = client.plan_subjects("crawl", rows, queue="q", version=2)
    assert client.backfill_subjects("crawl", rows, queue="q", version=2, token=plan.token) == (
        plan.jobs
    )
    (first, *others) = client.subjects("q", limit=1000)
    assert (first.kind, first.version, first.args, first.priority) == ("crawl", 2, {"site": 3}, 100)
    assert len(others) == plan.jobs - 1
    steps = []
    count = client.backfill_subjects(
        "crawl", rows, queue="q", version=2, chunk=4, key="subject", progress=steps.append
    )
    assert count == plan.jobs
    assert len(steps) > 1
    assert client.resume_backfill(steps[0].backfill_id) == 0
    assert len(client.subjects("q", limit=1000)) == plan.jobs
    with pytest.raises(InvalidJob, match="has no name"):
        client.backfill_subjects("crawl", "select site from page", queue="q")
    with pytest.raises(BackfillChanged):
        client.backfill_subjects("crawl", rows, queue="q", token=plan.token)
