"""Each problem, made for real, fires the alerts that name it, and they clear when it is gone."""

import asyncio
import json

import pytest

import forebay
from forebay.errors import ConfigError
from forebay.mirror import Document
from forebay.mirror._breaker import SharedBreaker
from forebay.testing import LyingTarget
from forebay.watch.metrics import acheck
from forebay.watch.rules import alerts_of_all
from forebay.watch.watched import THRESHOLDS
from tests.support.engine import (
    Reader,
    connect,
    enqueue,
    enqueue_many,
    one,
    shift_clock,
    small_segments,
    sqlstate,
    trim,
)
from tests.support.fix_worker import running
from tests.support.mutant import break_function, violation
from tests.support.waiting import wait_for_async

pytestmark = pytest.mark.anyio

HOUR = 3600.0


class Watch:
    """Checks alerts of a database whose clock it moves."""

    def __init__(self, dsn, conn):
        self.dsn, self.conn, self.shifted = dsn, conn, 0.0

    async def codes(self, only=None):
        found = {(a.code, a.subject) for a in (await acheck(self.dsn)).alerts}
        return found if only is None else {code for code, _ in found if code in only}

    async def wait(self, seconds, only=None):
        """Let time pass, with a check each minute; return what fires at the end."""
        found = set()
        for _ in range(int(seconds // 60)):
            self.jump(60)
            found = await self.codes(only)
        return found

    def jump(self, seconds):
        self.shifted += seconds
        shift_clock(self.conn, self.shifted)

    def events(self):
        return self.conn.execute(
            "select act, kind, queue from forebay.event where act in ('alerts.fired', "
            "'alerts.cleared') order by event_id"
        ).fetchall()


@pytest.fixture
def watch(database, conn):
    return Watch(database, conn)


@pytest.fixture
def work(app):
    """An application with a job that works and one that never does."""

    @app.job(queue="mail")
    def well() -> None:
        pass

    @app.job(queue="mail", retry=forebay.RetryPolicy(max_attempts=1))
    def broken() -> None:
        raise ValueError("never")

    return well, broken


A = ("A1", "A2", "A3")


async def served(app, conn):
    """Run a worker until no job waits, and stop it. One that ends by itself would promise the next
    one, as a tick does.
    """
    left = (
        "select coalesce(sum(ready + claimed + running + retrying), 0) from forebay.depth('mail')"
    )
    async with running(app):
        await wait_for_async(lambda: one(conn, left) == 0)


async def steady(app, conn, well, watch):
    """An old installation with steady traffic, watched for A1 to A3."""
    watch.jump(2 * HOUR)
    one(conn, "select forebay.set_threshold('completed_least', 1, 'mail')")
    one(conn, "select forebay.set_threshold('waiting_most', 10, 'mail')")
    with conn.transaction():
        well.enqueue(conn)
    await served(app, conn)
    watch.jump(1000)  # the group is no longer new
    with conn.transaction():
        well.enqueue(conn)
    await served(app, conn)
    assert await watch.codes() == set()


@pytest.mark.slow
async def test_a_producer_that_stops_fires_a1_only(app, conn, watch, work):
    well, _ = work
    await steady(app, conn, well, watch)
    assert await watch.wait(1200) == {("A1", "mail")}
    with conn.transaction():
        well.enqueue(conn)
    await served(app, conn)
    assert await watch.codes() == {("A1", "mail")}, "it ends after two quiet minutes"
    assert await watch.wait(180) == set()
    assert watch.events() == [("alerts.fired", "A1", "mail"), ("alerts.cleared", "A1", "mail")]


@pytest.mark.slow
@pytest.mark.parametrize("guarded", [True, False])
async def test_completed_jobs_are_those_of_the_counters(database, conn, watch, guarded):
    """All of the last 15 minutes, in whatever number of batches, also when older folds were
    deleted; the control knows the newest batches.
    """
    if not guarded:
        break_function(
            database,
            "_measured_queues",
            ("greatest(o.completed, t.completed, 0)", "coalesce(o.completed, 0)"),
        )

    def completed():
        queues = one(conn, "select forebay.measurements() -> 'queues'")
        return [queue["completed"] for queue in queues]

    def complete(number, kind="work"):
        enqueue_many(conn, [{"kind": kind} for _ in range(number)])
        for _ in range(number):
            reader.settle(reader.claim_ready(1).claim_no)
        one(conn, "select forebay.fold_v1()")

    with Reader(database) as reader:
        complete(130)
        enqueue(conn)
        assert completed() == ([130] if guarded else [100])
        if not guarded:
            return
        watch.jump(890)
        complete(10)
        assert completed() == [140]
        watch.jump(20)
        assert completed() == [10]
        complete(5, "other")
        assert completed() == [15]
        watch.jump(901)
        assert completed() == [0]
        watch.jump(HOUR)
        complete(3)
        trim(conn, "counters")
        assert completed() == [3]
        complete(4)
        assert completed() == [7]


@pytest.mark.slow
async def test_a_consumer_that_stops_fires_a1_of_the_three(app, conn, watch, work):
    """Nobody serves the queue, and its oldest job waits: the other two alerts say so."""
    well, _ = work
    await steady(app, conn, well, watch)
    with conn.transaction():
        well.enqueue(conn)
    assert await watch.wait(120) == {("unserved", "mail")}
    assert await watch.wait(1200) == {("A1", "mail"), ("unserved", "mail"), ("oldest", "mail")}
    await served(app, conn)
    assert await watch.wait(180) == set()


@pytest.mark.slow
async def test_a_producer_that_outpaces_its_consumer_fires_a2_of_the_three(app, conn, watch, work):
    well, _ = work
    await steady(app, conn, well, watch)
    with conn.transaction():
        for _ in range(20):
            well.enqueue(conn)
    assert await watch.wait(300, A) == set(), "not before it has lasted"
    assert await watch.wait(360, A) == {"A2"}
    await served(app, conn)
    assert await watch.wait(180, A) == set()


@pytest.mark.slow
async def test_a_job_that_can_never_succeed_fires_a3_only(app, conn, watch, work):
    well, broken = work
    await steady(app, conn, well, watch)
    with conn.transaction():
        broken.enqueue(conn)
    await served(app, conn)
    assert await watch.codes() == {("A3", "mail")}
    conn.execute("select forebay.set_threshold('dead_most', 5, 'mail')")
    assert await watch.wait(180) == set()


@pytest.mark.slow
async def test_the_first_hour_of_an_installation_has_no_false_alarm(database, conn, watch):
    """
    Jobs wait and no worker was ever started; then the hour is over. Nobody has checked yet, and
    that is no alert either.
    """
    # The database is a copy of one that is older.
    conn.execute("update forebay.schema_migration set applied_at = forebay._now()")
    enqueue(conn, queue="mail")
    assert conn.execute("select * from forebay.alerts()").fetchall() == []
    watch.jump(HOUR - 240)
    assert await watch.wait(180) == set()
    watch.jump(600)
    assert ("unserved", "mail") in await watch.wait(180)


async def test_alerts_that_nobody_checks_are_an_alert(database, conn, watch):
    await watch.codes()
    assert conn.execute("select * from forebay.alerts()").fetchall() == []
    watch.jump(200)
    assert one(conn, "select code from forebay.alerts()") == "unchecked"
    assert forebay.Client(database).alerts()[0].code == "unchecked"
    await watch.codes()
    assert conn.execute("select * from forebay.alerts()").fetchall() == []


@pytest.mark.slow
async def test_dead_letters_that_become_more(app, conn, watch, work):
    _, broken = work
    conn.execute("select forebay.set_threshold('dead_lately_most', 4)")
    with conn.transaction():
        for _ in range(5):
            broken.enqueue(conn)
    await served(app, conn)
    assert await watch.codes() == {("A3", "mail"), ("dead-growing", "mail")}
    watch.jump(1000)
    await watch.codes()
    assert await watch.wait(180) == {("A3", "mail")}


async def test_a_snapshot_that_is_held(database, conn, watch):
    conn.execute("select forebay.set_threshold('snapshot_for', 0.001)")
    with connect(database) as holder:
        holder.execute("begin isolation level repeatable read")
        holder.execute("select 1")
        assert await watch.codes() == {("snapshot", "")}
    watch.jump(130)
    conn.execute("select forebay.set_threshold('snapshot_for', 1000000)")
    assert await watch.codes() == set()


async def test_the_age_of_a_transaction_is_by_the_clock_that_it_began_by(database, conn, watch):
    """
    Tests move the clock of the schema. A transaction that has just begun, also one of autovacuum,
    is then not an hour old.
    """
    with connect(database) as holder:
        holder.execute("begin isolation level repeatable read")
        holder.execute("select 1")
        watch.jump(HOUR)
        assert await watch.codes(only={"snapshot"}) == set()


async def test_the_oldest_snapshot_and_the_dead_rows_that_it_keeps(database, conn, watch):
    """A transaction that stays open keeps the rows that others delete: both alerts fire, and
    clear when it ends and the rows are removed.
    """
    conn.execute("select forebay.set_threshold('snapshot_for', 0.001)")
    conn.execute("select forebay.set_threshold('dead_rows_most', 900)")
    enqueue_many(conn, [{"kind": "work", "delay": 86400}] * 1000)
    assert await watch.codes() == set()
    with connect(database) as holder:
        holder.execute("begin isolation level repeatable read")
        holder.execute("select count(*) from forebay.deferred")
        conn.execute("delete from forebay.deferred")
        conn.execute("select pg_stat_force_next_flush()")
        conn.execute("vacuum forebay.deferred")
        assert await watch.codes() == {("snapshot", ""), ("dead-rows", "")}
        holder.execute("rollback")
    # The checks' own snapshots are not older than this.
    conn.execute("select forebay.set_threshold('snapshot_for', 900)")
    conn.execute("vacuum forebay.deferred")
    assert await watch.wait(180) == set()
    assert [act for act, *_ in watch.events()].count("alerts.cleared") == 2


class Store:
    """A source of one item, which can be away."""

    is_away = True

    def read(self, ids):
        if self.is_away:
            raise ConnectionRefusedError("no route to the source")
        return [Document(name, 1, {}) for name in ids]

    def scan(self, after, limit):
        return [] if after else [(1, 1)]


@pytest.mark.slow
@pytest.mark.parametrize("how", ["pass", "direct"])
async def test_the_breaker_of_a_mirror_whose_store_is_away(app, conn, watch, how):
    """Of the passes of a worker, and of direct writes where no worker runs.

    It clears when the store is back.
    """
    store = Store()
    mirror = forebay.Mirror(
        app, "pages", source=store, target=LyingTarget(), grace=0, interval=0.01
    )
    conn.execute("select forebay.set_threshold('breaker_for', 0)")
    breaker = SharedBreaker(failures=1, seconds=0.05)
    opened = "select count(*) from forebay.mirror_breaker where open_until is not null"
    closed = "select count(*) from forebay.mirror_breaker where open_until is null"

    async def work(until):
        if how == "direct":
            while not one(conn, until):
                await mirror.awrite_now(1)
                await asyncio.to_thread(mirror._direct_records.flush)
            return
        async with running(app):
            await wait_for_async(lambda: one(conn, until))

    try:
        mirror._direct._breaker = mirror._reconciler.breaker = breaker
        mirror.changed(conn, 1)
        if how == "direct":
            conn.execute("delete from forebay.deferred")
        assert await watch.codes() == set()
        await work(opened)
        assert await watch.codes({"breaker", "drift", "A3"}) == {"breaker"}
        store.is_away = False
        await work(closed)
        # The worker that had opened it has ended: its word holds for three minutes.
        assert await watch.wait(360, {"breaker", "drift", "A3"}) == set()
    finally:
        await asyncio.to_thread(mirror.close)
    assert [kind for act, kind, _ in watch.events() if act == "alerts.fired"] == ["breaker"]


@pytest.mark.slow
async def test_a_schedule_that_no_worker_decides(app, conn, watch, work):
    """Before its instant comes: no worker runs, or none with schedules.

    A worker that decides them ends it.
    """
    conn.execute(
        "select forebay.create_schedule('yearly', 'report', cron => '0 3 1 1 *', queue => 'mail')"
    )

    def schedules():
        # A worker that starts has transactions, and to the moved clock they are hours old: their
        # alert is not looked at.
        found = alerts_of_all(one(conn, "select forebay.measurements()"))
        return {alert.subject for alert in found if alert.code == "schedule"}

    assert schedules() == set(), "a new installation without workers"
    watch.jump(2 * HOUR)
    assert await watch.codes() == set(), "not before it has lasted"
    assert await watch.wait(120) == {("schedule", "yearly")}
    async with running(app, schedules="off"):
        assert schedules() == {"yearly"}
    async with running(app):
        await wait_for_async(lambda: schedules() == set())
    conn.execute("select forebay.pause_schedule('yearly')")
    assert await watch.wait(180) == set()


@pytest.mark.slow
async def test_an_export_that_lags_and_one_that_has_missed_a_segment(database, conn, watch):
    """Segments wait; then one is emptied unwritten, which is an error for a day."""
    small_segments(conn, rows=100, reserve=1000)
    conn.execute("update forebay.segment set removed_at = now() where hi - lo > 100")
    one(conn, "select forebay.configure('retention_days', 0)")
    one(conn, "select forebay.create_export('nightly', 2)::text")
    with Reader(database) as reader:
        enqueue_many(conn, [{"kind": "work"}] * 100)
        one(conn, "select nextval('forebay.log_seq')")
        one(conn, "select forebay.seal_v1()")
        for batch in reader.claim_all():
            reader.finish(batch)
    assert one(conn, "select emptied from forebay.retain_v1()") is None
    assert await watch.codes({"export"}) == set()
    assert await watch.wait(65 * 60, {"export"}) == {"export"}
    assert "in 5" in one(conn, "select problem from forebay.alert where code = 'export'")
    watch.jump(HOUR)
    assert one(conn, "select emptied from forebay.retain_v1()") is not None
    assert await watch.codes({"export"}) == {"export"}
    assert one(conn, "select severity from forebay.alert where code = 'export'") == "error"
    watch.jump(24 * HOUR)
    await watch.codes()
    assert await watch.wait(180, {"export"}) == set()


async def test_the_breaker_of_an_endpoint_the_reserve_and_a_duty(database, conn, watch):
    conn.execute(
        "select forebay.create_endpoint('shop', 'http', '{\"url\": "
        '"http://127.0.0.1:1/"}\', breaker_threshold => 1)'
    )
    conn.execute(
        "insert into forebay.breaker (queue, key, failures, threshold, cooldown, cooldown_max,"
        " opened_at, probe_at)"
        " values ('forebay.deliver', 'shop', 1, 1, 30, 30, forebay._now(), forebay._now())"
    )
    conn.execute("update forebay.endpoint_state set last_error = 'refused'")
    conn.execute("select forebay.record_duty_v1('seal', 600, 'no space')")
    conn.execute("select forebay.configure('reserve_rows', 1000000000)")
    assert await watch.wait(120) == {("breaker", "shop"), ("maintenance", "seal"), ("reserve", "")}
    conn.execute("delete from forebay.breaker")
    conn.execute("select forebay.record_duty_v1('seal')")
    conn.execute("select forebay.configure('reserve_rows', 1000000)")
    assert await watch.wait(240) == set()


async def test_a_full_endpoint_is_an_alert_until_it_has_room(database, conn, watch):
    """Whether it refuses or drops, which the problem says."""
    conn.execute(
        "select forebay.create_endpoint('shop', 'http', '{\"url\": \"https://a.example/\"}',"
        " max_waiting => 1, concurrency => 1)"
    )
    with Reader(database, "forebay.deliver") as reader:
        conn.execute("select forebay.send('shop', '{}')")
        reader.claim_ready(1)
        conn.execute("select forebay.send('shop', '{}')")
        while reader.claim_ready(100).jobs:
            pass
        assert ("endpoint-full", "shop") in await watch.wait(120)
        problem = "select problem from forebay.alert where code = 'endpoint-full'"
        assert "events are refused" in one(conn, problem)
        conn.execute("select forebay.alter_endpoint('shop', max_waiting => 5)")
        assert ("endpoint-full", "shop") not in await watch.wait(240)


async def test_the_drift_of_a_mirror(database, conn, watch):
    found = {
        "seconds": 1, "compared": "version", "items": 9, "copies": 8, "rows": 17, "ranges": 0,
        "differed": 0, "suspects": 1,
        "missing": 1, "stale": 0, "orphaned": 0, "ahead": 0,
    }  # fmt: skip
    audit = one(conn, "select forebay.record_audit('pages', %s::jsonb)", json.dumps(found))
    assert await watch.codes() == {("drift", "pages")}
    conn.execute("select forebay.record_repair(%s, 1)", [audit])
    assert await watch.wait(180) == set()


@pytest.mark.slow
async def test_a_schedule_that_nobody_runs(database, conn, watch):
    conn.execute(
        "select forebay.create_schedule('nightly', 'report', cron => '* * * * *', queue => 'mail')"
    )
    assert await watch.codes() == set()
    assert await watch.wait(300) == {("schedule", "nightly")}
    conn.execute("select forebay.pause_schedule('nightly')")
    assert await watch.wait(180) == set()


async def test_an_alert_is_published_and_in_the_event_log(app, conn, watch, work):
    """
    It is published where somebody subscribes: an event that waits for nobody would itself be an
    alert.
    """
    _, broken = work
    conn.execute(
        "select forebay.create_endpoint('ops', 'http', '{\"url\": \"http://127.0.0.1:1/\"}')"
    )
    conn.execute("select forebay.subscribe('ops', 'forebay.alert')")
    with conn.transaction():
        broken.enqueue(conn)
    await served(app, conn)
    await watch.codes()
    await watch.codes()
    rows = conn.execute(
        "select args ->> 'state', args ->> 'code', args ->> 'subject' from forebay.log "
        "where kind = 'forebay.alert'"
    ).fetchall()
    assert rows == [("fired", "A3", "mail")], "once, however often it is checked"
    assert watch.events()[-1] == ("alerts.fired", "A3", "mail")


async def test_without_a_subscription_nothing_is_published(app, conn, watch, work):
    _, broken = work
    with conn.transaction():
        broken.enqueue(conn)
    await served(app, conn)
    assert await watch.codes() == {("A3", "mail")}
    assert one(conn, "select count(*) from forebay.log where kind = 'forebay.alert'") == 0


async def test_an_alert_fires_although_its_event_cannot_be_published(app, conn, watch, work):
    _, broken = work
    conn.execute(
        "select forebay.create_endpoint('ops', 'http', '{\"url\": \"http://127.0.0.1:1/\"}')"
    )
    conn.execute("select forebay.subscribe('ops', 'forebay.alert')")
    conn.execute("select forebay.publish('forebay.alert')")
    conn.execute("select forebay.limit_queue('forebay.publish', max_waiting => 1)")
    with conn.transaction():
        broken.enqueue(conn)
    await served(app, conn)
    assert await watch.codes() == {("A3", "mail")}
    assert [act for act, *_ in watch.events()] == ["alerts.fired"]


async def test_a_condition_must_last_without_a_break(database, conn):
    """A check that does not find it begins its time anew; so does a long time without checks."""
    found = json.dumps([{"code": "x", "for": 120}])

    def check(what, seconds):
        shift_clock(conn, seconds)
        return conn.execute(
            "select act from forebay.record_alerts_v1(%s::jsonb)", [what]
        ).fetchall()

    assert check(found, 10) == []
    assert check("[]", 70) == []
    assert check(found, 140) == []
    assert check(found, 200) == []
    assert check(found, 270) == [("fired",)]
    assert check("[]", 300) == []
    assert check("[]", 400) == [("cleared",)]
    assert check(found, 500) == []
    assert check(found, 900) == [], "nobody looked in between"


def test_an_alert_that_flaps_fires_once(database, conn):
    """Without the time to clear, each second check would fire again."""

    def flaps():
        for step in range(6):
            shift_clock(conn, step * 30 + 30)
            what = json.dumps([{"code": "x"}] if step % 2 == 0 else [])
            conn.execute("select * from forebay.record_alerts_v1(%s::jsonb)", [what])
        assert one(conn, "select count(*) from forebay.event where act = 'alerts.fired'") == 1

    flaps()
    conn.execute("delete from forebay.alert")
    conn.execute("delete from forebay.event")
    break_function(
        database,
        "record_alerts_v1",
        ("a.seen_at <= v_now - make_interval(secs => p_clear_seconds)", "true"),
    )
    with violation():
        flaps()


def test_a_threshold_of_a_queue_goes_before_that_of_all(database):
    client = forebay.Client(database)
    assert client.set_threshold("oldest_ready", 5.0) is None
    assert client.set_threshold("oldest_ready", 9.0, queue="mail") is None
    assert client.set_threshold("oldest_ready", None) == 5.0
    with pytest.raises(ConfigError, match="unknown"):
        client.set_threshold("oldest", 1.0)
    with pytest.raises(ConfigError, match="not a number from 0"):
        client.set_threshold("oldest_ready", -1.0)


@pytest.mark.usual("has login roles of its own")
def test_a_reader_sees_alerts_and_may_not_record(conn):
    conn.execute("set role forebay_reader")
    assert conn.execute("select * from forebay.alerts()").fetchall() == []
    conn.execute("select forebay.measurements()")
    assert sqlstate(conn, "select forebay.record_alerts_v1('[]')") == "42501"
    assert sqlstate(conn, "select forebay.set_threshold('x', 1)") == "42501"


async def test_a_running_worker_checks(app, conn, work, monkeypatch):
    monkeypatch.setattr("forebay.worker.maintain.maintenance._ALERTS_SECONDS", 0.05)
    async with running(app):
        await wait_for_async(
            lambda: conn.execute("select 1 from forebay.alert_check").fetchone(), 20, "a check"
        )


def test_each_threshold_has_a_default_and_the_rules_know_no_other(database, conn):
    data = one(conn, "select forebay.measurements()")
    assert alerts_of_all(data) == []
    assert all(value >= 0 for value in THRESHOLDS.values())


async def test_open_breakers_of_limit_keys_are_one_alert_for_each_queue(database, conn, watch):
    """It names three of them; more than ``breakers_most`` have to be open."""
    conn.execute(
        "insert into forebay.breaker (queue, key, failures, threshold, cooldown, cooldown_max,"
        " opened_at, probe_at, error) select 'crawl', 'host ' || i, 9, 9, 30, 60,"
        " forebay._now(), forebay._now(), 'refused' from generate_series(1, 5) i"
    )
    conn.execute("select forebay.set_threshold('breakers_most', 5, queue => 'crawl')")
    assert await watch.wait(120) == set()
    conn.execute("select forebay.set_threshold('breakers_most', 4, queue => 'crawl')")
    assert await watch.wait(120) == {("breaker", "crawl")}
    problem = one(conn, "select problem from forebay.alert where code = 'breaker'")
    assert "5 limit keys of queue crawl" in problem
    assert "host 5 (next probe now): refused" in problem
    assert "and 2 more" in problem
    conn.execute("delete from forebay.breaker")
    assert await watch.wait(240) == set()


async def test_an_alert_that_was_over_begins_anew(database, conn, watch):
    """Within the two minutes in which it has not cleared: the database and the screens say since
    when it holds this time.
    """
    call = "select count(*) from forebay.record_alerts_v1(%s::jsonb, 120)"
    enqueue(conn, queue="mail")
    watch.jump(2 * HOUR)
    for _ in range(3):
        assert ("unserved", "mail") in await watch.codes()
        watch.jump(60)
    first = conn.execute("select since from forebay.alert where code = 'unserved'").fetchone()
    one(conn, call, "[]")
    watch.jump(30)
    with Reader(database, "mail") as reader:
        reader.finish(reader.claim_ready())
    enqueue(conn, queue="mail")
    watch.jump(30)
    checked = await acheck(database)
    (shown,) = [each for each in checked.alerts if each.code == "unserved"]
    (again,) = conn.execute("select since from forebay.alert where code = 'unserved'").fetchone()
    assert again > first[0]
    assert shown.since == again
