"""Whatever the server, the database, the role and the environment set: calls do the same, and
workers work.
"""

import asyncio
from datetime import UTC, datetime, timedelta

import psycopg
import pytest

import forebay
from forebay import RetryPolicy
from forebay.config import Settings, WorkerSettings
from forebay.doctor.examine import examine
from forebay.errors import SchemaError
from forebay.upgrade.migrate import migrate, migration_sql
from tests.support.engine import Reader, connect, lane_of, one
from tests.support.fix_worker import running
from tests.support.settings import EVIL, HOSTILE, OF_PLANS, OF_TEXT, SEARCH_PATH, impose
from tests.support.waiting import wait_for, wait_for_async
from tests.support.worker_process import FAST

pytestmark = pytest.mark.anyio


# --- connections of the library ---


@pytest.mark.slow
@pytest.mark.direct
@pytest.mark.usual("it makes the hostile settings and objects itself")
@pytest.mark.parametrize("by", ["database", "environment"])
async def test_a_worker_works_whatever_is_set(database, monkeypatch, by):
    """
    Text that the client encoding lacks, times in another format, floats without digits, names of
    another schema first, sessions that are ended when they idle: all sorts of jobs end, and doctor
    and operators read what is there.
    """
    with connect(database) as admin:
        admin.execute(EVIL)
        if by == "database":
            impose(admin, HOSTILE | {"search_path": SEARCH_PATH}, f"database {admin.info.dbname}")
    if by == "environment":
        chosen = HOSTILE | {"search_path": SEARCH_PATH.replace(" ", "")}
        monkeypatch.setenv("PGCLIENTENCODING", chosen.pop("client_encoding"))
        monkeypatch.setenv("PGDATESTYLE", chosen.pop("datestyle"))
        monkeypatch.setenv("PGTZ", chosen.pop("timezone"))
        monkeypatch.setenv(
            "PGOPTIONS", " ".join(f"-c{name}={value}" for name, value in chosen.items())
        )
    app = forebay.App(database, settings=Settings(worker=WorkerSettings(**FAST)))
    told = []

    @app.job(keep_result=True, retry=RetryPolicy(max_attempts=2, base_seconds=0.01))
    def work(text: str, ratio: float) -> str:
        told.append((text, ratio))
        if text == "é日本":
            raise ValueError("日本")
        return text

    @app.job(transaction=True)
    def write(ctx: forebay.TransactionContext, text: str) -> None:
        ctx.conn.execute("create table if not exists public.effect (entry text)")
        ctx.conn.execute("insert into public.effect values (%s)", [text])

    plain = work.enqueue_now("日本", 0.1 + 0.2)
    failing = work.using(delay=0.05).enqueue_now("é日本", 1e-300)
    written = write.enqueue_now("日本")
    # The sweep compares times. Its first pass finds the job.
    ends_at = datetime.now(UTC) + timedelta(seconds=0.5)
    unclaimed = work.using(queue="forlorn", expires_at=ends_at).enqueue_now("日本", 0.1)
    wait_for(lambda: datetime.now(UTC) > ends_at)
    async with running(app) as worker:
        await wait_for_async(lambda: worker.stats.done >= 2)
        await wait_for_async(lambda: app.handle(unclaimed).status().state == "expired")
        await wait_for_async(lambda: app.handle(failing).status().state == "dead")
    assert set(told) == {("日本", 0.1 + 0.2), ("é日本", 1e-300)}
    assert app.handle(plain).result(5) == "日本"
    assert app.handle(written).status().state == "done"
    with psycopg.connect(database, client_encoding="utf8") as admin:
        assert "日本" in one(
            admin, "select errors::text from forebay.dead_letter where job_id = %s", failing
        )
    assert not [item for item in await examine(database) if "could not be checked" in item.what]


@pytest.mark.slow
@pytest.mark.direct
def test_a_migration_runs_whatever_is_set(empty_database):
    """
    The first statement of a session, which sets the limits, runs under those of the role: a busy
    server must not make it too late.
    """
    with connect(empty_database) as admin:
        admin.execute(EVIL)
        impose(
            admin,
            HOSTILE | {"search_path": SEARCH_PATH, "statement_timeout": "300ms"},
            f"database {admin.info.dbname}",
        )
    assert migrate(empty_database)
    assert migrate(empty_database) == []
    found = asyncio.run(examine(empty_database))
    (objects,) = [item for item in found if item.check == "objects"]
    assert objects.level == "ok", objects


@pytest.mark.direct
@pytest.mark.parametrize("encoding", ["LATIN1", "SQL_ASCII", "EUC_JP"])
def test_a_database_in_another_encoding_is_refused(server, encoding):
    """
    Its jobs could hold text that no worker can read. Migration and script refuse, and write
    nothing.
    """
    name = f"in_{encoding.lower()}"
    with connect(server.dsn()) as admin:
        admin.execute(f"create database {name} template template0 encoding '{encoding}' locale 'C'")
        try:
            with pytest.raises(SchemaError, match=f"encoding {encoding}") as caught:
                migrate(server.dsn(name))
            assert "UTF8" in caught.value.hint
            with connect(server.dsn(name)) as conn:
                with pytest.raises(psycopg.Error) as refused:
                    conn.execute(migration_sql())
                assert refused.value.sqlstate == "JQ020"
                conn.execute("rollback")
                assert one(conn, "select to_regnamespace('forebay') is null")
        finally:
            admin.execute(f"drop database {name}")


# --- connections of producers and others ---

CALLS = (
    "select 'id' from forebay.enqueue('work', '{\"n\": 1}', queue => %(queue)s)",
    (
        "select 'id' from forebay.enqueue('work', '{\"n\": 2}', queue => %(queue)s, delay => "
        "'1 day 02:00:00')"
    ),
    (
        "select 'id' from forebay.enqueue('work', '{\"n\": 3}', queue => %(queue)s, run_at "
        "=> '2090-02-03T04:05:06Z',"
        " expires_at => '2090-02-04T04:05:06+02', tag => 'a\tb')"
    ),
    (
        "select 'id' from forebay.enqueue('work', '{\"n\": 4}', queue => %(queue)s, tag => "
        "'ok', headers => '{\"a\": \"b\"}')"
    ),
    (
        "select 'id' from forebay.enqueue('work', '{\"n\": 5}', queue => %(queue)s, unique_as "
        '=> \'{"once": "k"}\')'
    ),
    (
        "select 'id' from forebay.enqueue('work', '{\"n\": 5}', queue => %(queue)s, unique_as "
        '=> \'{"once": "k"}\')'
    ),
    (
        "select 'id' from forebay.enqueue('work', '{\"n\": 6}', queue => %(queue)s, unique_as "
        '=> \'{"debounce": "k", "wait": 86400.5}\')'
    ),
    (
        "select 'id' from forebay.enqueue('work', '{\"n\": 6}', queue => %(queue)s, unique_as "
        '=> \'{"idempotent": "k"}\')'
    ),
    (
        "select 'id' from forebay.enqueue('work', '{\"n\": 7}', queue => %(queue)s, unique_as "
        '=> \'{"idempotent": "k"}\')'
    ),
    (
        "select 'id' from forebay.enqueue('work', '{\"n\": 7}', queue => %(queue)s, unique_as "
        '=> \'{"idempotent": "\x02"}\')'
    ),
    (
        "select cardinality(forebay.enqueue_many(jsonb_build_array("
        " jsonb_build_object('kind', 'work', 'queue', %(queue)s::text, 'args', '{\"n\": "
        "8.25}'::jsonb, 'delay', 86400.25),"
        " jsonb_build_object('kind', 'work', 'queue', %(queue)s::text, 'ordering_key', "
        "'o', 'tag', null),"
        " jsonb_build_object('kind', 'work', 'queue', %(queue)s::text, 'unique_as', "
        '\'{"coalesce": "c"}\'::jsonb))))'
    ),
    (
        "select forebay.enqueue_many(jsonb_build_array("
        " jsonb_build_object('kind', 'work', 'queue', %(queue)s::text),"
        " jsonb_build_object('kind', 'work', 'queue', %(queue)s::text, 'unique_as', "
        '\'{"idempotent": "k"}\'::jsonb)))'
    ),
    "select forebay.limit_queue(jsonb_build_object('queue', %(queue)s::text))::text is null",
    (
        "select forebay.backfill('work', 'select k, at, i, b, m, a from public.source',"
        " jsonb_build_object('queue', %(queue)s::text))"
    ),
    (
        "select (p.jobs, p.bytes)::text from forebay.backfill_plan('work', 'select k, at, "
        "i, b, m, a from public.source',"
        " jsonb_build_object('queue', %(queue)s::text)) p"
    ),
    (
        "select forebay.backfill_begin('work', 'select k, at from public.source', 'k', 3,"
        " jsonb_build_object('queue', %(queue)s::text)) > 0"
    ),
    (
        "select n.enqueued from forebay.backfill b, forebay.backfill_next(b.backfill_id) n"
        " where b.options operator(pg_catalog.->>) 'queue' operator(pg_catalog.=) %(queue)s"
    ),
    (
        "select n.enqueued from forebay.backfill b, forebay.backfill_next(b.backfill_id) n"
        " where b.options operator(pg_catalog.->>) 'queue' operator(pg_catalog.=) %(queue)s"
    ),
    (
        "select n.enqueued from forebay.backfill b, forebay.backfill_next(b.backfill_id) n"
        " where b.options operator(pg_catalog.->>) 'queue' operator(pg_catalog.=) %(queue)s"
    ),
    "select sum(d.ready), sum(d.scheduled) from forebay.depth(%(queue)s) d",
    "select expired >= 0 from forebay.sweep_v1('2020-01-02T00:00:00Z')",
    "select sum(t.rows) >= 0 from unnest(forebay._trim_parts()) p, forebay.trim_v1(p) t",
    "select forebay.promote_v1(10) >= 0",
    "select forebay.seal_v1() >= 0",
    "select forebay.extend_v1() >= 0",
    "select emptied is null from forebay.retain_v1()",
)


def answers(conn: psycopg.Connection, queue: str) -> list[object]:
    """Return the answer of each call, or its SQLSTATE with message and facts."""
    found = []
    for call in CALLS:
        try:
            found.append(conn.execute(call, {"queue": queue}).fetchall())
        except psycopg.Error as error:
            found.append(
                (error.sqlstate, error.diag.message_detail and "index" in error.diag.message_detail)
            )
    return found


def jobs_of(conn: psycopg.Connection, queue: str) -> list[tuple[object, ...]]:
    """Return what the jobs of a queue are."""
    return conn.execute(
        "select l.kind, l.args::text, l.tag, l.headers::text, l.ordering_key, null, null"
        " from forebay.log l where l.lane in (select i.lane from forebay.lane i where "
        "i.queue = %(queue)s)"
        " union all"
        " select d.kind, d.args::text, d.tag, d.headers::text, d.ordering_key,"
        "        round(extract(epoch from d.run_at - d.enqueued_at) / 3600)::text,"
        "        case when d.run_at > '2089-01-01' then d.run_at::text || d.expires_at::text end"
        " from forebay.deferred d where d.lane in (select i.lane from forebay.lane i where "
        "i.queue = %(queue)s)"
        " order by 1, 2, 3, 4, 5, 6",
        {"queue": queue},
    ).fetchall()


@pytest.mark.direct
@pytest.mark.usual("it makes the hostile settings and objects itself")
@pytest.mark.parametrize("which", ["text", "plans"])
def test_calls_do_the_same_under_every_setting_of_the_caller(database, which):
    """
    On connections that are not the library's: the same answers, the same errors, the same jobs.
    """
    with connect(database) as usual, connect(database) as hostile:
        usual.execute("set time zone 'Asia/Kolkata'")
        usual.execute(EVIL)
        usual.execute(
            "create table public.source as select 1.1::float8 / 3 + n / 1e9 as k,"
            " '2026-01-02 03:04:05.678901+00'::timestamptz + n * interval '1 hour' as at,"
            " n * interval '1 mon -1 day 25:00:00.5' as i, '\\x00ff5c'::bytea as b, "
            "12.340::numeric as m,"
            " tstzrange('2026-01-02 00:00+00', null) as a from generate_series(1, 7) n"
        )
        hostile.execute("set time zone 'Asia/Kolkata'")
        for name, value in {"text": OF_TEXT, "plans": OF_PLANS}[which].items():
            hostile.execute(f"set {name} = '{value}'")
        hostile.execute(
            "create temporary table log (evil text); create temporary table setting (evil text)"
        )
        hostile.execute(f"set search_path = pg_temp, {SEARCH_PATH}" if which == "plans" else "")
        expected = answers(usual, "usual")
        assert answers(hostile, "hostile") == expected
        assert jobs_of(usual, "hostile") == jobs_of(usual, "usual")
        assert len(jobs_of(usual, "usual")) == 23


@pytest.mark.direct
@pytest.mark.parametrize("which", ["text", "plans"])
def test_a_claim_and_a_settlement_do_the_same_under_every_setting(database, which):
    """For a worker of another language, whose connection the library does not open."""
    with connect(database) as admin, connect(database) as hostile:
        lane = lane_of("default", admin)
        for name, value in {"text": OF_TEXT, "plans": OF_PLANS}[which].items():
            hostile.execute(f"set {name} = '{value}'")
        for n in range(3):
            admin.execute(
                "select forebay.enqueue('work', jsonb_build_object('n', %s::float8 / 3))", [n]
            )
        reader = Reader(database, conn=hostile)
        batch = reader.claim(3, lane)
        assert [job["args"]["n"] for job in batch.jobs] == [0, 1 / 3, 2 / 3]
