"""The doctor finds what is wrong, says what to do, and does nothing itself."""

import asyncio
import contextlib
import os
import threading
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest

import forebay
from forebay.doctor import CHECKS, Level, judge_objects
from forebay.doctor import _locks as lock_checks
from forebay.doctor import _server as server_checks
from forebay.doctor import _snapshots as snapshot_checks
from forebay.doctor.examine import read_catalog
from forebay.guard.holders import Holder
from forebay.sql import expected_catalog, latest_version
from tests.support.engine import Reader, connect, enqueue, one, small_segments
from tests.support.fix_worker import run_until_idle
from tests.support.waiting import wait_for


@pytest.fixture
def findings(command, database):
    """Run the doctor and return what it found of one check, or the worst of it."""

    def call(check=None, dsn=database):
        answer = command("doctor", "--dsn", dsn, "--json")
        found = [item for item in answer.json["findings"] if check in (None, item["check"])]
        worst = min(answer.json["findings"], key=lambda item: Level(item["level"]).rank)
        is_blind = any(item["facts"].get("unchecked") for item in answer.json["findings"])
        assert answer.code == (1 if worst["level"] == "error" else 2 if is_blind else 0)
        assert answer.json["worst"] == worst["level"]
        return found

    return call


def levels(found):
    return {item["level"] for item in found}


def text(found):
    return "\n".join(f"{item['what']} -> {item['remedy']}" for item in found)


# --- the report ---


def test_a_healthy_database_gets_every_check_and_no_error(findings):
    """
    Each check says something, and nothing of it is an error.
    """
    found = findings()
    assert {item["check"] for item in found} == {
        "driver",
        "connection",
        "space",
        *(check.name for check in CHECKS),
    }
    assert all(set(item) == {"check", "level", "what", "remedy", "facts"} for item in found)
    assert "error" not in levels(found)
    (driver,) = [item for item in found if item["check"] == "driver"]
    assert driver["facts"]["implementation"] in {"binary", "c"}


def test_the_worst_is_read_last(command, empty_database):
    """
    At the end of the output is what has to be done.
    """
    answer = command("doctor", "--dsn", empty_database)
    assert answer.code == 1
    lines = answer.out.splitlines()
    assert all(not line.startswith("✓") for line in lines)
    assert "passed, -v shows them" in lines[-1]
    verbose = command("doctor", "-v", "--dsn", empty_database).out.splitlines()
    assert verbose[0].startswith("✓")
    assert "1 error" in lines[-1]
    assert "→ Run `forebay migrate`." in lines[-3]


def test_notices_do_not_stand_above_what_is_wrong(command, database):
    """
    They are the same in every run, and take a quarter of a small terminal: -v shows them.
    """
    answer = command("doctor", "--dsn", database)
    assert "idle_in_transaction_session_timeout" not in answer.out
    assert " and " in answer.out.splitlines()[-1]
    verbose = command("doctor", "-v", "--dsn", database).out
    assert "· timeouts" in verbose
    assert "1 notice" in verbose.splitlines()[-1] or "notices" in verbose.splitlines()[-1]


def test_without_a_schema_the_server_is_examined_all_the_same(findings, empty_database):
    """
    What does not need the schema is looked at; the rest is not a heap of failures.
    """
    found = findings(dsn=empty_database)
    assert {item["check"] for item in found} >= {"server", "durability", "snapshots"}
    assert [item["check"] for item in found if item["level"] == "error"] == ["schema"]


@pytest.mark.slow
def test_a_lock_of_a_stranger_hides_only_what_reads_the_table(findings, conn, database):
    """
    The doctor waits for nobody; what it could not see it says, and it sees the rest.
    """
    with connect(database) as stranger:
        stranger.execute("begin; lock table forebay.dead_letter")
        found = findings()
    unseen = [item for item in found if "could not be checked" in item["what"]]
    assert (
        {"failures", "held keys"}
        <= {item["check"] for item in unseen}
        <= {"failures", "held keys", "objects", "scheduled", "space"}
    )
    assert levels(unseen) == {"notice"}


@pytest.mark.direct  # logs in as another role
def test_a_role_without_rights_learns_whom_to_ask(findings, conn, server, database):
    """
    What a role may not see is named, with the role that may.
    """
    role = f"stranger_{os.getpid()}"
    conn.execute(f"create role {role} login")
    try:
        found = findings(dsn=f"{database}&options=-c%20role%3D{role}")
    finally:
        conn.execute(f"drop role {role}")
    unseen = [item for item in found if "could not be checked" in item["what"]]
    assert {"queues", "workers", "reserve"} <= {item["check"] for item in unseen}
    assert "Run the doctor as a member of forebay_operator or forebay_reader." in text(unseen)


@pytest.mark.direct  # logs in as another role
@pytest.mark.parametrize("member", [None, "forebay_producer"])
def test_checks_that_could_not_be_made_are_no_success(command, conn, database, member):
    """They are counted and shown, and the exit code is that of a status that is unknown."""
    role = f"blind_{os.getpid()}"
    conn.execute(f"create role {role} login" + (f" in role {member}" if member else ""))
    try:
        dsn = f"{database}&options=-c%20role%3D{role}"
        answer = command("doctor", "--dsn", dsn)
        status = command("status", "--dsn", dsn)
    finally:
        conn.execute(f"drop role {role}")
    assert answer.code == status.code == 2
    assert "no problems found" not in answer.out
    assert "checks could not be made" in answer.out.splitlines()[-1]
    assert "Run the doctor as a member of forebay_operator or forebay_reader." in answer.out


def test_the_doctor_only_reads(findings, conn, database):
    """
    It may be run on any database at any time: it leaves no trace in the schema. The write that it
    tries and undoes takes two transaction ids.
    """
    enqueue(conn)

    def written():
        # Transaction ids that were given out; reading needs none.
        return int(one(conn, "select pg_snapshot_xmax(pg_current_snapshot())::text"))

    def has_written():
        before = written()
        findings()
        return written() > before + 2

    findings()
    # Autovacuum writes too, now and then; the doctor would each time.
    assert not all(has_written() for _ in range(5))


# --- locks ---


@pytest.mark.slow
@pytest.mark.direct
@pytest.mark.parametrize("is_prepared", [False, True])
def test_a_session_that_holds_a_lock_of_ours_is_named_and_no_worker_is_called_for(
    findings, conn, database, monkeypatch, is_prepared
):
    """
    A job is overdue because a transaction holds the lock of promotion: a further worker would not
    help.
    """
    monkeypatch.setattr(lock_checks, "_HELD_SECONDS", 0.0)
    enqueue(conn, delay="1 millisecond")
    conn.execute("update forebay.deferred set run_at = run_at - interval '1 hour'")
    assert findings("locks")[0]["level"] == "ok"
    assert "Start a worker" in text(findings("overdue"))
    with contextlib.ExitStack() as stack:
        holder = stack.enter_context(psycopg.connect(database, application_name="a console"))
        holder.execute("lock table only forebay.lock_promotion in share update exclusive mode")
        named = (
            f"pid {holder.info.backend_pid} (role postgres, a console, idle in transaction, in a"
        )
        remedy = f"select pg_terminate_backend({holder.info.backend_pid});"
        if is_prepared:
            holder.execute("prepare transaction 'forgotten'")
            holder.rollback()
            stack.callback(conn.execute, "rollback prepared 'forgotten'")
            named = "prepared transaction 'forgotten' (role postgres, in a"
            remedy = "rollback prepared 'forgotten'"
        (found,) = findings("locks")
        assert found["level"] == "error"
        assert found["facts"]["tables"] == ["lock_promotion"]
        assert named in found["what"]
        assert remedy in found["remedy"]
        assert "Start a worker" not in text(findings())
        assert "see locks" in text(findings("overdue"))


@pytest.mark.slow
@pytest.mark.direct
def test_a_session_that_waits_is_counted_with_the_lock_it_waits_for(findings, conn, database):
    """
    The wait counts, not the age of the transaction: so the holder is found by a role that may not
    see other sessions.
    """
    with (
        connect(database) as holder,
        connect(database) as waiting,
        ThreadPoolExecutor(1) as threads,
    ):
        holder.execute("begin; lock table forebay.dead_letter")
        query = "select count(*) from forebay.dead_letter"
        waits = threads.submit(waiting.execute, query)
        wait_for(
            lambda: one(
                conn,
                "select coalesce(max(clock_timestamp() - waitstart), '0') > '5 s' from pg_locks"
                " where pid = %s and not granted",
                waiting.info.backend_pid,
            )
        )
        (found,) = findings("locks")
        holder.execute("rollback")
        waits.result(10)
    assert found["facts"]["tables"] == ["dead_letter"]
    assert found["facts"]["waiting"] == 1
    assert "1 session waits, for up to" in found["what"]


# --- schema ---


def test_the_recorded_catalog_is_what_the_migrations_make(database):
    """
    On every version of PostgreSQL; after a new migration run tools/write_catalog.py.
    """
    assert asyncio.run(read_catalog(database)) == dict(expected_catalog())


def test_segments_made_later_are_no_finding(findings, conn):
    """
    The number of segments, and their borders, are nobody's mistake.
    """
    small_segments(conn)
    assert levels(findings("objects")) == {"ok"}, text(findings("objects"))


@pytest.mark.parametrize(
    ("change", "level", "said"),
    [
        (
            """create or replace function forebay._wakeup(p_queue text) returns regclass
            language sql stable as $$ select 'forebay.wakeup_0'::regclass $$""",
            "error",
            "differs from the migrations: function _wakeup",
        ),
        ("alter function forebay.claim_v1 reset jit", "error", "function claim_v1"),
        ("drop index forebay.lane_by_queue", "error", "missing: index lane.lane_by_queue"),
        ("drop index forebay.log_0_job_id_idx", "error", "index log_#.log_#_job_id_idx"),
        ("drop function forebay.depth", "error", "missing: function depth"),
        ("alter table forebay.lease alter worker drop not null", "error", "column lease.worker"),
        ("alter sequence forebay.log_seq cache 20", "error", "sequence log_seq"),
        ("alter table forebay.log enable row level security", "error", "row security of log"),
        ("alter table forebay.failure add column seen boolean", "notice", "failure.seen"),
        ("create index mine on forebay.failure (worker)", "notice", "failure.mine was added"),
        (
            """create trigger loud after insert on forebay.dead_letter
            execute function suppress_redundant_updates_trigger()""",
            "warning",
            "trigger dead_letter.loud",
        ),
        ("create rule r as on delete to forebay.lane do instead nothing", "warning", "rule lane.r"),
        ("grant select on forebay.log to public", "warning", "grant to public on log: select"),
        (
            "grant execute on function forebay.redrive to public",
            "warning",
            "grant to public on redrive: execute",
        ),
        ("alter table forebay.seal owner to pg_monitor", "warning", "owner of seal is pg_monitor"),
    ],
)
def test_what_somebody_changed_is_named(findings, conn, change, level, said):
    """
    A changed, missing or added object is a finding; how bad it is depends on what it can do.
    """
    conn.execute("select 1")  # the connection is there before the schema changes
    if "seal owner" in change:
        conn.execute("grant all on schema forebay to pg_monitor")
    conn.execute(change)
    found = findings("objects")
    assert level in levels(found), text(found)
    assert said in text(found)


def test_many_differences_are_counted_not_listed():
    """
    A schema that is quite another one does not fill the screen.
    """
    expected = dict(expected_catalog())
    found = judge_objects({f"index x.{n}": "x" for n in range(100)}, expected)
    assert len(found) <= 13
    assert sum(len(item.what) for item in found) < 3000


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            """insert into forebay.schema_migration (version, name, checksum)
            values (999, 'post_later', repeat('0', 64))""",
            "too new",
        ),
        (
            "update forebay.schema_migration set checksum = repeat('0', 64) where version = 1",
            "applied from different files",
        ),
        ("drop table forebay.schema_migration", "records no migration"),
    ],
)
def test_another_version_of_the_schema_is_an_error(findings, conn, change, said):
    """
    Too new, tampered with and without records are told apart.
    """
    conn.execute(change)
    found = findings()
    compared_text = text([item for item in found if item["check"] == "objects"])
    # What another version made is no finding; that it was not compared is said.
    compared = {"applied from different files": "match the migrations", "too new": "not compared"}
    assert bool(compared_text) == (said in compared)
    assert compared.get(said, "") in compared_text
    schema = [item for item in found if item["check"] == "schema"]
    assert levels(schema) == {"error"}
    assert said in text(schema)


def test_a_schema_that_lacks_a_migration_is_too_old(findings, release):
    """
    A library whose newest migration was not applied does not work with the schema.
    """
    release(("later", "select 1;"))
    found = findings()
    assert "not compared" in text([item for item in found if item["check"] == "objects"])
    schema = [item for item in found if item["check"] == "schema"]
    assert levels(schema) == {"error"}
    assert "too old" in text(schema)


def test_versions_that_serve_each_other_are_worth_a_notice(findings, conn, release):
    """
    A newer schema that still serves this library, pending post migrations, and workers made for
    another version are said, and are no error.
    """
    conn.execute(
        (
            "insert into forebay.schema_migration (version, name, checksum) values (%s, "
            "'later', repeat('0', 64))"
        ),
        [latest_version() + 1],
    )
    conn.execute("select forebay.open_lease_v1('shop-1:4711', 30, 5, %s)", [latest_version() + 1])
    found = findings()
    schema = [item for item in found if item["check"] == "schema"]
    assert levels(schema) == {"notice"}
    assert "which still works" in text(schema)
    assert f"shop-1:4711 ({latest_version() + 1})" in text(found)

    conn.execute("delete from forebay.schema_migration where version > %s", [latest_version()])
    (later,) = release(("post_later", "select 1;"))
    schema = [item for item in findings() if item["check"] == "schema"]
    assert levels(schema) == {"notice"}
    assert f"pending: {later.version:04} post_later" in text(schema)


def test_a_copy_of_another_database_waits_for_a_decision(findings, conn):
    """
    Nothing runs in a restored log, which must not be found out by waiting.
    """
    conn.execute("update forebay.cluster set system_identifier = 1")
    (found,) = findings("cluster")
    assert found["level"] == "error"
    assert "forebay adopt --resume" in found["remedy"]


# --- server ---


@pytest.mark.parametrize(
    ("setting", "level", "said"),
    [
        ("default_transaction_isolation = 'repeatable read'", "notice", "may have to be repeated"),
        ("default_transaction_read_only = on", "error", "nothing can be enqueued"),
        ("statement_timeout = '2s'", "warning", "statement_timeout is 2 s"),
        ("statement_timeout = '1h'", "notice", "statement_timeout is 1 h"),
        ("idle_in_transaction_session_timeout = '1s'", "warning", "idle_in_transaction"),
        ("idle_in_transaction_session_timeout = '5min'", "notice", "if handlers need longer"),
        ("idle_in_transaction_session_timeout = 0", "notice", "let `forebay guard` end such"),
        ("idle_session_timeout = '30s'", "notice", "idle_session_timeout is 30 s"),
    ],
)
def test_session_settings_that_stop_a_worker_are_found(findings, database, setting, level, said):
    """
    What a new session gets counts, not what the doctor set for itself.
    """
    with connect(database) as conn:
        conn.execute(f"alter database {conn.info.dbname} set {setting}")
    found = findings("timeouts")
    assert level in levels(found)
    assert said in text(found)


@pytest.mark.direct  # a database's settings are those of new sessions
def test_the_remedy_of_a_setting_of_another_role_ends_it(findings, conn):
    """What is advised for each setting can be run as it stands, and the finding is gone."""
    role, database = f"Set {os.getpid()}", conn.info.dbname
    conn.execute(f'create role "{role}" login')
    try:
        for place in (f'role "{role}"', f'role "{role}" in database {database}'):
            for setting, said in (
                ("default_transaction_isolation = 'serializable'", "may have to be repeated"),
                ("default_transaction_read_only = on", "neither enqueue nor claim"),
                ("statement_timeout = '2s'", "handlers, producers and operators"),
                ("idle_in_transaction_session_timeout = '1s'", "compute longer"),
                ("synchronous_commit = off", "a crash can undo its commits"),
            ):
                conn.execute(f"alter {place} set {setting}")
                (found,) = [one for one in findings() if f"role {role} in" in one["what"]]
                assert said in found["what"]
                conn.execute(found["remedy"][found["remedy"].index("alter ") :])
                assert f"role {role} in" not in text(findings())
                conn.execute(f"alter {place} reset all")
    finally:
        conn.execute(f'drop role "{role}"')


@pytest.mark.direct  # a database's settings are those of new sessions
@pytest.mark.anyio
async def test_jobs_run_whatever_isolation_is_the_default(findings, app, conn):
    """Claims, settlements and transactional handlers: so the doctor names no error."""
    conn.execute(
        f"alter database {conn.info.dbname} set default_transaction_isolation = 'serializable'"
    )

    seen = []

    @app.job(transaction=True)
    def work(ctx: forebay.Context) -> None:
        seen.extend(ctx.conn.execute("show transaction_isolation").fetchone())

    work.enqueue(conn)
    await run_until_idle(app)
    assert seen == ["serializable"]
    found = await asyncio.to_thread(findings, "timeouts")
    assert "error" not in levels(found)


@pytest.mark.direct  # a database's settings are those of new sessions
def test_a_limit_for_transactions_is_judged_where_the_server_has_one(findings, conn):
    """
    transaction_timeout came with PostgreSQL 17. Too short it cuts handlers off; long enough it ends
    what forgot its transaction, so that nothing more is asked for.
    """
    if one(conn, "select current_setting('server_version_num')::int") < 170_000:
        assert "transaction_timeout" not in findings("timeouts")[0]["facts"]
        return
    name = conn.info.dbname
    conn.execute(f"alter database {name} set transaction_timeout = '5s'")
    found = findings("timeouts")
    assert "warning" in levels(found)
    assert "transaction_timeout is 5 s" in text(found)
    assert "session_timeout is off" not in text(found)
    conn.execute(f"alter database {name} set transaction_timeout = '2h'")
    found = findings("timeouts")
    assert "warning" not in levels(found)
    assert "transaction_timeout is 2 h" in text(found)


def test_commits_that_a_crash_takes_back_are_found(findings, conn):
    """
    Also where only one role or database is set so.
    """
    name = conn.info.dbname
    conn.execute(f"alter database {name} set synchronous_commit = off")
    found = findings("durability")
    assert "synchronous_commit is off" in text(found)
    assert "error" not in levels(found)


def test_tables_and_sequences_that_a_crash_empties_are_an_error(findings, conn):
    """
    Somebody made one unlogged, to be faster.
    """
    conn.execute("alter table forebay.settlement set unlogged")
    conn.execute("alter sequence forebay.wakeup_3 set unlogged")
    found = findings("durability")
    assert "error" in levels(found)
    assert "unlogged tables or sequences: settlement, wakeup_3" in text(found)


def test_roles_that_are_missing_or_powerless_are_named():
    """
    A migration by a role that may not create roles goes on without them.
    """
    rows = [
        ("forebay_operator", True, False, []),
        ("forebay_producer", True, True, ["app"]),
        ("forebay_reader", False, None, []),
        ("forebay_worker", True, True, []),
    ]
    missing, powerless = server_checks._judge_roles(rows)
    assert "missing: forebay_reader" in missing.what
    assert "create role forebay_reader" in missing.remedy
    assert "forebay_operator" in powerless.what
    assert powerless.level is Level.WARNING


@pytest.mark.parametrize(("usage", "level"), [(0.1, "ok"), (0.4, "warning"), (0.9, "error")])
def test_a_full_notification_queue_is_an_error_before_it_is_full(usage, level):
    """
    When it is full every transaction that notifies fails, whoever's it is.
    """
    (found,) = server_checks._judge_notifications([(usage,)])
    assert found.level == level


@pytest.mark.parametrize(
    ("row", "level", "said"),
    [
        ((140011, "14.11", False, "d", "u", 1.0), "error", "older than 15"),
        ((180006, "18.6", True, "d", "u", 1.0), "error", "standby"),
        ((190000, "19.0", False, "d", "u", 1.0), "notice", "newer"),
    ],
)
def test_a_server_that_cannot_serve_is_an_error(row, level, said):
    """
    Too old, or a standby, which nothing can be written to.
    """
    (found,) = server_checks._judge_server([row])
    assert found.level == level
    assert said in found.what


# --- the log ---


def test_waiting_jobs_that_nobody_claims_are_found(findings, conn, database):
    """
    Three reasons why a job waits: nobody runs, nobody serves this queue, it is paused.
    """
    enqueue(conn, queue="mail")
    (found,) = findings("unserved")
    assert found["level"] == "warning"
    assert "queue mail: 1 job ready and no worker is running" in found["what"]
    assert "--queue mail" in found["remedy"]

    with Reader(database, queue="other"):
        (found,) = findings("unserved")
    assert "no worker has claimed from it ever" in found["what"]

    conn.execute("select forebay.pause_queue('mail')")
    (found,) = findings("queues")
    assert found["level"] == "notice"
    assert "forebay queues resume mail" in found["remedy"]


@pytest.mark.parametrize("queue", ["forebay.publish", "forebay.deliver"])
def test_events_and_deliveries_that_wait_call_for_forebay_deliver(findings, conn, queue):
    """No application serves these queues."""
    enqueue(conn, queue=queue)
    (found,) = findings("unserved")
    assert found["level"] == "warning"
    assert f"queue {queue}: 1 job ready and no worker is running" in found["what"]
    assert "forebay deliver" in found["remedy"]
    assert "--queue" not in found["remedy"]


def test_deliveries_that_wait_for_their_endpoint_call_for_a_look_at_endpoints(
    findings, conn, database
):
    """A deliverer runs, and the endpoint is disabled."""
    conn.execute(
        "select forebay.create_endpoint('shop', 'http', '{\"url\": \"https://a.example\"}')"
    )
    with Reader(database, "forebay.deliver") as reader:
        conn.execute("select forebay.send('shop', '{}')")
        conn.execute("select forebay.disable_endpoint('shop')")
        assert reader.claim_all() == []
        (found,) = findings("queues")
    assert "queue forebay.deliver: 1 job ready" in found["what"]
    assert "forebay endpoints list" in found["remedy"]


def test_busy_workers_are_told_from_missing_ones(findings, conn, database):
    """
    While others of the queue run, waiting is no fault.
    """
    for _ in range(3):
        enqueue(conn, queue="mail")
    with Reader(database, queue="mail") as reader:
        reader.claim_ready(1)
        conn.execute("update forebay.batch set claimed_at = claimed_at - interval '5 minutes'")
        (found,) = findings("queues")
    assert found["level"] == "notice"
    assert "its workers are busy" in found["what"]


@pytest.mark.slow
def test_a_silent_worker_is_found_with_the_jobs_in_its_hands(findings, conn, database):
    """
    Silent for longer than its lease, and nobody alive to take its jobs over.
    """
    for _ in range(3):
        enqueue(conn)
    with Reader(database) as reader:
        reader.claim_ready(2)
        (alive,) = findings("workers")
        assert (alive["level"], alive["facts"]["alive"][0]["jobs"]) == ("ok", 2)

        conn.execute(
            "update forebay.heartbeat set heartbeat_at = heartbeat_at - interval '20 seconds'"
        )
        (suspected, _) = findings("workers")
        assert suspected["level"] == "notice"
        assert "recovered after 30 s" in suspected["what"]

        conn.execute(
            "update forebay.heartbeat set heartbeat_at = heartbeat_at - interval '1 minute'"
        )
        (lost, none_alive) = findings("workers")
    assert lost["level"] == "warning"
    assert "with 2 jobs; no worker took them over" in lost["what"]
    assert none_alive["what"] == "no worker is running"


def test_deferred_jobs_that_nobody_brings_are_found(findings, conn):
    """
    A job whose time has come is the business of any worker; if none runs, it waits.
    """
    enqueue(conn, delay="1 hour")
    assert levels(findings("scheduled")) == {"ok"}
    conn.execute("update forebay.deferred set run_at = now() - interval '5 minutes'")
    (found,) = findings("overdue")
    assert found["level"] == "warning"
    assert "1 job of queue default is due and not ready yet, the oldest for 5 min" in found["what"]


def test_dead_letters_and_missing_handlers_are_found(findings, conn, database):
    """
    With the kind, the reason and the last error, and the command that shows more.
    """
    for outcome in ("dead", "unknown"):
        enqueue(conn, kind="greet")
        with Reader(database) as reader:
            batch = reader.claim_ready(1)
            error = {"type": "UnknownKind", "message": f"because {outcome}"}
            reader.settle(
                batch.claim_no, [], ended=[{"offset": 1, "outcome": outcome, "error": error}]
            )
    found = findings("failures")
    assert levels(found) == {"notice", "warning"}
    assert "forebay dead groups --kind greet" in text(found)
    assert "because dead" in text(found)
    assert "because unknown" in text(found)


@pytest.mark.slow
def test_running_out_of_numbers_is_an_error_before_it_happens(findings, conn):
    """
    When no segment is left every enqueue fails; the remedy is one statement.
    """
    assert levels(findings("reserve")) == {"ok"}
    last = one(conn, "select max(hi) - 1 from forebay.segment")
    reserve = one(conn, "select value from forebay.setting where name = 'reserve_rows'")
    conn.execute("select setval('forebay.log_seq', %s)", [last - reserve // 2 + 1000])
    assert levels(findings("reserve")) == {"warning"}
    conn.execute("select setval('forebay.log_seq', %s)", [last - 1000])
    (found,) = findings("reserve")
    assert found["level"] == "error"
    assert "1,000 numbers left in the existing segments" in found["what"]

    conn.execute("select forebay.extend_v1()")
    assert levels(findings("reserve")) == {"ok"}


def test_the_rate_of_enqueuing_counts(findings, conn):
    """
    A reserve that is used up within the hour is an error, however large it is.
    """
    conn.execute("select forebay.enqueue('work') from generate_series(1, 2000)")
    conn.execute(
        "update forebay.log set enqueued_at = clock_timestamp() - interval '10 milliseconds'"
    )
    (found,) = findings("reserve")
    assert found["facts"]["numbers_per_second"] > 1000
    assert found["level"] in {"error", "warning"}


@pytest.mark.slow
def test_a_segment_that_cannot_leave_says_what_holds_it(findings, conn, database):
    """
    Which queue has not passed it, or which worker has a job of it.
    """
    small_segments(conn)
    conn.execute("select forebay.configure('retention_days', 0)")
    with Reader(database) as reader:
        enqueue(conn)
        conn.execute(
            "select setval('forebay.log_seq', (select min(s.lo) + 1 from forebay.segment s"
            " where s.lo > (select last_value from forebay.log_seq)))"
        )
        conn.execute("select forebay.seal_v1()")

        found = findings("retention")
        assert levels(found) == {"warning"}
        assert "queue default, priority 100: group default has not passed it" in text(found)
        assert "Start a worker for that queue" in text(found)

        assert reader.claim_ready(1).jobs
        enqueue(conn)  # a claim beyond the segment takes the cursor past it
        assert reader.claim_ready(1).jobs
        found = findings("retention")
        assert "worker default@test still has jobs of it" in text(found)


# --- snapshots ---


def test_an_idle_transaction_is_named_with_its_session(findings, database):
    """
    Pid, application, how long, and how to end it.
    """
    with psycopg.connect(database, application_name="analyst") as stranger:
        stranger.execute("set transaction isolation level repeatable read")
        stranger.execute("select 1 as a_report")
        (found,) = findings("snapshots")
        pid = stranger.info.backend_pid
    assert found["facts"]["pid"] == pid
    assert found["facts"]["sort"] == "idle in transaction"
    assert not found["facts"]["writes"]
    assert f"session {pid} (postgres, analyst), idle in transaction" in found["what"]


def test_an_idle_writer_is_named_though_it_has_no_snapshot(findings, database):
    """
    Its transaction id alone keeps old segments.
    """
    with psycopg.connect(database, application_name="writer") as stranger:
        stranger.execute("select pg_current_xact_id()")
        (found,) = findings("snapshots")
    assert found["facts"]["writes"]
    assert "writer" in found["what"]


def test_a_long_statement_is_named_with_its_query(findings, database):
    """
    A session at work holds a snapshot as long as its statement runs.
    """
    with psycopg.connect(database, application_name="report") as stranger:

        def report():
            with contextlib.suppress(psycopg.Error):
                stranger.execute("select pg_sleep(60)")

        thread = threading.Thread(target=report)
        thread.start()
        try:
            found = wait_for(lambda: [f for f in findings("snapshots") if "pid" in f["facts"]])
        finally:
            stranger.cancel()
            thread.join()
    assert found[0]["facts"]["sort"] == "session"
    assert "pg_sleep" in found[0]["facts"]["query"]


def test_a_forgotten_prepared_transaction_is_named(findings, database):
    """
    Nothing ever ends it but a person; the statement that does is given.
    """
    with psycopg.connect(database) as stranger:
        stranger.tpc_begin(stranger.xid(1, "forgotten", "x"))
        stranger.execute("select pg_current_xact_id()")
        stranger.tpc_prepare()
        try:
            (found,) = findings("snapshots")
            assert found["facts"]["sort"] == "prepared transaction"
            assert "1_Zm9yZ290dGVu_eA==" in found["what"]
        finally:
            stranger.tpc_rollback()


@pytest.mark.slow
def test_a_replication_slot_without_a_consumer_is_named(findings, pg_bin):
    """
    It holds its snapshot for ever, so it is a warning from the first second.
    """
    from forebay.embedded import temporary_server

    with temporary_server(pg_bin, extra_settings={"wal_level": "logical"}) as server:
        with connect(server.dsn()) as conn:
            conn.execute("select pg_create_logical_replication_slot('gone', 'test_decoding')")
        (found,) = findings("snapshots", dsn=server.dsn())
    assert found["facts"]["sort"] == "inactive replication slot"
    assert found["level"] == "warning"
    assert "pg_drop_replication_slot('gone')" in found["remedy"]


@pytest.mark.parametrize(
    ("holder", "level", "remedy"),
    [
        ({"sort": "session", "seconds": 10.0}, "ok", None),
        ({"sort": "session", "seconds": 900.0}, "notice", "pg_terminate_backend(7)"),
        ({"sort": "session", "seconds": 9000.0}, "warning", "pg_terminate_backend"),
        ({"sort": "handler", "seconds": 900.0, "application": "forebay w"}, "notice", "a timeout"),
        ({"sort": "idle in transaction", "seconds": 70.0}, "notice", "pg_terminate_backend(7)"),
        ({"sort": "idle in transaction", "seconds": 3600.0}, "warning", "terminate"),
        ({"sort": "prepared transaction", "seconds": 61.0}, "warning", "rollback prepared '7'"),
        ({"sort": "standby", "age": 50}, "ok", None),
        ({"sort": "standby", "age": 200_000}, "notice", "query on the standby"),
        ({"sort": "replication slot", "age": 20_000_000}, "warning", "that lags"),
        ({"sort": "inactive replication slot"}, "warning", "pg_drop_replication_slot('7')"),
        ({"sort": "background process", "seconds": 9000.0}, "warning", "ends by itself"),
    ],
)
def test_how_old_is_too_old_depends_on_who_holds_it(holder, level, remedy):
    """
    A prepared transaction after a minute, a session after an hour, a standby by what passed since.
    """
    found = snapshot_checks.judge_holders([Holder(name="7", **holder)])[0]
    assert found.level == level
    assert (remedy or "") in (found.remedy or "")
    assert (found.remedy is None) == (remedy is None)


def test_a_missing_schema_is_named_once(command, empty_database):
    """The name of the check is the first word of its line."""
    answer = command("doctor", "--dsn", empty_database)
    line = next(line for line in answer.out.splitlines() if "not installed" in line)
    assert "schema schema" not in " ".join(line.split())
    assert "schema forebay is not installed" in " ".join(line.split())
