"""forebay import of jobs that wait: each becomes one job, however often, and stays where it was."""

import asyncio
import json
import os
from datetime import UTC, datetime, timedelta

import celery
import psycopg
import pytest
import redis
import rq
from psycopg import sql
from rq.serializers import JSONSerializer

from forebay.embedded import temporary_server
from forebay.errors import DatabaseUnavailable
from forebay.moving import write
from tests.support.engine import one

#: In Redis, of these tests alone.
DATABASE = 9
LATER = datetime(2040, 1, 31, 8, tzinfo=UTC)


@pytest.fixture
def address(redis_server):
    return f"redis://{redis_server}/{DATABASE}"


@pytest.fixture
def client(address):
    with redis.Redis.from_url(address) as client:
        client.flushdb()
        yield client


@pytest.fixture
def shop(address, client):
    """A Celery app with a queue of six jobs that can be kept."""
    app = celery.Celery("shop", broker=address, set_as_current=False)

    @app.task(name="tasks.send", shared=False)  # no task of the apps of other tests
    def send(user_id, text="hello"): ...

    for number in range(3):
        send.apply_async(kwargs={"user_id": number})
    send.apply_async(kwargs={"user_id": 3}, eta=LATER)
    send.apply_async(kwargs={"user_id": 4}, expires=LATER)
    send.apply_async(kwargs={"user_id": 5}, priority=6)
    app.send = send
    yield app
    app.close()


def dump(client):
    """All that a Redis has."""
    return {key: client.dump(key) for key in client.keys("*") if b"_kombu" not in key}


def jobs(forebay):
    found = forebay("jobs", "list", "--limit", "100", "--json").json
    return sorted(found, key=lambda job: json.dumps(job["args"], sort_keys=True))


def the_same(plan, done):
    assert (plan.pop("is_done"), done.pop("is_done")) == (False, True)
    assert plan == done


@pytest.mark.slow
def test_messages_of_celery_become_jobs_once(forebay, address, client, shop):
    """
    The dry run is the effect; times, expiry and priority are kept; a repetition makes no job, also
    when they have ended; Redis is as before.
    """
    before = dump(client)
    call = ("import", "celery", "--broker", address)
    plan = forebay(*call, "--dry-run", "--json").json
    assert jobs(forebay) == []
    done = forebay(*call, "--token", plan["token"], "--json").json
    the_same(plan, done)
    assert done["waiting"] == [{"kind": "tasks.send", "queue": "default", "new": 6, "known": 0}]
    found = jobs(forebay)
    assert [job["args"] for job in found] == [{"user_id": number} for number in range(6)]
    assert [job["state"] for job in found] == ["ready"] * 3 + ["scheduled"] + ["ready"] * 2
    assert datetime.fromisoformat(found[3]["run_at"]) == LATER
    assert datetime.fromisoformat(found[4]["expires_at"]) == LATER
    assert [found[0]["priority"], found[5]["priority"]] == [100, 106]
    forebay("jobs", "cancel", "--all", "--yes")
    again = forebay(*call, "--yes", "--to-queue", "other", "--json").json
    assert again["waiting"] == [{"kind": "tasks.send", "queue": "other", "new": 0, "known": 6}]
    assert len(jobs(forebay)) == 6
    assert dump(client) == before
    assert "purge" in forebay(*call, "--yes").out


@pytest.mark.slow
def test_what_celery_cannot_hand_over_is_named(forebay, address, client, shop):
    """Parts of a canvas, arguments without names, other bodies, expired and taken messages."""
    client.delete("celery")
    shop.send.apply_async(args=(1,))
    shop.send.apply_async(kwargs={"user_id": 1}, link=shop.send.s())
    (shop.send.si(user_id=1) | shop.send.si(user_id=2)).apply_async()
    shop.send.apply_async(kwargs={"user_id": 1}, expires=datetime(2020, 1, 1, tzinfo=UTC))
    shop.send.apply_async(kwargs={"user_id": 1}, time_limit=5)
    shop.send.apply_async(kwargs={"user_id": 1}, serializer="pickle")
    client.lpush("celery", b"nonsense", b"[]", b'{"headers": {}, "properties": {}}')
    client.hset("unacked", "a", json.dumps([{"headers": {"task": "t", "id": "7"}}, "", "celery"]))
    plan = forebay("import", "celery", "--broker", address, "--dry-run", "--json").json
    reasons = "\n".join(f"{each['name']}: {each['reason']}" for each in plan["refused"])
    for word in (
        "by position", "(link)", "(chain)", "expired", "time limit", "application/x-python",
        "no message", "protocol 2", "t 7: a worker has taken it",
    ):  # fmt: skip
        assert word in reasons, reasons
    assert len(plan["refused"]) == 10
    assert [each["new"] for each in plan["waiting"]] == [1]
    # The application gives arguments their names.
    app = ("--app", "tests.support.celery_project:app", "--map", "tasks.send=send")
    named = forebay("import", "celery", "--broker", address, *app, "--dry-run", "--json").json
    assert "by position" not in json.dumps(named)
    assert named["waiting"] == [{"kind": "send", "queue": "letters", "new": 2, "known": 0}]


@pytest.mark.slow
def test_an_import_that_dies_is_finished_by_the_same_call(
    forebay, address, client, shop, monkeypatch
):
    """Chunks that were committed are not written again, with the same token."""
    monkeypatch.setattr(write, "_CHUNK", 2)
    call = ("import", "celery", "--broker", address)
    token = forebay(*call, "--dry-run", "--json").json["token"]
    real, calls = write._enqueued, []

    def dies(run, chunk):
        if calls:
            raise DatabaseUnavailable("cut")
        calls.append(chunk)
        return real(run, chunk)

    monkeypatch.setattr(write, "_enqueued", dies)
    assert forebay(*call, "--token", token).code == 3
    assert len(jobs(forebay)) == 2
    monkeypatch.setattr(write, "_enqueued", real)
    done = forebay(*call, "--token", token, "--json").json
    assert [(each["new"], each["known"]) for each in done["waiting"]] == [(4, 2)]
    assert len(jobs(forebay)) == 6
    shop.send.apply_async(kwargs={"user_id": 9})
    changed = forebay(*call, "--token", token)
    assert (changed.code, len(jobs(forebay))) == (1, 6)


class Folder:
    """Makes a folder when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.makedirs, (str(self.path), 0o777, True)


@pytest.mark.slow
def test_jobs_of_rq_are_read_as_json_and_pickles_only_where_trusted(
    forebay, address, client, tmp_path
):
    """To read a pickle runs what its writer wants: without the option it does not happen."""
    ran = tmp_path / "ran"
    call = ("import", "rq", "--redis", address)
    plain = rq.Queue(connection=client, serializer=JSONSerializer)
    plain.enqueue("tasks.send", kwargs={"user_id": 1}, ttl=3600)
    plain.enqueue_at(LATER, "tasks.send", user_id=2)
    first = plain.enqueue("tasks.send", user_id=3)
    plain.enqueue("tasks.send", user_id=4, depends_on=first)
    pickled = rq.Queue(connection=client)
    pickled.enqueue("tasks.send", user_id=5)
    pickled.enqueue("tasks.send", user_id=Folder(ran))
    before = dump(client)
    plan = forebay(*call, "--dry-run", "--json").json
    assert [each["new"] for each in plan["waiting"]] == [3]
    reasons = [each["reason"] for each in plan["refused"]]
    assert sum("--trust-pickles" in reason for reason in reasons) == 2
    assert sum("waits for other jobs" in reason for reason in reasons) == 1
    assert not ran.exists()
    done = forebay(*call, "--token", plan["token"], "--json").json
    the_same(plan, done)
    found = jobs(forebay)
    assert [job["args"]["user_id"] for job in found] == [1, 2, 3]
    assert found[0]["expires_at"] is not None
    assert datetime.fromisoformat(found[1]["run_at"]) == LATER
    trusted = forebay(*call, "--trust-pickles", "--yes", "--json").json
    assert [(each["new"], each["known"]) for each in trusted["waiting"]] == [(2, 3)]
    assert ran.exists()
    assert dump(client) == before


@pytest.mark.slow
def test_jobs_of_procrastinate_keep_time_order_and_priority(forebay, conn, database):
    import procrastinate

    connector = procrastinate.SyncPsycopgConnector(conninfo=database)
    app = procrastinate.App(connector=connector)

    @app.task(name="tasks.send", queue="mail")
    def send(user_id): ...

    with app.open():
        app.schema_manager.apply_schema()
        send.defer(user_id=1)
        send.configure(schedule_at=LATER, priority=5).defer(user_id=2)
        send.configure(lock="document").defer(user_id=3)
        send.configure(queue="other").defer(user_id=4)
    conn.execute("update procrastinate_jobs set status = 'doing' where id = 1")
    call = ("import", "procrastinate", "--queue", "mail")
    plan = forebay(*call, "--dry-run", "--json").json
    done = forebay(*call, "--token", plan["token"], "--json").json
    the_same(plan, done)
    later, ordered = jobs(forebay)
    assert (later["args"], later["priority"]) == ({"user_id": 2}, 95)
    assert datetime.fromisoformat(later["run_at"]) == LATER
    assert (ordered["args"], ordered["ordering_key"]) == ({"user_id": 3}, "document")
    assert forebay("import", "procrastinate", "--yes", "--json").json["waiting"] == [
        {"kind": "tasks.send", "queue": "default", "new": 1, "known": 2}
    ]
    assert one(conn, "select count(*) from procrastinate_jobs where status = 'todo'") == 3


@pytest.mark.slow
def test_jobs_of_pgqueuer_are_read_where_their_payload_is_an_object(forebay, conn, database):
    import asyncpg
    from pgqueuer.db import AsyncpgDriver
    from pgqueuer.queries import Queries

    async def fill():
        connection = await asyncpg.connect(database)
        try:
            queries = Queries(AsyncpgDriver(connection))
            await queries.install()
            await queries.enqueue(
                ["tasks.send"] * 3,
                ['{"user_id": 1, "text": "grüß"}'.encode(), b"\xff\x00", None],
                [0, 0, 7],
                execute_after=[timedelta(0), timedelta(0), timedelta(days=1)],
            )
        finally:
            await connection.close()

    asyncio.run(fill())
    plan = forebay("import", "pgqueuer", "--dry-run", "--json").json
    assert ["payload" in each["reason"] for each in plan["refused"]] == [True]
    done = forebay("import", "pgqueuer", "--token", plan["token"], "--json").json
    the_same(plan, done)
    first, second = sorted(jobs(forebay), key=lambda job: job["priority"])
    assert (first["priority"], first["args"], first["state"]) == (93, {}, "scheduled")
    assert second["args"] == {"user_id": 1, "text": "grüß"}
    assert one(conn, "select count(*) from pgqueuer") == 3


#: As procrastinate makes it, as far as an import reads it.
WAITING = """\
create table {0}procrastinate_jobs (id bigint generated always as identity, queue_name text,
    task_name text, priority integer default 0, lock text, args jsonb, status text default 'todo',
    scheduled_at timestamptz);
insert into {0}procrastinate_jobs (queue_name, task_name, args)
select 'mail', 'tasks.send', jsonb_build_object('user_id', n) from generate_series(1, 3) n"""


def imported(forebay, *call):
    """How many jobs an import has written, and how many it says are here."""
    found = forebay("import", *call, "--yes", "--json").json["waiting"]
    return sum(each["new"] for each in found), sum(each["known"] for each in found)


@pytest.fixture
def second_server(pg_bin, database):
    """Another server with a database of the same name."""
    with temporary_server(pg_bin) as server:
        name = psycopg.conninfo.conninfo_to_dict(database)["dbname"]
        with psycopg.connect(server.dsn(), autocommit=True) as conn:
            conn.execute(sql.SQL("create database {}").format(sql.Identifier(name)))
        yield server.dsn(name)


@pytest.mark.slow
def test_tables_of_two_servers_whose_databases_have_one_name_are_two(
    forebay, conn, database, second_server
):
    """The ids of each begin at 1, and no job of one is taken for that of the other."""
    conn.execute(WAITING.format(""))
    with psycopg.connect(second_server, autocommit=True) as second:
        second.execute(WAITING.format(""))
    for source in (database, second_server):
        assert imported(forebay, "procrastinate", "--from", source) == (3, 0)
        assert imported(forebay, "procrastinate", "--from", source) == (0, 3)


def test_tables_of_two_schemas_are_two(forebay, conn, database):
    for schema in ("eu", "us"):
        conn.execute(f"create schema {schema}")
        conn.execute(WAITING.format(f"{schema}."))
    for schema in ("eu", "us"):
        source = psycopg.conninfo.make_conninfo(database, options=f"-csearch_path={schema}")
        assert imported(forebay, "procrastinate", "--from", source) == (3, 0)
        assert imported(forebay, "procrastinate", "--from", source) == (0, 3)


def test_the_ids_of_an_emptied_table_begin_again(forebay, conn):
    """Another job under the number of one that was imported is no job that is here."""
    conn.execute(WAITING.format(""))
    assert imported(forebay, "procrastinate") == (3, 0)
    conn.execute("truncate procrastinate_jobs restart identity")
    conn.execute(
        "insert into procrastinate_jobs (queue_name, task_name, args)"
        " values ('mail', 'tasks.send', '{\"user_id\": 9}')"
    )
    assert imported(forebay, "procrastinate") == (1, 0)


def test_a_role_that_may_not_read_the_identifier_of_the_cluster_imports(forebay, conn):
    """The keys have a digest of their contents, so a job is taken for the same job only."""
    conn.execute(WAITING.format(""))
    conn.execute("create role reader_of_jobs login")
    try:
        conn.execute("revoke execute on function pg_control_system() from public")
        conn.execute("grant select on procrastinate_jobs to reader_of_jobs")
        dsn = psycopg.conninfo.make_conninfo(conn.info.dsn, user="reader_of_jobs")
        assert imported(forebay, "procrastinate", "--from", dsn) == (3, 0)
        assert imported(forebay, "procrastinate", "--from", dsn) == (0, 3)
    finally:
        conn.execute("drop owned by reader_of_jobs; drop role reader_of_jobs")


def test_arguments_that_are_nested_too_deeply_are_named(forebay, conn):
    """And the other jobs are written."""
    conn.execute(WAITING.format(""))
    conn.execute(
        "update procrastinate_jobs set args = jsonb_build_object('a',"
        " (repeat('[', 3000) || repeat(']', 3000))::jsonb) where id = 2"
    )
    plan = forebay("import", "procrastinate", "--dry-run", "--json").json
    assert [each["reason"] for each in plan["refused"]] == ["its arguments are nested too deeply"]
    assert [each["new"] for each in plan["waiting"]] == [2]


@pytest.mark.slow
def test_messages_of_celery_with_one_chosen_id_are_each_a_job(forebay, address, client, shop):
    """Also those of another Redis; a message that a Redis has twice is named as a double."""
    client.flushdb()
    for user_id in (1, 2, 2):
        shop.send.apply_async(kwargs={"user_id": user_id}, task_id="chosen")
    call = ("celery", "--broker", address)
    assert imported(forebay, *call) == (3, 0)
    other = address.replace(f"/{DATABASE}", f"/{DATABASE + 1}")
    with redis.Redis.from_url(other) as elsewhere:
        elsewhere.flushdb()
        with celery.Celery("shop", broker=other, set_as_current=False) as second:
            second.send_task("tasks.send", kwargs={"user_id": 1}, task_id="chosen")
        assert imported(forebay, "celery", "--broker", other) == (1, 0)
    assert imported(forebay, *call) == (0, 3)
    # A message that a worker gives back is the same one; a copy of it is a double.
    given_back = json.loads(client.lindex("celery", 0))
    given_back["headers"]["redelivered"] = True
    given_back["properties"]["delivery_info"]["redelivered"] = True
    client.rpush("celery", json.dumps(given_back))
    plan = forebay("import", *call, "--yes", "--json").json
    assert [(each["new"], each["known"]) for each in plan["waiting"]] == [(0, 3)]
    (double,) = plan["refused"]
    assert (double["name"], "twice" in double["reason"]) == ("tasks.send chosen", True)
    assert len(jobs(forebay)) == 4


@pytest.mark.slow
def test_jobs_of_rq_with_one_chosen_id_are_each_a_job(forebay, address, client):
    """One that ran and was made anew, and that of another Redis; one that waits twice is named."""
    call = ("rq", "--redis", address)
    queue = rq.Queue(connection=client, serializer=JSONSerializer)
    queue.enqueue("tasks.send", user_id=1, job_id="chosen")
    assert imported(forebay, *call) == (1, 0)
    client.flushdb()
    queue.enqueue("tasks.send", user_id=1, job_id="chosen")
    assert imported(forebay, *call) == (1, 0)
    client.rpush("rq:queue:default", "chosen")
    plan = forebay("import", *call, "--yes", "--json").json
    assert [(each["new"], each["known"]) for each in plan["waiting"]] == [(0, 1)]
    assert ["twice" in each["reason"] for each in plan["refused"]] == [True]
    assert len(jobs(forebay)) == 2


def test_a_source_that_is_not_there_is_named(forebay):
    for call, word in (
        (("celery", "--broker", "redis://:secret@127.0.0.1:9/0"), "--broker"),
        (("rq", "--redis", "nonsense"), "--redis"),
        (("procrastinate",), "procrastinate_jobs"),
        (("pgqueuer",), "pgqueuer"),
    ):
        refused = forebay("import", *call, "--dry-run")
        assert (refused.code, word in refused.err) == (2, True), refused.err
        assert "secret" not in refused.err
