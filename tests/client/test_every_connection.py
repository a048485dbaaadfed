"""Enqueuing in the caller's own transaction, on every kind of connection that is accepted."""

from datetime import UTC, datetime, timedelta

import psycopg
import pytest

from forebay import App, Client, Rows
from forebay.errors import (
    AlreadyRedriven,
    DeadLetterNotFound,
    GroupNotFound,
    InvalidJob,
    JobNotFound,
    SchemaError,
)
from tests.client.drivers import ALL

pytestmark = pytest.mark.filterwarnings("error")

app = App()


@app.job(queue="mail")
def send_welcome(user_id: int, locale: str = "en", note: str = "") -> None: ...


#: One of each library; with the others the tests are slow.
QUICK = ("Psycopg", "AsyncPsycopg", "Asyncpg", "SQLAlchemySession", "DjangoConnection")


@pytest.fixture(
    params=[
        pytest.param(
            kind, id=kind.__name__, marks=[] if kind.__name__ in QUICK else pytest.mark.slow
        )
        for kind in ALL
    ]
)
def driver(request, database):
    driver = request.param(database)
    yield driver
    driver.close()


def committed(driver):
    """The ids of the jobs that everybody sees, oldest first."""
    return sorted(job.job_id for job in Client(driver.dsn).jobs())


def test_row_and_job_are_committed_together(driver):
    """
    Nobody sees either before the commit, everybody sees both after it.
    """
    driver.execute("create table users (user_id int)")
    driver.commit()
    driver.execute("insert into users values (1)")
    job_id = driver.enqueue(
        send_welcome, 1, locale="it", note="quotes ' \" and % and :x and $1, \u65e5"
    )
    assert committed(driver) == []

    driver.commit()

    (job,) = Client(driver.dsn).job(job_id)
    assert (job.kind, job.queue) == ("send_welcome", "mail")
    assert job.args == {
        "user_id": 1,
        "locale": "it",
        "note": "quotes ' \" and % and :x and $1, \u65e5",
    }
    with psycopg.connect(driver.dsn) as conn:
        # One transaction wrote both.
        assert conn.execute("select u.xmin = l.xmin from users u, forebay.log l").fetchone() == (
            True,
        )


def test_row_and_job_are_rolled_back_together(driver):
    """
    A rollback takes the job back with everything else.
    """
    driver.execute("create table users (user_id int)")
    driver.enqueue(send_welcome, 1)
    assert driver.enqueue_many(send_welcome, [2, 3]) == 2
    driver.rollback()
    assert committed(driver) == []
    assert driver.execute("select to_regclass('users')::text") is None


def test_an_enqueue_may_be_the_first_statement(driver):
    """
    Where the library begins its transaction with the first statement, that may be ours: a rollback
    takes it back.
    """
    driver.enqueue(send_welcome, 1)
    driver.rollback()
    assert committed(driver) == []


def test_a_savepoint_takes_back_its_own(driver):
    """
    What was enqueued inside is gone, what was enqueued before and after it is there.
    """
    before = driver.enqueue(send_welcome, 1)
    with driver.savepoint():
        driver.enqueue(send_welcome, 2)
    after = driver.enqueue(send_welcome, 3)
    driver.commit()
    assert committed(driver) == [before, after]


def test_it_stays_the_callers_transaction(driver):
    """
    Every kind of call runs in the transaction that was open before, and leaves it open.
    """
    before = driver.xid()
    job_id = driver.enqueue(send_welcome.using(delay=60, expires_in=60), 1)
    driver.enqueue_many(send_welcome, range(10), chunk=4)
    driver.client("depth")
    driver.client("jobs")
    driver.client("cancel", job_id)
    assert driver.xid() == before
    driver.rollback()
    assert committed(driver) == []


def test_every_option_arrives(driver):
    """
    Texts, numbers, times and JSON are the same whatever carries them.
    """
    at = datetime(2090, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)
    chosen = {
        "queue": "bulk",
        "priority": -7,
        "tag": "signup",
        "correlation_id": "c-1",
        "headers": {"trace": "x:y"},
        "max_attempts": 3,
        "run_at": at,
        "expires_at": at + timedelta(days=1),
    }
    driver.enqueue(send_welcome.using(**chosen), 1)
    driver.enqueue_many(send_welcome.using(**chosen), [2])
    driver.enqueue_many(send_welcome, [send_welcome.using(**chosen).call(3), send_welcome.call(4)])
    driver.commit()
    jobs = [job for job in Client(driver.dsn).jobs() if job.queue == "bulk"]
    assert len(jobs) == 3
    for job in jobs:
        assert {name: getattr(job, name) for name in chosen} == chosen


@pytest.mark.parametrize("tiny", [1e-5, 4.961873680944251e-05, 1e-300])
def test_numbers_that_python_writes_with_an_exponent_arrive(driver, tiny):
    """
    A delay, a rate, an age: the database takes them as numbers, never as the text of an interval.
    """
    soon = send_welcome.using(delay=tiny, expires_in=60)
    driver.enqueue(soon, 1)
    driver.enqueue_many(soon, [2])
    driver.enqueue_many(send_welcome, [soon.call(3), send_welcome.using(delay=tiny).call(4)])
    driver.execute("create table page (id int)")
    driver.execute("insert into page values (1)")
    assert driver.client("backfill", "mail", Rows("page"), delay=tiny) == 1
    least = {"rate": max(tiny, 1e-6), "key_rate": max(tiny, 1e-6)}
    driver.client("limit_queue", "mail", **least)
    (limits,) = driver.client("limits", "mail")
    assert {name: getattr(limits.limits, name) for name in least} == least
    assert driver.client("purge_dead", tiny) == 0
    driver.commit()
    assert len(committed(driver)) == 5


def test_a_bulk_of_any_length_is_one_transaction(driver):
    """
    Chunks from a generator are all there after the commit, and not before.
    """
    assert driver.enqueue_many(send_welcome, (n for n in range(2500)), chunk=1000) == 2500
    assert committed(driver) == []
    driver.commit()
    with psycopg.connect(driver.dsn) as conn:
        assert conn.execute(
            "select count(*), count(distinct args), count(distinct xid::text) from forebay.log"
        ).fetchone() == (2500, 2500, 1)


def test_a_backfill_belongs_to_the_transaction(driver):
    """
    Names and values of any kind arrive whatever carries them; what is wrong with the query is told
    as on a connection of ours.
    """
    driver.execute("create table page (id int, title text)")
    driver.execute("insert into page values (1, 'quotes '' \" and : and $1'), (2, 'other')")
    where = "title = any(%(titles)s) and 5 %% 2 = 1 and id::text <> ':x'"
    rows = Rows("page", where=where, params={"titles": ["quotes ' \" and : and $1"]})
    plan = driver.client("plan_backfill", "index", rows, args={"why": "100 %"})
    assert plan.jobs == 1
    assert driver.client("backfill", "index", rows, args={"why": "100 %"}, token=plan.token) == 1
    assert committed(driver) == []
    driver.commit()
    (job,) = Client(driver.dsn).jobs()
    assert (job.args, job.tag) == ({"id": 1, "why": "100 %"}, "backfill")
    with pytest.raises(InvalidJob, match="the query failed"):
        driver.client("backfill", "index", Rows("nowhere"))
    driver.rollback()


def test_looking_and_managing_work_there(driver):
    """
    Look-up, lists, cancelling, pausing, settings and dead letters go through the same transaction.
    """
    job_id = driver.enqueue(send_welcome, 1)
    (job,) = driver.client("job", job_id)
    assert job.args == {"user_id": 1}
    assert [found.job_id for found in driver.enqueued()] == [job_id]
    (listed,) = driver.client("jobs", queue="mail", kind="send_welcome", state="ready", limit=5)
    assert listed.job_id == job_id
    (depth,) = driver.client("depth", "mail")
    assert (depth.ready, depth.scheduled) == (1, 0)
    assert driver.client("open_group", "mail") > 0
    assert driver.client("open_group", "mail", "audit", start="now") > 0
    assert driver.client("cancel", job_id, group="default") == "cancelled"
    assert driver.client("pause_queue", "mail") == 2
    assert driver.client("resume_queue", "mail", group="audit") == 1
    before = driver.client("configure", "args_bytes_max", 2048)
    assert driver.client("configure", "args_bytes_max", before) == 2048
    assert driver.client("dead_letters", reason="exhausted", redriven=False, job_id=job_id) == []
    yesterday = datetime.now(UTC) - timedelta(days=1)
    assert driver.client("redrive_matching", queue="mail", died_after=yesterday, limit=3) == 0
    assert driver.client("purge_dead", timedelta(days=7), queue="mail") == 0
    driver.rollback()
    assert committed(driver) == []


def test_what_the_database_refuses_is_the_same_error_everywhere(driver):
    """
    The SQLSTATE decides, whichever library carries it; the original is the cause.
    """
    for error, call in [
        (JobNotFound, lambda: driver.client("job", 10**6)),
        (GroupNotFound, lambda: driver.client("pause_queue", "nobody", group="none")),
        (DeadLetterNotFound, lambda: driver.client("redrive", 10**6)),
        (InvalidJob, lambda: driver.client("configure", "no_such_setting", 1)),
    ]:
        with pytest.raises(error) as caught:
            call()
        assert not caught.value.message.startswith(("(", "<class"))
        assert "\n" not in caught.value.message
        driver.rollback()


def test_a_refusal_carries_the_servers_own_words(driver):
    """
    Message, hint and the name of the refused option come through every wrapping.
    """
    # Only the database knows its time, and so that this job would expire before its start.
    expiring = send_welcome.using(expires_at=datetime.now(UTC), delay=3600)
    with pytest.raises(InvalidJob) as caught:
        driver.enqueue(expiring, 1)
    with psycopg.connect(driver.dsn) as conn, pytest.raises(InvalidJob) as wanted:
        expiring.enqueue(conn, 1)
    assert caught.value.message.split()[0] == wanted.value.message.split()[0] == "expires_at"
    for name in ("hint", "field"):
        assert getattr(caught.value, name) == getattr(wanted.value, name)
    assert caught.value.__cause__ is not None
    driver.rollback()
    assert committed(driver) == []


def test_refused_arguments_leave_the_transaction_usable(driver):
    """
    They are found before anything is sent.
    """
    kept = driver.enqueue(send_welcome, 1)
    for bad in ({"user_id": "42"}, {"user_id": 42, "language": "it"}, {}):
        with pytest.raises(InvalidJob):
            driver.enqueue(send_welcome, **bad)
    driver.commit()
    assert committed(driver) == [kept]


def test_a_callers_own_trouble_passes_untouched(driver):
    """
    A read-only transaction concerns all of it: the library's own exception, not one of ours.
    """
    driver.execute("set transaction read only")
    with pytest.raises(Exception) as caught:
        driver.enqueue(send_welcome, 1)
    assert "read-only" in str(caught.value)
    assert not type(caught.value).__module__.startswith("forebay")
    driver.rollback()


def test_a_database_without_the_schema_says_so(driver):
    """
    The advice is to migrate, on every driver.
    """
    driver.execute("drop schema forebay cascade")
    with pytest.raises(SchemaError) as caught:
        driver.enqueue(send_welcome, 1)
    assert "forebay migrate" in caught.value.hint
    driver.rollback()


def test_a_redrive_happens_once_per_transaction(driver):
    """
    A dead letter is redriven in the caller's transaction; the second time is an error of ours.
    """
    with psycopg.connect(driver.dsn) as conn:
        send_welcome.using(max_attempts=1).enqueue(conn, 1)
    run_a_failing_worker(driver.dsn)
    (letter,) = driver.client("dead_letters")
    assert letter.args == {"user_id": 1}
    assert driver.client("dead_letter", letter.dead_id).errors
    again = driver.client("redrive", letter.dead_id)
    assert again != letter.job_id
    with pytest.raises(AlreadyRedriven), driver.savepoint():
        driver.client("redrive", letter.dead_id)
    driver.rollback()
    assert [job.job_id for job in Client(driver.dsn).jobs()] == [letter.job_id]


def run_a_failing_worker(dsn):
    """Run everything with a handler that fails."""
    failing = App(dsn)

    @failing.job(name="send_welcome", queue="mail")
    def fail(user_id: int) -> None:
        raise RuntimeError("never")

    failing.run_worker(until_idle=True)
