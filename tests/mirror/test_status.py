"""What a mirror did is kept, what waits is known, and what is wrong sets off its alert."""

import asyncio
import itertools
import json
import sys
import time

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

import forebay
from forebay.cli import run
from forebay.mirror import Document, Thresholds
from forebay.mirror._breaker import SharedBreaker
from forebay.testing import LyingTarget
from tests.support.engine import Reader, one, shift_clock, sqlstate, trim
from tests.support.fix_worker import run_until_idle, running
from tests.support.mutant import break_function, violation
from tests.support.waiting import wait_for, wait_for_async
from tests.support.worker_process import WorkerProcess

pytestmark = pytest.mark.anyio

THRESHOLDS = Thresholds(waiting_most=10, unproved_for=300)


class Items:
    """A source in memory: all items up to a number, but for some that are gone."""

    def __init__(self, most=1000):
        self.most = most
        self.is_down = False

    def read(self, ids):
        if self.is_down:
            raise ConnectionRefusedError("no route to the source")
        return [Document(name, 1, {}) for name in ids if name <= self.most]

    def scan(self, after, limit):
        if self.is_down:
            raise ConnectionRefusedError("no route to the source")
        return [(name, 1) for name in range((after or 0) + 1, self.most + 1)][:limit]


@pytest.fixture
def source():
    return Items()


@pytest.fixture
def target():
    return LyingTarget()


@pytest.fixture
def mirror(app, source, target):
    found = forebay.Mirror(
        app, "pages", source=source, target=target, grace=0, interval=0.01, thresholds=THRESHOLDS
    )
    yield found
    found.close()


def kept(conn, *columns):
    """Return the sums of all counts, by outcome or by these columns."""
    names = ", ".join(columns or ["outcome"])
    rows = conn.execute(
        f"select {names}, sum(count)::int from forebay.mirror_count where mirror = 'pages' "
        f"group by {names}"
    ).fetchall()
    return {row[:-1] if columns else row[0]: row[-1] for row in rows}


def codes(mirror):
    return [alert.code for alert in mirror.status().alerts]


# --- counts ---


async def test_what_passes_do_is_kept_by_outcome_tag_and_priority(app, conn, mirror, target):
    """
    Items once per pass, for the first of their jobs; completed jobs each for itself. What is kept
    is what the process counts.
    """
    target.write([Document(5, 1, {}), Document(2000, 1, {})])
    with conn.transaction():
        for name, tag, priority in [
            (1, "api", 100), (1, "import", 100), (2, "import", 5), (5, "api", 100),
            (2000, None, 100),
        ]:  # fmt: skip
            mirror.changed(conn, name, tag=tag, priority=priority)
        mirror.heartbeat(conn)
    await run_until_idle(app)
    assert kept(conn, "outcome", "tag", "priority") == {
        ("completed.heartbeat", "heartbeat", 100): 1,
        ("completed.up_to_date", "api", 100): 2,
        ("completed.up_to_date", "import", 100): 1,
        ("completed.up_to_date", "import", 5): 1,
        ("completed.gone", None, 100): 1,
        ("mirrored.missing", "api", 100): 1,
        ("mirrored.missing", "import", 5): 1,
        ("mirrored.deleted", None, 100): 1,
    }
    assert kept(conn) == mirror.counts
    status = mirror.status()
    assert status.is_fine
    assert status.facts.completed == 6
    assert {count.outcome for count in status.facts.counts} == set(mirror.counts)


def counters(**counts):
    return [
        {"mirror": "pages", "counts": [[name, "api", 100, count] for name, count in counts.items()]}
    ]


def settle_with(reader, claim_no, counted, conn=None, **flush):
    """Settle a batch together with what is to be counted; return the status."""
    flushes = [{"claim_no": claim_no, "flush_no": 1, "counters": counted} | flush]
    query = "select status from forebay.settle_v1(%s, %s::jsonb)"
    return one(conn or reader.conn, query, reader.lease_id, json.dumps(flushes))


def counted_as_settled(dsn, conn):
    """Settle once, again under the same name, in part, wrongly, and too late.

    Compare what was counted.
    """
    conn.execute(
        "select forebay.enqueue('mirror.pages', '{}', queue => 'mirror') from generate_series(1, 4)"
    )
    with Reader(dsn, "mirror") as reader:
        first = reader.claim(2)
        second = reader.claim(1)
        late = reader.claim(1)
        assert settle_with(reader, first.claim_no, counters(whole=2)) == "settled"
        assert settle_with(reader, first.claim_no, counters(whole=2)) != "settled"
        again = {"done": [1]}
        assert settle_with(reader, second.claim_no, counters(part=1), **again) == "settled"
        assert settle_with(reader, second.claim_no, counters(part=1), **again) == "repeated"
        assert (
            settle_with(reader, second.claim_no, counters(wrong=1), done=[7], flush_no=2)
            == "refused"
        )
        assert settle_with(reader, 99, counters(wrong=1)) == "unknown_batch"
        reader.revoked_by(conn)
        with pytest.raises(psycopg.DatabaseError, match="is closed"):
            settle_with(reader, late.claim_no, counters(late=1))
    assert kept(conn) == {"whole": 2, "part": 1}


async def test_what_is_counted_is_what_was_settled(database, conn):
    """
    A repeated settlement counts once; one that is refused, or comes after the lease was lost, does
    not.

    Guards invariant "counted with the settlement" (docs/design/reconcile.md).
    """
    counted_as_settled(database, conn)


async def test_without_its_place_behind_the_settlement_too_much_is_counted(database, conn):
    """
    The test above notices a count that is made before it is known whether the settlement stands.
    """
    place = "claim_no := (v_flush ->> 'claim_no')::bigint;"
    early = (
        "perform forebay._record_counters(t.value, v_worker)"
        " from jsonb_array_elements(v_flush -> 'counters') t;"
    )
    break_function(database, "settle_v1", (place, f"{place} {early}"))
    with violation():
        counted_as_settled(database, conn)


@pytest.mark.slow
async def test_counts_outlive_killed_workers_and_those_of_suspects_are_kept(
    conn, database, tmp_path, monkeypatch
):
    """
    A worker that is killed in a pass has counted nothing of it; what it did before is kept. Its
    jobs come back as suspects, which run in processes of their own, and are counted too.
    """
    from tests.support.effects import PATH_VARIABLE

    index = tmp_path / "index.db"
    stop = tmp_path / "index.db.stop"
    monkeypatch.setenv(PATH_VARIABLE, str(tmp_path / "effects"))

    def enqueue(names):
        rows = [[f'{{"id": {name}}}'] for name in names]
        with conn.cursor() as cursor:
            cursor.executemany(
                (
                    "select forebay.enqueue('mirror.pages', %s::jsonb, queue => 'mirror', tag "
                    "=> 'api')"
                ),
                rows,
            )

    options = {"app": "tests.support.mirror_app:app", "environment": {"MIRROR_INDEX": str(index)}}
    enqueue(range(1, 21))
    first = WorkerProcess(database, tmp_path / "effects", **options)
    try:
        wait_for(lambda: kept(conn).get("completed.up_to_date") == 20, 40, lambda: first.log)
        stop.touch()
        enqueue(range(21, 24))
        wait_for(stop.with_suffix(".reached").exists, 40, lambda: first.log)
        assert kept(conn)["completed.up_to_date"] == 20
    finally:
        first.kill()
    stop.unlink()
    second = WorkerProcess(database, tmp_path / "effects", **options)
    try:
        wait_for(lambda: kept(conn).get("completed.up_to_date") == 23, 60, lambda: second.log)
        assert kept(conn)["mirrored.missing"] == 23
    finally:
        second.kill()


async def test_counts_are_folded_and_their_sum_stays(conn, mirror):
    """
    By the minute, by the hour, and in one row when they are older than retention: what happened in
    all is always known.
    """
    for age, count in [
        ("0 s", 1),
        ("20 min", 2),
        ("20 min 1 s", 4),
        ("2 days", 8),
        ("50 days", 16),
    ]:
        for tag in ("a", None):
            conn.execute(
                "insert into forebay.mirror_count (mirror, at, outcome, tag, priority, count)"
                " values ('pages', now() - %s::interval, 'completed.up_to_date', %s, 100, %s)",
                [age, tag, count],
            )
    for table in ((
            "mirror_sample (mirror, at, due, due_all, waiting) select 'pages', now() - i, 1, 1, "
            "1"
            ),
                  (
                          "mirror_breaker (mirror, at, who, place) select 'pages', now() - i, 'w', "
                          "'pass'"
                          )):  # fmt: skip
        conn.execute(f"insert into forebay.{table} from unnest('{{1 h, 3 days}}'::interval[]) i")
    for _ in range(3):
        trim(conn)
        assert kept(conn, "tag") == {("a",): 31, (None,): 31}
    levels = "select level, count(*)::int from forebay.mirror_count group by level order by level"
    rows = dict(conn.execute(levels).fetchall())
    assert (rows[0], rows[3]) == (2, 2)
    assert rows[1] in (2, 4)  # twenty minutes ago may have been two minutes
    assert rows[2] == 2
    assert one(conn, "select count(*) from forebay.mirror_sample") == 1
    assert one(conn, "select count(*) from forebay.mirror_breaker") == 1
    (count,) = [count for count in mirror.status().facts.counts if count.tag == "a"]
    assert count.total == 31
    shift_clock(conn, 100 * 86_400)
    for _ in range(4):
        trim(conn)
    assert kept(conn, "tag") == {("a",): 31, (None,): 31}
    assert one(conn, "select count(*) from forebay.mirror_count") == 2


async def test_direct_writes_are_kept_too(app, conn, mirror, source, target):
    """
    Some seconds later, or when it is closed; with the breaker when it opens and when it closes
    again.
    """
    mirror._direct._breaker = SharedBreaker(failures=2, seconds=0.01)
    assert await mirror.awrite_now(1)
    source.is_down = True
    for _ in range(3):
        await mirror.awrite_now(1)
    await asyncio.to_thread(mirror.close)
    assert kept(conn) == {key: value for key, value in mirror.counts.items() if value}
    (breaker,) = mirror.status().facts.breakers
    assert (breaker.place, breaker.why) == ("direct", "no route to the source")
    source.is_down = False
    await wait_for_async(lambda: mirror.awrite_now(1))
    await asyncio.to_thread(mirror.close)
    assert mirror.status().facts.breakers == []
    assert kept(conn) == mirror.counts


async def test_counts_that_cannot_be_kept_now_are_kept_later(conn, mirror, monkeypatch):
    """
    Nothing is lost while the database cannot be asked, and a direct write does not notice.
    """
    run_record = mirror._records.run
    monkeypatch.setattr(mirror._records, "run", lambda _: asyncio.sleep(0, result=1 / 0))
    assert await mirror.awrite_now(1)
    await asyncio.to_thread(mirror._direct_records.flush)
    assert kept(conn) == {}
    monkeypatch.setattr(mirror._records, "run", run_record)
    assert await mirror.awrite_now(2)
    await asyncio.to_thread(mirror._direct_records.flush)
    assert kept(conn) == {"direct.accepted": 2}


async def test_who_may_enqueue_cannot_count_jobs_as_completed(conn):
    """
    A producer tells of its direct writes, and cannot keep an alert from firing.
    """
    conn.execute("grant forebay_producer to current_user")
    conn.execute("set role forebay_producer")

    def told(*counts, **more):
        counters = json.dumps({"mirror": "pages", "counts": counts} | more)
        return sqlstate(conn, "select forebay.record_direct(%s::jsonb, 'me')", counters)

    assert told(["direct.accepted", None, None, 3]) is None
    assert told() is None
    for refused in (["completed.gone", None, None, 1], ["direct.failed", None, None, -1], [], 7):
        assert told(["direct.accepted", None, None, 1], refused) == "JQ001"
    assert told(breaker={"place": "pass", "open_seconds": 60, "why": "x"}) == "JQ001"
    assert sqlstate(conn, "select forebay.record_direct('{}', 'me')") == "JQ001"
    assert sqlstate(conn, "select forebay.record_direct(null, null)") == "JQ001"
    conn.execute("reset role")
    assert kept(conn) == {"direct.accepted": 3}


@pytest.mark.slow
async def test_the_breaker_of_passes_is_told(app, conn, mirror, source):
    """
    While a store cannot be reached, by which worker and why; and no more when it can be.
    """
    mirror._reconciler.breaker = SharedBreaker(failures=1, seconds=0.05)
    source.is_down = True
    mirror.changed(conn, 1)
    async with running(app):
        await wait_for_async(lambda: asyncio.to_thread(lambda: mirror.status().facts.breakers))
        (breaker,) = mirror.status().facts.breakers
        assert breaker.place == "pass"
        assert breaker.why == "no route to the source"
        assert str(mirror.status().facts.waiting) == "1"
        source.is_down = False
        await wait_for_async(
            lambda: asyncio.to_thread(lambda: not mirror.status().facts.breakers), 30
        )
    assert kept(conn)["unavailable"] >= 1


# --- what waits ---


@pytest.mark.slow
async def test_what_waits_is_known_by_tag_and_priority_wherever_it_waits(
    app, database, conn, mirror
):
    """
    Ready, claimed, retrying, and in its grace; the same as a look at each job says.
    """
    with conn.transaction():
        mirror.changed_many(conn, range(1, 6), tag="a")
        mirror.changed_many(conn, range(6, 9), tag="b", priority=7)
        mirror.changed_many(conn, range(9, 11), tag="b", delay=600)
    other = forebay.Mirror(app, "other", source=Items(), target=LyingTarget(), grace=0)
    other.changed(conn, 1)
    with Reader(database, "mirror") as reader:
        batch = reader.claim(3)
        ended = [
            {
                "offset": 2,
                "outcome": "retried",
                "after": 600,
                "error": {"type": "T", "message": "no", "traceback": ""},
            }
        ]
        assert reader.settle(batch.claim_no, [1], ended=ended) == "settled"
        facts = mirror.status().facts
        by = {(line.tag, line.priority): (line.due, line.later, line.tried) for line in facts.by}
        assert by == {("a", 100): (4, 0, 1), ("b", 7): (3, 0, 0), ("b", 100): (0, 2, 0)}
        assert (facts.waiting, facts.due, facts.claimed, facts.running, facts.tried) == (
            9,
            7,
            1,
            0,
            1,
        )
        rows = conn.execute(
            "select job_id, state from forebay.unfinished('mirror.pages', 'mirror')"
        ).fetchall()
        jobs = range(1, one(conn, "select max(job_id) from forebay.deferred") + 11)
        seen = [
            (status.job_id, status.state)
            for job in jobs
            for status in app.client().jobs(kind="mirror.pages", limit=100)
            if status.job_id == job
            and status.state in ("scheduled", "ready", "claimed", "retrying")
        ]
        assert sorted(rows) == sorted(seen)
        assert [(stuck.attempts, stuck.error) for stuck in facts.stuck] == [(1, "no")]
        # A job that expires later than it is declared to now is due all the same, once it has been.
        rows = conn.execute(
            "select due_at <= clock_timestamp(), count(*)::int"
            " from forebay.unfinished('mirror.pages', 'mirror', expires_seconds => 60) group by 1"
        ).fetchall()
        assert dict(rows) == {True: 7, False: 2}
    assert other.status().facts.waiting == 1
    other.close()


async def test_a_job_is_as_old_as_its_first_due_time(app, conn, mirror):
    """
    Not as its change, when it was to wait for long; and not as its last try, when it was postponed.
    """
    mirror.changed(conn, 1, delay=3600)
    assert mirror.status().facts.oldest_due_at is None
    shift_clock(conn, 3660)
    conn.execute("select forebay.promote_v1(100)")
    facts = mirror.status().facts
    assert facts.due == 1
    assert 59 <= (facts.at - facts.oldest_due_at).total_seconds() <= 90


# --- alerts ---


def beat(conn, dsn, count=1):
    """Complete so many of the waiting jobs, as a worker would, some seconds ago at most."""
    with Reader(dsn, "mirror") as reader:
        batch = reader.claim(count)
        counted = counters(**{"completed.up_to_date": len(batch.jobs)})
        assert settle_with(reader, batch.claim_no, counted) == "settled"
        reader.conn.execute("select forebay.close_lease_v1(%s)", [reader.lease_id])


def count_completed(conn, tag="api", count=1):
    """Count jobs as completed, without any."""
    told = {"mirror": "pages", "counts": [["completed.up_to_date", tag, 100, count]]}
    conn.execute("select forebay._record_counters(%s::jsonb, 'w')", [json.dumps(told)])


@pytest.mark.slow
async def test_the_coverage_of_the_alerts(app, database, conn, mirror):
    """
    Each problem, one after another, sets off its alert and no other.
    """

    times = itertools.count(660, 660)

    def later():
        shift_clock(conn, next(times))

    def enqueue(count, **options):
        mirror.changed_many(conn, range(1, count + 1), **options)

    assert codes(mirror) == ["A1"]  # nothing was ever completed
    enqueue(3)
    beat(conn, database, 1)
    assert codes(mirror) == []
    later()
    assert codes(mirror) == ["A1"]  # both stopped: two jobs wait, as ever
    beat(conn, database, 1)
    assert codes(mirror) == []
    enqueue(8)
    later()
    assert codes(mirror) == ["A1"]  # nobody completes
    beat(conn, database, 8)
    beat(conn, database, 8)
    assert mirror.status().facts.waiting == 0
    assert codes(mirror) == []
    later()
    assert codes(mirror) == ["A1"]  # nobody enqueues
    mirror.heartbeat(conn)
    beat(conn, database, 1)
    assert codes(mirror) == []  # a quiet night
    enqueue(30, tag="backfill.user", priority=900)
    enqueue(30, priority=1000)
    later()
    mirror.heartbeat(conn)
    beat(conn, database, 1)
    assert codes(mirror) == []  # re-indexing is no alert
    later()
    count_completed(conn, "backfill", 99)
    assert codes(mirror) == ["A1"]  # and no sign of life
    enqueue(20)
    later()
    enqueue(5)
    beat(conn, database, 2)
    assert codes(mirror) == ["A2"]  # more is enqueued than completed
    beat(conn, database, 15)
    later()
    enqueue(15)
    beat(conn, database, 1)
    assert codes(mirror) == []  # many wait, for a moment


@pytest.mark.slow
async def test_a_job_that_cannot_succeed_is_an_alert_before_it_expires_and_after(
    app, database, conn, mirror, target
):
    """
    Early, when it has failed and is not proved in an hour; then for good. Jobs that only wait, as
    in an outage, are none.
    """
    target.refused = frozenset({3})
    mirror.changed_many(conn, [1, 2, 3])
    async with running(app):
        await wait_for_async(lambda: kept(conn).get("rejected", 0) >= 1)
        await wait_for_async(lambda: kept(conn).get("completed.up_to_date", 0) >= 2)
    assert codes(mirror) == []
    shift_clock(conn, 3700)
    mirror.heartbeat(conn)
    mirror.changed(conn, 4)
    beat(conn, database, 1)
    (alert,) = mirror.status().alerts
    assert (alert.code, "3 is refused" in alert.problem) == ("A3", True)
    shift_clock(conn, 31 * 86_400)
    conn.execute("select forebay.promote_v1(100)")
    conn.execute("select expired from forebay.sweep_v1()")
    count_completed(conn)
    (alert,) = mirror.status().alerts
    assert alert.code == "A3"
    assert "expired before they were proved" in alert.problem


async def test_samples_are_taken_by_passes_and_by_whoever_asks_once_a_minute(app, conn, mirror):
    """
    However many do.
    """
    mirror.changed(conn, 1)
    await run_until_idle(app)
    await wait_for_async(lambda: one(conn, "select count(*) from forebay.mirror_sample") == 1)
    mirror.status()
    mirror.status()
    assert one(conn, "select count(*) from forebay.mirror_sample") == 1
    shift_clock(conn, 60)
    mirror.status()
    assert one(conn, "select count(*) from forebay.mirror_sample") == 2


@pytest.mark.slow
async def test_a_heartbeat_is_proved_by_both_stores(app, conn, mirror, source, target):
    """
    It is postponed while one of them cannot be asked, fails alone where a scan is broken, and is
    completed else.
    """
    mirror._reconciler.breaker = SharedBreaker(failures=1, seconds=0.05)
    source.is_down = True
    job = await asyncio.to_thread(mirror.heartbeat_now)
    async with running(app):
        await wait_for_async(lambda: kept(conn).get("postponed", 0) >= 1)
        assert "completed.heartbeat" not in kept(conn)
        source.is_down = False
        await wait_for_async(lambda: kept(conn).get("completed.heartbeat") == 1)
        assert app.client().job(job)[0].attempt == 1
        source.scan = lambda _after, _limit: 1 / 0
        mirror.heartbeat(conn)
        item = mirror.changed(conn, 1)
        await wait_for_async(lambda: app.client().job(item)[0].state == "done")
        await wait_for_async(lambda: kept(conn).get("rejected", 0) >= 1)
        assert kept(conn)["completed.heartbeat"] == 1
    async with await psycopg.AsyncConnection.connect(app.dsn) as other:
        assert await mirror.aheartbeat(other) > job


@pytest.mark.direct
async def test_a_role_that_only_reads_may_ask(app, database, conn, mirror):
    """
    It leaves no sample, and is told all the same.
    """
    conn.execute("grant forebay_reader to current_user")
    app._internals.use(dsn=make_conninfo(database, options="-c role=forebay_reader"))
    assert mirror.status().facts.waiting == 0
    assert mirror.audits() == []
    app._internals.use(dsn=database)
    assert one(conn, "select count(*) from forebay.mirror_sample") == 0


# --- the command ---


@pytest.fixture
def shop(database, tmp_path, monkeypatch):
    """A folder with an application that has a mirror."""
    monkeypatch.setenv("FOREBAY_DATABASE_URL", database)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    # Another test's is not this one: it knows another database.
    monkeypatch.delitem(sys.modules, "watched_shop", raising=False)
    (tmp_path / "watched_shop.py").write_text(
        "import forebay\n"
        "from forebay.mirror import Document, SQLiteTarget\n"
        "class Items:\n"
        "    def read(self, ids): return [Document(i, 1, {}) for i in ids]\n"
        "    def scan(self, after, limit): return []\n"
        "app = forebay.App()\n"
        "pages = forebay.Mirror(app, 'pages', source=Items(), "
        "target=SQLiteTarget('index.db'), grace=0)\n"
    )
    return "watched_shop:app"


@pytest.mark.slow
def test_the_command_tells_in_words_and_by_its_exit_code(shop, conn, capsys):
    """
    0 when all is well, 1 with an alert, 2 when asked wrongly; one line of JSON for programs.
    """
    assert run(["mirror", "status", shop, "pages"]) == 1
    said = capsys.readouterr().out
    assert "A1 pages: no job has been completed yet" in said
    assert "forebay mirror heartbeat" in said
    assert run(["mirror", "heartbeat", shop, "pages"]) == 0
    for name in range(3):
        conn.execute(
            "select forebay.enqueue('mirror.pages', %s::jsonb, queue => 'mirror', tag => 'api')",
            [f'{{"id": {name}}}'],
        )
    assert run(["worker", shop, "--until-idle", "--log-level", "error"]) == 0
    conn.execute(
        "select forebay.enqueue('mirror.pages', '{\"id\": 9}', queue => 'mirror', tag => 'web')"
    )
    capsys.readouterr()
    assert run(["mirror", "status", shop, "pages", "--tags"]) == 0
    said = capsys.readouterr().out
    for part in (
        "pages: no alerts",
        "1 job: 1 due",
        "4 jobs within 10 min",
        "web",
        "completed.up_to_date",
    ):
        assert part in said
    assert run(["mirror", "status", shop, "pages", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["fine"], told["alerts"], told["due"], told["completed"]) == (True, [], 1, 4)
    assert {
        "outcome": "completed.up_to_date",
        "tag": "api",
        "priority": 100,
        "lately": 3,
        "total": 3,
    } in told["counts"]
    assert run(["mirror", "status", shop, "nothing"]) == 2
    assert run(["mirror", "status", shop]) == 2
    assert run(["mirror", "heartbeat", shop, "pages", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["job_id"]


def test_the_command_says_when_the_database_cannot_be_asked(shop, monkeypatch, tmp_path, capsys):
    """
    That is neither fine nor an alert.
    """
    monkeypatch.setenv("FOREBAY_DATABASE_URL", f"host={tmp_path} dbname=nowhere")
    begun = time.monotonic()
    assert run(["mirror", "status", shop, "pages"]) == 3
    assert time.monotonic() - begun < 20
    assert capsys.readouterr().err
