"""Schedules in SQL: one job for each instant, whoever decides it and whatever fails.

Overlap, missed runs, pauses.
"""

import json
import threading
from datetime import UTC, datetime, timedelta

import psycopg
import pytest

from tests.support.engine import Reader, connect, one, shift_clock, sqlstate, state, trim
from tests.support.mutant import break_function, violation

HOUR = timedelta(hours=1)


@pytest.fixture
def conn(database):
    with connect(database) as conn:
        yield conn


class Clock:
    """The clock of the database, moved at will."""

    def __init__(self, conn) -> None:
        self.conn = conn
        self.shift = 0.0

    def ahead(self, **delta: float) -> None:
        self.shift += timedelta(**delta).total_seconds()
        shift_clock(self.conn, self.shift)

    def now(self) -> datetime:
        return one(self.conn, "select forebay._now()")


@pytest.fixture
def clock(conn):
    return Clock(conn)


def create(conn, name="nightly", cron="0 * * * *", **options):
    """Create a schedule; its instants are what the tests say."""
    names = "".join(f", {key} => %s" for key in options)
    return one(
        conn,
        f"select forebay.create_schedule(%s, 'work', %s{names})",
        name,
        cron,
        *[json.dumps(v) if isinstance(v, dict) else v for v in options.values()],
    )


def fire(conn, *instants, name="nightly", at=None, older=None):
    """Decide instants as a scheduler that has just looked, or that looked at ``at``.

    Return (status, enqueued).
    """
    known = at or look(conn, name)
    return conn.execute(
        (
            "select status, enqueued from forebay.fire_v1(%s, %s, %s, %s::timestamptz[], "
            "%s::timestamptz)"
        ),
        [*known, list(instants), older],
    ).fetchone()


def look(conn, name="nightly"):
    return conn.execute(
        "select schedule_id, revision, decided_to from forebay.schedule where name = %s", [name]
    ).fetchone()


def history(conn, name="nightly"):
    """Return (status, instants) of each decision, oldest first."""
    return conn.execute(
        "select status, instants from forebay.schedule_history(%s, 1000) order by scheduled_for",
        [name],
    ).fetchall()


def jobs(conn, name="nightly"):
    """Return the ids of the jobs that were enqueued for a schedule, oldest first, from the log
    itself.
    """
    return [
        row[0]
        for row in conn.execute(
            "select job_id from (select coalesce(job_id, seq) as job_id, headers from forebay.log"
            " union all select job_id, headers from forebay.deferred) j"
            " where headers ->> 'forebay-schedule' = %s order by job_id",
            [name],
        )
    ]


def instant(clock, **ahead):
    """Move the clock, and return an instant just before it."""
    clock.ahead(**ahead)
    return clock.now() - timedelta(seconds=1)


def each_instant_has_one_job(dsn):
    """Two schedulers with the same knowledge decide the same instant.

    Then a third one that fell behind.
    """
    with connect(dsn) as conn:
        clock = Clock(conn)
        create(conn, overlap="allow")
        at = instant(clock, hours=1)
        known = look(conn)
        assert fire(conn, at, at=known) == ("decided", 1)
        for _ in range(2):
            with connect(dsn) as other:
                assert fire(other, at, at=known)[1] == 0
        assert len(jobs(conn)) == 1


def test_each_instant_has_one_job(database):
    """
    The position keeps an older scheduler out; without its check, the primary key does.
    """
    each_instant_has_one_job(database)


def test_without_the_check_of_the_position_the_key_prevents_a_double(database):
    break_function(
        database,
        "fire_v1",
        ("(s.revision, s.decided_to) is distinct from (p_revision, p_decided_to)", "false"),
        ("coalesce(p_older, p_instants[1]) > s.decided_to", "true"),
    )
    each_instant_has_one_job(database)


def test_without_position_and_key_a_double_is_seen(database):
    break_function(
        database,
        "fire_v1",
        ("(s.revision, s.decided_to) is distinct from (p_revision, p_decided_to)", "false"),
        ("coalesce(p_older, p_instants[1]) > s.decided_to", "true"),
    )
    with connect(database) as conn:
        conn.execute("alter table forebay.occurrence drop constraint occurrence_pkey")
    with violation():
        each_instant_has_one_job(database)


def test_a_stale_scheduler_is_refused(conn, clock):
    """
    After a decision, a change, a pause, a resume and a drop.
    """
    create(conn)
    at = instant(clock, hours=1)
    known = look(conn)
    fire(conn, at)
    assert fire(conn, instant(clock, minutes=1), at=known) == ("stale", 0)
    for act in (
        "select forebay.create_schedule('nightly', 'other', '0 * * * *')",
        "select forebay.pause_schedule('nightly', 'a reason')",
        "select forebay.resume_schedule('nightly')",
        "select forebay.drop_schedule('nightly')",
    ):
        known = look(conn)
        one(conn, act)
        assert fire(conn, instant(clock, minutes=1), at=known) == ("stale", 0)
    assert len(jobs(conn)) == 1


def test_a_decision_is_all_or_nothing(conn, clock, database):
    """
    A transaction that does not commit leaves neither job nor row nor position; another one that
    meets it does not wait.
    """
    create(conn, overlap="allow")
    at = instant(clock, hours=1)
    known = look(conn)
    with connect(database) as other:
        other.execute("begin")
        assert fire(other, at, at=known) == ("decided", 1)
        assert fire(conn, at, at=known) == ("busy", 0)
        other.execute("rollback")
    assert (look(conn), history(conn), jobs(conn)) == (known, [], [])
    assert fire(conn, at, at=known) == ("decided", 1)


@pytest.mark.slow
def test_many_schedulers_at_once(database, conn, clock):
    """Each of twelve schedulers tries to decide each of thirty instants."""
    create(conn, overlap="allow", missed="all")
    start = clock.now()
    clock.ahead(minutes=31)
    instants = [start + timedelta(minutes=n) for n in range(1, 31)]

    def decide():
        with connect(database) as own:
            while True:
                known = look(own)
                left = [at for at in instants if at > known[2]]
                if not left:
                    return
                fire(own, left[0], at=known)

    threads = [threading.Thread(target=decide) for _ in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(jobs(conn)) == 30
    assert history(conn) == [("enqueued", 1)] * 30


def test_instants_in_the_future_or_out_of_order_are_refused(conn, clock):
    create(conn)
    begin = look(conn)[2]
    now = instant(clock, hours=3)
    for wrong in (
        [now + HOUR],
        [now, now - HOUR],
        [now, now],
        [begin],
        [begin - HOUR],
        [None],
        [],
    ):
        known = look(conn)
        query = "select forebay.fire_v1(%s, %s, %s, %s::timestamptz[])"
        assert sqlstate(conn, query, *known, wrong) == "JQ001", wrong
    assert (history(conn), jobs(conn)) == ([], [])


@pytest.mark.parametrize("is_running", [False, True])
@pytest.mark.parametrize("overlap", ["allow", "skip", "queue", "cancel", "replace"])
def test_overlap(database, conn, clock, overlap, is_running):
    """
    What happens when the job before waits or runs, and after it has ended.
    """
    create(conn, overlap=overlap)
    fire(conn, instant(clock, hours=1))
    (first,) = jobs(conn)
    with Reader(database, "default") as reader:
        batch = reader.claim_ready() if is_running else None
        enqueued = fire(conn, instant(clock, minutes=1))[1]
        waits = not is_running
        assert enqueued == (0 if overlap == "skip" or (overlap == "queue" and waits) else 1)
        waiting = "cancelled" if overlap in ("cancel", "replace") else "ready"
        assert state(conn, first) == ("claimed" if is_running else waiting)
        requested = one(
            conn, "select exists (select from forebay.tombstone where job_id = %s)", first
        )
        assert requested is (overlap == "cancel" or (overlap == "replace" and waits))
        if overlap == "queue" and is_running:
            assert fire(conn, instant(clock, minutes=1)) == ("decided", 0)
            assert "waits" in one(conn, "select reason from forebay.schedule_history('nightly', 1)")
            with Reader(database, "default") as other:
                assert other.claim_ready().jobs == []
        for left in [batch] if batch else reader.claim_all():
            reader.finish(left)
        for left in reader.claim_all():
            reader.finish(left)
        assert fire(conn, instant(clock, minutes=1)) == ("decided", 1)


@pytest.mark.parametrize(
    ("missed", "options", "expected"),
    [
        ("skip", {}, [("missed", 5)]),
        ("latest", {}, [("missed", 4), ("enqueued", 1)]),
        ("latest", {"catch_up": "10 minutes"}, [("missed", 5)]),
        ("all", {}, [("enqueued", 1)] * 5),
        ("all", {"missed_max": 2}, [("missed", 3), ("enqueued", 1), ("enqueued", 1)]),
        (
            "all",
            {"catch_up": "2 hours 30 minutes"},
            [("missed", 3), ("enqueued", 1), ("enqueued", 1)],
        ),
    ],
)
@pytest.mark.parametrize("is_fresh", [False, True])
def test_missed_instants(conn, clock, missed, options, expected, is_fresh):
    """
    Five instants an hour apart were missed; perhaps one is not. An instant that is not missed
    always gets its job.
    """
    create(conn, overlap="allow", missed=missed, **options)
    begin = look(conn)[2]
    clock.ahead(hours=5, minutes=30)
    instants = [begin + n * HOUR for n in range(1, 6)]
    if is_fresh:
        instants.append(clock.now() - timedelta(seconds=5))
        expected = [*expected, ("enqueued", 1)]
        if missed == "latest":
            expected = [("missed", 5), ("enqueued", 1)]
    assert fire(conn, *instants)[0] == "decided"
    assert history(conn) == expected
    assert len(jobs(conn)) == sum(status == "enqueued" for status, _ in expected)


def test_instants_before_the_window_are_recorded(conn, clock):
    create(conn, missed="latest")
    begin = look(conn)[2]
    clock.ahead(days=9)
    now = clock.now()
    assert fire(conn, now - HOUR, older=begin + HOUR) == ("decided", 1)
    assert history(conn) == [("missed", 1), ("enqueued", 1)]


def test_the_jitter_depends_on_name_and_instant_only(conn, clock):
    """
    Every scheduler computes the same start; starts are spread over the jitter.
    """
    create(conn, jitter="1 hour", overlap="allow")
    create(conn, name="other", jitter="1 hour", overlap="allow")
    begin = datetime(2026, 1, 1, tzinfo=UTC)
    instants = [begin + n * HOUR for n in range(400)]
    query = "select scheduled_for, starts_at from forebay.schedule_starts(%s, %s)"
    found = [
        conn.execute(query, [name, instants]).fetchall() for name in ("nightly", "nightly", "other")
    ]
    assert found[0] == found[1] != found[2]
    late = sorted((starts - at) / HOUR for at, starts in found[0])
    assert late[0] >= 0
    assert late[-1] < 1
    assert 0.4 < sum(late) / 400 < 0.6
    at = instant(clock, hours=1)
    fire(conn, at)
    ((_, starts),) = conn.execute(query, ["nightly", [at]]).fetchall()
    (job,) = jobs(conn)
    assert one(conn, "select run_at from forebay.job(%s)", job) == starts


def test_the_job_carries_its_instant_and_options(conn, clock):
    create(
        conn,
        args={"a": 1},
        queue="mail",
        priority=7,
        options={
            "tag": "t",
            "correlation_id": "c",
            "headers": {"x": "y"},
            "max_attempts": 3,
            "expires_in": 90,
        },
    )
    at = instant(clock, hours=1)
    fire(conn, at)
    (job,) = jobs(conn)
    row = conn.execute(
        "select kind, args, queue, priority, tag, correlation_id, max_attempts, headers, "
        "expires_at - enqueued_at"
        " from forebay.job(%s)",
        [job],
    ).fetchone()
    headers = row[7]
    assert datetime.fromisoformat(headers.pop("forebay-scheduled-for")) == at
    assert 0.9 < float(headers.pop("forebay-late-by")) < 60
    assert headers == {"x": "y", "forebay-schedule": "nightly", "forebay-occurrence": "1"}
    assert row[:7] == ("work", {"a": 1}, "mail", 7, "t", "c", 3)
    assert abs(row[8] - timedelta(seconds=90)) < timedelta(seconds=1)


def test_a_dead_job_pauses_a_schedule_that_says_so(database, conn, clock):
    create(conn, pause_on_failure=True, overlap="allow", options={"max_attempts": 1})
    fire(conn, instant(clock, hours=1))
    with Reader(database, "default") as reader:
        batch = reader.claim_ready()
        error = {"type": "E", "message": "m", "traceback": ""}
        ended = [{"offset": 1, "outcome": "dead", "reason": "permanent", "error": error}]
        reader.settle(batch.claim_no, [], ended=ended)
    assert state(conn, batch.job_ids[0]) == "dead"
    at = instant(clock, minutes=1)
    assert fire(conn, at) == ("paused", 0)
    (note,) = conn.execute("select pause_note from forebay.schedules('nightly')").fetchone()
    assert note == f"job {batch.job_ids[0]} is dead"
    assert one(conn, "select forebay.resume_schedule('nightly')")
    assert fire(conn, instant(clock, minutes=1)) == ("decided", 1)


def test_a_pause_decides_nothing_and_a_resume_begins_now(conn, clock):
    create(conn, missed="all")
    assert one(conn, "select forebay.pause_schedule('nightly', 'a move')") is True
    assert one(conn, "select forebay.pause_schedule('nightly', 'a move')") is False
    at = instant(clock, hours=1)
    assert fire(conn, at) == ("stale", 0)
    assert one(conn, "select schedules from forebay.schedules_v1()") == "[]"
    assert one(conn, "select forebay.resume_schedule('nightly')") is True
    assert one(conn, "select forebay.resume_schedule('nightly')") is False
    assert look(conn)[2] > at
    acts = conn.execute(
        "select act, detail from forebay.events() where act like 'schedules.%' order by event_id"
    ).fetchall()
    assert [act for act, _ in acts] == ["schedules.create", "schedules.pause", "schedules.resume"]


def test_run_now_is_recorded_and_changes_no_position(conn, clock):
    create(conn, overlap="queue")
    known = look(conn)
    found = [one(conn, "select forebay.run_schedule('nightly')") for _ in range(3)]
    assert found == jobs(conn)
    assert history(conn) == [("manual", 1)] * 3
    assert look(conn) == known


def test_another_timing_catches_nothing_up(conn, clock):
    """
    A changed expression begins at the change; any other change keeps the position.
    """
    assert create(conn) == "created"
    assert create(conn) == "unchanged"
    known = look(conn)
    clock.ahead(hours=1)
    assert create(conn, args={"a": 2}) == "changed"
    assert look(conn)[1:] == (2, known[2])
    assert create(conn, cron="30 * * * *") == "changed"
    assert look(conn)[2] > known[2] + timedelta(minutes=59)


def test_a_schedule_that_starts_later(conn, clock):
    begin = clock.now() + HOUR
    create(conn, cron=None, every="1 hour", starts_at=begin)
    assert look(conn)[2] == begin - timedelta(microseconds=1)
    clock.ahead(hours=1, minutes=1)
    assert fire(conn, begin) == ("decided", 1)


BAD = [
    {"name": "a b"},
    {"cron": "0 9 * *"},
    {"cron": "0 9 * * * * *"},
    {"cron": "0 9 * * $"},
    {"cron": None},
    {"every": "1 hour"},
    {"cron": None, "every": "1.5 seconds"},
    {"cron": None, "every": "0"},
    {"cron": None, "every": "1 minute", "jitter": "2 minutes"},
    {"tz": "Europe/Nowhere"},
    {"tz": "+3"},
    {"tz": None},
    {"jitter": "25 hours"},
    {"jitter": "-1 second"},
    {"overlap": "never"},
    {"overlap": None},
    {"missed": "some"},
    {"catch_up": "-1 day"},
    {"missed_max": 0},
    {"queue": "a b"},
    {"priority": 40000},
    {"options": {"run_at": "x"}},
    {"options": {"tag": 1}},
    {"options": {"expires_in": 0}},
    {"options": {"max_attempts": 1.5}},
    {"options": {"headers": {"forebay-schedule": "x"}}},
    {"args": None},
    {"starts_at": "infinity"},
    {"starts_at": "294276-01-01"},
    {"starts_at": "0001-01-01 BC"},
]


def test_a_bad_definition_is_refused(conn):
    for wrong in BAD:
        with pytest.raises(psycopg.Error) as caught:
            create(conn, **wrong)
        assert caught.value.sqlstate == "JQ001", wrong
        assert one(conn, "select count(*) from forebay.schedule") == 0, wrong


@pytest.mark.parametrize(
    "call",
    ["pause_schedule(%s)", "resume_schedule(%s)", "run_schedule(%s)", "schedule_history(%s)",
        "schedule_starts(%s, '{}')",
     "backfill_schedule(%s, '{}', 1)"],
)  # fmt: skip
def test_an_unknown_schedule(conn, call):
    assert sqlstate(conn, f"select forebay.{call}", "none") == "JQ060"
    assert one(conn, "select forebay.drop_schedule('none')") is False


def test_a_backfill_enqueues_what_was_counted(conn, clock):
    """
    Instants with a job are left out, missed ones are not, and a second backfill has nothing to do.
    """
    create(conn, missed="skip", overlap="allow")
    begin = look(conn)[2]
    clock.ahead(hours=5, minutes=30)
    late = clock.now() - timedelta(seconds=1)
    fire(conn, *[begin + n * HOUR for n in range(1, 6)], late)
    instants = [begin - HOUR, begin + HOUR, begin + 5 * HOUR, late, late + HOUR]
    query = "select jobs, token from forebay.backfill_schedule('nightly', %s, %s, %s)"
    revision = look(conn)[1]
    count, token = conn.execute(query, [instants, revision, None]).fetchone()
    assert (count, len(jobs(conn))) == (3, 1)
    assert sqlstate(conn, query, instants[:2], revision, token) == "JQ061"
    assert sqlstate(conn, query, instants, revision + 1, token) == "JQ061"
    assert conn.execute(query, [instants, revision, token]).fetchone() == (3, token)
    assert len(jobs(conn)) == 4
    assert conn.execute(query, [instants, revision, None]).fetchone()[0] == 0
    assert sqlstate(conn, query, instants, revision, token) == "JQ061"
    assert [status for status, _ in history(conn)] == [
        "backfilled",
        "backfilled",
        "backfilled",
        "enqueued",
    ]


def declared(*schedules):
    return json.dumps([{"kind": "work", "cron": "0 * * * *"} | each for each in schedules])


def apply(conn, *schedules, app="shop", **options):
    names = "".join(f", {key} => {value}" for key, value in options.items())
    query = f"select name, action from forebay.apply_schedules(%s, %s::jsonb{names})"
    return conn.execute(query, [app, declared(*schedules)]).fetchall()


def test_declared_schedules_are_applied_and_reported(conn):
    """
    A change by hand stays until the declaration changes; what is not declared any more is reported
    and stays.
    """
    one(conn, "select forebay.create_schedule('by_hand', 'work', '0 * * * *')")
    found = apply(conn, {"name": "a"}, {"name": "b"}, {"name": "by_hand"}, dry_run=True)
    assert found == [("a", "create"), ("b", "create"), ("by_hand", "conflict")]
    assert look(conn, "a") is None
    assert apply(conn, {"name": "a"}, {"name": "b"}) == [("a", "create"), ("b", "create")]
    assert apply(conn, {"name": "a"}, {"name": "b"}) == []
    one(conn, "select forebay.create_schedule('a', 'work', '5 * * * *')")
    assert apply(conn, {"name": "a"}, {"name": "b"}) == [("a", "kept")]
    assert one(conn, "select cron from forebay.schedules('a')") == "5 * * * *"
    assert apply(conn, {"name": "a", "priority": 3}, {"name": "b"}) == [("a", "change")]
    assert one(conn, "select cron from forebay.schedules('a')") == "0 * * * *"
    assert apply(conn, {"name": "a", "priority": 3}) == [("b", "vanished")]
    assert one(conn, "select vanished_at is not null from forebay.schedules('b')")
    assert apply(conn, {"name": "b"}, app="other") == [("b", "conflict")]
    assert apply(conn, {"name": "a", "priority": 3}, {"name": "b"}) == []
    assert one(conn, "select vanished_at is null from forebay.schedules('b')")
    one(conn, "select forebay.create_schedule('a', 'work', '5 * * * *')")
    assert apply(conn, {"name": "a", "priority": 3}, {"name": "b"}, overwrite=True) == [
        ("a", "change")
    ]
    assert (
        sqlstate(
            conn,
            'select forebay.apply_schedules(\'shop\', \'[{"name": "x", "cron": "0 * * * *"}]\')',
        )
        == "JQ001"
    )


def test_old_decisions_are_trimmed_and_never_those_that_keep_an_instant_unique(conn, clock):
    create(conn, overlap="skip")
    for _ in range(3):
        fire(conn, instant(clock, hours=1))
    assert [status for status, _ in history(conn)] == ["enqueued", "skipped", "skipped"]
    clock.ahead(days=40)
    # The first one has a job that the next decision looks at; the last one is the position.
    assert trim(conn, "occurrences", most=1) == 1
    assert [status for status, _ in history(conn)] == ["enqueued", "skipped"]
    conn.execute(
        "update forebay.schedule set decisions = 20000, decided_to = decided_to + interval '1 s'"
    )
    assert trim(conn, "occurrences") == 1


def test_a_problem_is_shown_until_the_schedule_changes(conn):
    create(conn, cron="61 * * * *")
    schedule_id, revision, _ = look(conn)
    one(conn, "select forebay.schedule_problem_v1(%s, %s, 'bad')", schedule_id, revision)
    assert one(conn, "select problem from forebay.schedules()") == "bad"
    create(conn, cron="1 * * * *")
    assert one(conn, "select problem from forebay.schedules()") is None
    one(conn, "select forebay.schedule_problem_v1(%s, %s, 'late')", schedule_id, revision)
    assert one(conn, "select problem from forebay.schedules()") is None


def test_definitions_are_returned_when_they_changed(conn, clock):
    digest, found = conn.execute(
        "select digest, schedules from forebay.schedules_v1(null)"
    ).fetchone()
    assert found == "[]"
    create(conn)
    query = "select digest, schedules from forebay.schedules_v1(%s)"
    digest, found = conn.execute(query, [digest]).fetchone()
    assert [each["name"] for each in json.loads(found)] == ["nightly"]
    assert conn.execute(query, [digest]).fetchone() == (digest, None)
    fire(conn, instant(clock, hours=1))
    assert conn.execute(query, [digest]).fetchone()[1] is not None
