"""The guard names who holds old rows and segments back, and ends them only by an explicit rule."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
import weakref

import psycopg
import pytest

from forebay.guard import operations as calls
from forebay.guard import run as guarding
from forebay.guard.rules import Rule
from tests.support.engine import Reader, connect, enqueue, one, small_segments, sqlstate, trim
from tests.support.mutant import violation
from tests.support.standby import primary_and_standby, wait_until_replayed
from tests.support.waiting import wait_for

AT_ONCE = ("--older-than", "0s")

PIDS = weakref.WeakKeyDictionary()


@pytest.fixture
def guard(command, database):
    """Run the guard and return its exit code and who it found, by their names."""

    def call(*arguments, dsn=database):
        answer = command("guard", "--dsn", dsn, "--json", *arguments)
        found = answer.json["found"] if answer.out else []
        return answer.code, {item["name"]: item for item in found}

    return call


@contextlib.contextmanager
def holding(dsn, application="stranger", *, writes=False, user=None):
    """Lend a session that is idle in a transaction with a snapshot, or with a transaction id."""
    extra = {} if user is None else {"user": user}
    stranger = psycopg.connect(dsn, application_name=application, **extra)
    try:
        hold(stranger, writes=writes)
        name(stranger)
        yield stranger
    finally:
        stranger.close()


def hold(stranger, *, writes=False):
    stranger.execute("set transaction isolation level repeatable read")
    stranger.execute("select pg_current_xact_id()" if writes else "select 'report of the month'")


@contextlib.contextmanager
def working(dsn, application="report"):
    """Lend a session that runs a long statement, and the list its end is noted in."""
    ends = []
    with psycopg.connect(dsn, application_name=application) as stranger:
        pid = int(name(stranger))

        def work():
            try:
                stranger.execute("select pg_sleep(600)")
            except psycopg.Error as error:
                ends.append(type(error).__name__)

        thread = threading.Thread(target=work)
        thread.start()
        try:
            with connect(dsn) as probe:
                wait_for(
                    lambda: one(
                        probe,
                        "select count(*) from pg_stat_activity where pid = %s"
                        " and state = 'active' and backend_xmin is not null",
                        pid,
                    )
                )
            yield stranger, ends
        finally:
            if thread.is_alive():
                stranger.cancel_safe()
            thread.join()
            stranger.close()


@contextlib.contextmanager
def prepared(dsn, gid):
    """Lend a prepared transaction."""
    with connect(dsn) as owner:
        owner.execute("begin; select pg_current_xact_id()")
        owner.execute(psycopg.sql.SQL("prepare transaction {}").format(gid))
        try:
            yield
        finally:
            with contextlib.suppress(psycopg.errors.UndefinedObject):
                owner.execute(psycopg.sql.SQL("rollback prepared {}").format(gid))


def name(stranger):
    """Return a session's pid as text, also after its end."""
    if stranger not in PIDS:
        PIDS[stranger] = str(stranger.info.backend_pid)
    return PIDS[stranger]


def lives(stranger):
    """Whether a session is there, and its transaction goes on."""
    try:
        stranger.execute("select 1")
    except psycopg.Error:
        return False
    return stranger.info.transaction_status == psycopg.pq.TransactionStatus.INTRANS


def events(conn, *columns):
    chosen = ", ".join(columns)
    return conn.execute(f"select {chosen} from forebay.guard_event order by at").fetchall()


@pytest.fixture(scope="module", autouse=True)
def no_autovacuum(server):
    """Only tests hold rows: an ANALYZE by autovacuum would change the exit code."""
    with connect(server.dsn()) as admin:
        autovacuum(admin, "off")
        workers = "select count(*) from pg_stat_activity where backend_type = 'autovacuum worker'"
        wait_for(lambda: one(admin, workers) == 0, 120)
        yield
        autovacuum(admin, "on")


def autovacuum(admin, switch):
    admin.execute(f"alter system set autovacuum = {switch}")
    admin.execute("select pg_reload_conf()")
    wait_for(lambda: one(admin, "show autovacuum") == switch)


# --- who ---


@pytest.fixture(scope="module")
def pair(pg_bin):
    """A migrated primary, and its standby with feedback."""
    from forebay.upgrade.migrate import migrate

    settings = {
        "wal_level": "logical",
        "max_prepared_transactions": "5",
        "fsync": "off",
        "autovacuum": "off",
    }
    with primary_and_standby(pg_bin, settings) as (primary, standby):
        migrate(primary.dsn())
        with connect(primary.dsn()) as conn:
            conn.execute("create table report as select 1 as n")
        yield primary, standby


@pytest.mark.slow
def test_the_culprit_is_named_for_each_kind_of_holder(pair, command, guard, monkeypatch):
    """
    A statement at work, sessions idle in a transaction, a handler, a prepared transaction, a slot
    without a consumer, a standby with a query: each with its name, and with what makes it let go.
    Nothing happens to any of them.
    """
    primary, standby = pair
    dsn = primary.dsn()
    wait_until_replayed(primary, standby)
    with contextlib.ExitStack() as stack:
        conn = stack.enter_context(connect(dsn))
        conn.execute("select pg_create_logical_replication_slot('gone', 'test_decoding')")
        stack.callback(conn.execute, "select pg_drop_replication_slot('gone')")
        idle = stack.enter_context(holding(dsn, "analyst"))
        writer = stack.enter_context(holding(dsn, "writer", writes=True))
        handler = stack.enter_context(holding(dsn, "forebay host:4711:0a1b2c3d", writes=True))
        report, ends = stack.enter_context(working(dsn))
        stack.enter_context(prepared(dsn, "forgotten"))
        remote = stack.enter_context(holding(standby.dsn(), "report on the standby"))
        remote.execute("select * from report")
        conn.execute("insert into report values (2)")

        def all_seen():
            code, found = guard(*AT_ONCE, "--dry-run", dsn=dsn)
            return (code, found) if "standby_1" in found else None

        code, found = wait_for(all_seen)
        assert code == 1
        sorts = {key: item["sort"] for key, item in found.items()}
        assert sorts == {
            name(report): "session",
            name(idle): "idle in transaction",
            name(writer): "idle in transaction",
            name(handler): "handler",
            "forgotten": "prepared transaction",
            "gone": "inactive replication slot",
            "standby_1": "standby",
        }
        assert found[name(handler)]["worker"] == "host:4711:0a1b2c3d"
        assert found[name(writer)]["writes"]
        assert not found[name(idle)]["writes"]
        assert found[name(idle)]["application"] == "analyst"
        assert found[name(idle)]["since"] is not None
        assert "report of the month" in found[name(idle)]["query"]
        assert f"pg_terminate_backend({name(idle)})" in found[name(idle)]["remedy"]
        assert "rollback prepared 'forgotten'" in found["forgotten"]["remedy"]
        assert "pg_drop_replication_slot('gone')" in found["gone"]["remedy"]
        assert found["gone"]["catalog_only"]
        assert "--replica" in found["standby_1"]["remedy"]

        _, found = guard(*AT_ONCE, "--replica", standby.dsn(), dsn=dsn)
        assert found[name(remote)]["server"].startswith("replica ")
        assert found[name(remote)]["application"] == "report on the standby"

        monkeypatch.setenv("COLUMNS", "80")
        answer = command("guard", "--dsn", dsn, *AT_ONCE, "--dry-run")
        assert max(map(len, answer.out.splitlines())) <= 80
        said = " ".join(answer.out.split())
        assert f"session {name(idle)} (postgres, analyst), idle in transaction, for" in said
        assert "handler of worker host:4711:0a1b2c3d" in said
        assert "inactive replication slot gone (logical, database postgres)" not in said
        assert "keeps dead rows of the system catalogs" in said

        assert lives(idle)
        assert lives(writer)
        assert lives(handler)
        assert lives(remote)
        assert ends == []
        assert events(conn, "name") == []


@pytest.mark.slow
def test_a_session_on_a_replica_is_ended_there_and_recorded_on_the_primary(pair, guard):
    """
    The primary sees a standby that holds it back; the culprit has a name only on the standby. When
    it is gone, so is the standby's need.
    """
    primary, standby = pair
    dsn = primary.dsn()
    wait_until_replayed(primary, standby)
    with connect(dsn) as conn, holding(standby.dsn(), "report") as remote:
        conn.execute("truncate forebay.guard_event")
        conn.execute("insert into report values (3)")
        acting = (*AT_ONCE, "--replica", standby.dsn(), "--act", "terminate")
        _, found = guard(*acting, dsn=dsn)
        assert found[name(remote)]["outcome"] == "ended"
        assert not lives(remote)
        ((server, said, outcome),) = events(conn, "server", "name", "outcome")
        assert (server.startswith("replica "), said, outcome) == (True, name(remote), "ended")


@pytest.mark.slow
def test_a_slot_that_a_standby_uses_is_named(pair, guard):
    """
    With a slot of its own the standby's need is the slot's, and outlives the standby.
    """
    primary, standby = pair
    with (
        connect(primary.dsn()) as conn,
        connect(standby.dsn()) as there,
        holding(standby.dsn(), "report") as remote,
    ):
        conn.execute("select pg_create_physical_replication_slot('s1')")
        there.execute("alter system set primary_slot_name = 's1'")
        there.execute("select pg_reload_conf()")
        try:
            found = wait_for(lambda: guard(dsn=primary.dsn())[1].get("s1"))
            assert found["sort"] == "replication slot"
            assert found["action"] is None
            assert lives(remote)
        finally:
            there.execute("alter system reset primary_slot_name")
            there.execute("select pg_reload_conf()")
            wait_for(
                lambda: not one(conn, "select active from pg_replication_slots"),
            )
            conn.execute("select pg_drop_replication_slot('s1')")


@pytest.mark.slow
def test_a_standby_is_no_place_to_act_from_alone(pair, guard, command, database):
    """
    Acts are recorded on the primary. What is named as a replica has to be a standby of this
    primary; one that cannot be reached does not hide the rest, and is no good news either.
    """
    primary, standby = pair
    answer = command("guard", "--dsn", standby.dsn(), *AT_ONCE, "--act", "cancel")
    assert answer.code == 2
    assert "--dsn names a standby" in answer.err
    for wrong, said in [
        (database, "belongs to another cluster"),
        (primary.dsn(), "is not a standby"),
        ("host=/nowhere", "database unavailable"),
    ]:
        answer = command("guard", "--dsn", primary.dsn(), "--json", "--replica", wrong)
        assert answer.code == 3
        (unseen,) = answer.json["unseen"]
        assert said in unseen["why"]


@pytest.mark.slow
def test_a_handler_is_named_with_its_worker(guard, workers, conn):
    """
    A handler with ``transaction=True`` that takes long is one of the holders, and ours.
    """
    member = workers.start()
    enqueue(conn, kind="write", args={"entry": 1, "seconds": 60})

    def named():
        _, found = guard(*AT_ONCE)
        return [item for item in found.values() if item["sort"] == "handler" and item["writes"]]

    (handler,) = wait_for(named)
    assert handler["worker"] in member.log
    assert "insert into effect" in handler["query"]


def test_a_quiet_database_has_nobody_to_name(guard):
    """
    Not even the guard itself.
    """
    code, found = guard()
    assert code == 0
    assert [item for item in found.values() if item["sort"] != "background process"] == []


# --- what they pin ---


def test_a_lock_that_stops_workers_is_named(guard, command, database):
    """
    A transaction that has locked one of our tables and read nothing has no snapshot and no
    transaction id.
    """
    with connect(database) as stranger:
        stranger.execute("begin; lock table only forebay.lock_sweep in share update exclusive mode")
        _, found = guard(*AT_ONCE)
        assert found[name(stranger)]["locks"] == ["lock_sweep"]
        assert (
            "holds a lock that stops workers, on lock_sweep"
            in command("guard", "--dsn", database, *AT_ONCE).out
        )


@pytest.mark.slow
def test_segments_that_are_kept_are_named_with_the_time_they_can_leave(
    guard, command, conn, database
):
    """
    A writer keeps what was sealed since, a lock the segments it is on, a snapshot none. When they
    have ended, retention empties what was due.
    """
    small_segments(conn)
    with Reader(database) as reader:
        enqueue(conn)
        reader.finish(reader.claim_ready(1))
        with (
            holding(database, "writer", writes=True) as writer,
            holding(database, "reader") as snapshot,
            contextlib.closing(connect(database)) as dump,
        ):
            dump.execute("begin; select from forebay.log_0")
            conn.execute(
                "select setval('forebay.log_seq', (select min(s.lo) + 1 from forebay.segment s"
                " where s.lo > (select last_value from forebay.log_seq)))"
            )
            conn.execute("select forebay.seal_v1()")
            _, found = guard()
            assert 0 in found[name(writer)]["segments"]
            assert found[name(writer)]["segments_due"] == []
            assert found[name(dump)]["segments"] == [0]
            assert found[name(snapshot)]["segments"] == []
            assert "none of them due before" in command("guard", "--dsn", database).out

            conn.execute("select forebay.configure('retention_days', 0)")
            _, found = guard(*AT_ONCE)
            assert 0 in found[name(writer)]["segments_due"]
            assert found[name(dump)]["segments_due"] == [0]
            said = command("guard", "--dsn", database, *AT_ONCE).out
            assert "at a worker's next retention pass after it ends" in said
            assert "each can be dropped when the last session that keeps it has ended" in " ".join(
                said.split()
            )

            enqueue(conn)
            reader.finish(reader.claim_ready(1))
            assert one(conn, "select emptied from forebay.retain_v1()") is None
            guard(*AT_ONCE, "--act", "terminate")
        assert one(conn, "select emptied from forebay.retain_v1()") == 0


# --- what is done ---


def test_nothing_is_done_without_an_action_nor_in_a_dry_run(guard, conn, database):
    """
    It may be run at any time by anybody; what a rule would do is said first.
    """
    with holding(database) as stranger, prepared(database, "forgotten"):
        code, found = guard(*AT_ONCE)
        assert code == 1
        assert {item["action"] for item in found.values()} == {None}
        acting = (*AT_ONCE, "--act", "terminate", "--rollback-prepared", "--dry-run")
        code, found = guard(*acting)
        assert code == 1
        assert found[name(stranger)]["action"] == "terminate"
        assert found["forgotten"]["action"] == "rollback prepared"
        assert {item["outcome"] for item in found.values()} == {None}
        assert lives(stranger)
        assert one(conn, "select count(*) from pg_prepared_xacts") == 1
    assert events(conn, "name") == []


@pytest.mark.parametrize(
    "arguments",
    [
        ("--act", "terminate"),
        ("--rollback-prepared",),
        ("--act", "kill", "--older-than", "1h"),
        ("--older-than", "soon"),
        ("--every", "0.1s"),
    ],
)
def test_a_rule_that_is_not_clear_is_refused(forebay, arguments):
    """
    Whoever ends transactions says how old they must be.
    """
    answer = forebay("guard", *arguments)
    assert answer.code == 2
    assert answer.err.startswith("error: ")


def test_the_last_line_says_what_is_left_alone(command, database):
    """With the limit by which it is young, and that nothing happens to it."""
    with holding(database):
        answer = command("guard", "--dsn", database, "--older-than", "1h")
    assert "1 not yet older than 1 h: left alone" in answer.out


def test_terminate_ends_what_is_older_than_the_limit_and_nothing_else(guard, conn, database):
    """
    A session that is idle in its transaction, and one at work.
    """
    with holding(database, "old") as old, working(database) as (report, ends):
        code, found = guard("--older-than", "1h", "--act", "terminate")
        assert code == 0
        assert {item["verdict"] for item in found.values()} == {"young"}
        assert lives(old)
        code, found = guard(*AT_ONCE, "--act", "terminate")
        assert code == 0
        assert {found[name(old)]["outcome"], found[name(report)]["outcome"]} == {"ended"}
        assert not lives(old)
        assert wait_for(lambda: ends) == ["AdminShutdown"]


def test_cancel_ends_a_statement_and_leaves_who_runs_none(guard, database):
    """
    The cancelled session goes on and is told; one that is idle would not notice.
    """
    with holding(database, "idle") as idle, working(database) as (report, ends):
        code, found = guard(*AT_ONCE, "--act", "cancel")
        assert code == 1
        assert found[name(report)]["outcome"] == "ended"
        assert found[name(idle)]["verdict"] == "reported"
        assert wait_for(lambda: ends) == ["QueryCanceled"]
        assert not report.closed
        assert lives(idle)


@pytest.mark.parametrize(
    ("lists", "ended"),
    [
        (("--user", "alice"), {"web", "report-1"}),
        (("--not-user", "alice"), {"report-2"}),
        (("--application", "report-?"), {"report-1", "report-2"}),
        (("--application", "web", "--application", "*-2"), {"web", "report-2"}),
        (("--not-application", "report-*"), {"web"}),
        (("--user", "alice", "--not-application", "web"), {"report-1"}),
    ],
)
def test_only_who_is_meant_is_ended(guard, conn, database, lists, ended):
    """
    Lists of roles and of applications, with those excepted above those named.
    """
    with contextlib.ExitStack() as stack:
        for role in ("alice", "bob"):
            conn.execute(f"create role {role} login")
            stack.callback(conn.execute, f"drop role {role}")
        sessions = {
            application: stack.enter_context(holding(database, application, user=role))
            for application, role in [("web", "alice"), ("report-1", "alice"), ("report-2", "bob")]
        }
        code, _ = guard(*AT_ONCE, "--act", "terminate", *lists)
        assert code == 0, "who is excepted is no reason to alarm"
        assert {key for key, stranger in sessions.items() if not lives(stranger)} == ended
        assert {row[0] for row in events(conn, "application")} == ended


def a_new_transaction_survives(database):
    """Judge a session, let it begin a new transaction, then act; assert that it lives on."""

    async def act(found):
        primary = guarding.Session(database, name="forebay guard")
        try:
            return await guarding.act(primary, primary, found)
        finally:
            await primary.close()

    rule = Rule(older_than=0, act="terminate", applications=("pooled",))
    with holding(database, "pooled") as stranger:
        seen = asyncio.run(guarding.guard(database, (), rule, dry_run=True))
        (found,) = [item for item in seen.found if item.holder.name == name(stranger)]
        assert found.verdict.action == "terminate"
        stranger.rollback()
        hold(stranger)
        found = asyncio.run(act(found))
        assert lives(stranger)
        assert found.outcome == "gone before"


def test_a_new_transaction_of_the_same_session_is_spared(conn, database, monkeypatch):
    """
    Between the look and the signal a pooled session may be in somebody else's transaction. Without
    the comparison in the statement that sends the signal, it would be ended.
    """
    a_new_transaction_survives(database)
    assert events(conn, "outcome") == [("gone before",)]
    monkeypatch.setattr(
        calls, "_SAME_SQL", calls._SAME_SQL.replace(" and a.xact_start = %(since)s", "")
    )
    with violation():
        a_new_transaction_survives(database)


def test_a_prepared_transaction_is_rolled_back_only_when_that_is_asked_for(
    guard, conn, database, server
):
    """
    By its own option, in its own database, whatever its name.
    """
    with prepared(database, "it's 100%s"), prepared(server.dsn(), "elsewhere"):
        code, found = guard(*AT_ONCE, "--act", "terminate")
        assert code == 1
        assert found["it's 100%s"]["verdict"] == "reported"
        code, found = guard(*AT_ONCE, "--rollback-prepared")
        assert code == 1
        assert found["it's 100%s"]["outcome"] == "ended"
        assert found["elsewhere"]["verdict"] == "refused"
        assert one(conn, "select array_agg(gid) from pg_prepared_xacts") == ["elsewhere"]
    assert events(conn, "action", "name", "outcome") == [
        ("rollback prepared", "it's 100%s", "ended")
    ]


# --- the record ---


def test_each_act_is_recorded_with_who_when_and_what_came_of_it(guard, conn, database):
    """
    Who was it, since when, what it last did, which rule, who acted.
    """
    with holding(database, "stranger", writes=True) as stranger:
        began = one(
            conn, "select xact_start from pg_stat_activity where pid = %s", int(name(stranger))
        )
        _, found = guard(*AT_ONCE, "--act", "terminate")
    columns = (
        "server", "action", "holder", "name", "user_name", "application", "state", "xact_start",
        "reason", "query", "outcome", "acted_as", "event_id", "seconds > 0", "outcome_at >= at",
    )  # fmt: skip
    (row,) = events(conn, *columns)
    assert dict(zip(columns, row, strict=True)) == {
        "server": "primary",
        "action": "terminate",
        "holder": "idle in transaction",
        "name": name(stranger),
        "user_name": "postgres",
        "application": "stranger",
        "state": "idle in transaction",
        "xact_start": began,
        "reason": "older than 0 s",
        "query": "select pg_current_xact_id()",
        "outcome": "ended",
        "acted_as": "postgres",
        "event_id": found[name(stranger)]["event_id"],
        "seconds > 0": True,
        "outcome_at >= at": True,
    }


def test_without_a_record_there_is_no_act(command, conn, database):
    """
    Where the table is missing, or somebody holds it, nobody is ended.
    """
    acting = (
        "guard",
        "--dsn",
        database,
        *AT_ONCE,
        "--act",
        "terminate",
        "--application",
        "stranger",
    )
    with holding(database) as stranger:
        with connect(database) as locker:
            locker.execute("begin; lock table forebay.guard_event")
            answer = command(*acting)
            assert answer.code == 1
            assert "lock timeout" in answer.err
            assert lives(stranger)
        conn.execute("drop table forebay.guard_event")
        answer = command(*acting)
        assert answer.code == 3
        assert "forebay migrate" in answer.err
        assert lives(stranger)
        assert command("guard", "--dsn", database, *AT_ONCE).code == 1, "a report needs no table"


def test_a_record_is_closed_once_and_by_who_made_it(conn):
    """
    A row without an outcome is an act of a guard that was stopped before it knew.
    """
    event = one(
        conn,
        "select forebay.record_act('primary', 'terminate', 'session', '7', 'older than 1 h',"
        " p_query => repeat('x', 1000))",
    )
    assert events(conn, "outcome", "outcome_at", "length(query)") == [(None, None, 200)]
    conn.execute("update forebay.guard_event set acted_as = 'somebody else'")
    closing = "select forebay.record_outcome(%s, 'ended')"
    assert sqlstate(conn, closing, event) == "JQ001"
    conn.execute("update forebay.guard_event set acted_as = session_user")
    conn.execute(closing, [event])
    assert sqlstate(conn, closing, event) == "JQ001"
    for action, holder in [("kill", "session"), (None, "session"), ("cancel", None)]:
        noting = "select forebay.record_act('primary', %s, %s, '7', 'why')"
        assert sqlstate(conn, noting, action, holder) == "JQ001"


def test_old_records_are_deleted(conn):
    """
    With the errors of jobs: after 60 days, or twice as long as finished jobs are kept.
    """
    for days in (10, 59, 61):
        conn.execute(
            "select forebay.record_act('primary', 'cancel', 'session', %s, 'why')", [str(days)]
        )
        conn.execute(
            "update forebay.guard_event set at = now() - make_interval(days => %s) where name = %s",
            [days, str(days)],
        )
    trim(conn)
    assert events(conn, "name") == [("59",), ("10",)]


# --- rights ---


@pytest.fixture
def role(conn):
    """A fresh login role, by its name."""
    made = f"guardian_{os.getpid()}"
    conn.execute(f"create role {made} login")
    yield made
    conn.execute(f"drop owned by {made}")
    conn.execute(f"drop role {made}")


@pytest.mark.direct  # logs in as another role
def test_three_roles_are_enough_and_do_not_reach_superusers(guard, conn, database, role):
    """
    Of a superuser's session it is said that this role may not end it; the others are ended.
    """
    conn.execute(f"grant pg_monitor, pg_signal_backend, forebay_operator to {role}")
    conn.execute("create role tenant login")
    try:
        with holding(database, "a") as superuser, holding(database, "b", user="tenant") as tenant:
            dsn = f"{database}&user={role}"
            code, found = guard(*AT_ONCE, "--act", "terminate", dsn=dsn)
            assert code == 1
            assert found[name(superuser)]["verdict"] == "refused"
            assert "may not end sessions of user postgres" in found[name(superuser)]["reason"]
            assert found[name(tenant)]["outcome"] == "ended"
            assert lives(superuser)
            assert not lives(tenant)
        assert events(conn, "acted_as") == [(role,)]
    finally:
        conn.execute("drop role tenant")


@pytest.mark.direct  # logs in as another role
def test_a_role_without_rights_learns_which_it_needs(command, guard, conn, database, role):
    """
    It sees that there is somebody, cannot say since when, and may not act.
    """
    dsn = f"{database}&user={role}"
    with holding(database) as stranger:
        code, found = guard(*AT_ONCE, dsn=dsn)
        assert code == 3
        assert found[name(stranger)]["verdict"] == "unknown"
        assert "pg_monitor" in found[name(stranger)]["reason"]
        out = command("guard", "--dsn", dsn).out
        assert "could not be determined" in out
        assert "1 whose age cannot be seen" in out
        assert "older than" not in out
        assert "pg_terminate_backend" not in out
        answer = command("guard", "--dsn", dsn, *AT_ONCE, "--act", "terminate")
        assert answer.code == 2
        assert "grant forebay_operator" in answer.err
        assert lives(stranger)


# --- again and again ---


@pytest.mark.slow
def test_it_looks_again_and_again_until_it_is_stopped(conn, database):
    """
    As a service: who comes later is ended too, and SIGTERM ends the guard with 0.
    """
    arguments = ("guard", "--every", "1s", *AT_ONCE, "--act", "terminate", "--application", "late*")
    process = subprocess.Popen(
        [sys.executable, "-m", "forebay", *arguments, "--dsn", database],
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        for application in ("late-1", "late-2"):
            with holding(database, application) as stranger:
                wait_for(lambda: events(conn, "application")[-1:] == [(application,)])
                wait_for(lambda: not lives(stranger))
        process.send_signal(signal.SIGTERM)
        began = time.monotonic()
        _, log = process.communicate(timeout=20)
        assert process.returncode == 0
        assert time.monotonic() - began < 10
    finally:
        process.kill()
        process.wait()
    assert log.count("terminated: older than") == 2
