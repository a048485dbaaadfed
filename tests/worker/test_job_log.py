"""What the log says of each job that ended."""

import asyncio
import gc
import io
import logging
import weakref
from datetime import UTC, datetime

import pytest

import forebay
from forebay import Cancel, Dead, Job, Retry, RetryPolicy, Snooze
from forebay.doctor.examine import examine
from tests.support.engine import enqueue, one, state
from tests.support.fix_worker import run_until_idle, running
from tests.support.waiting import wait_for, wait_for_async

pytestmark = pytest.mark.anyio

TWICE = RetryPolicy(strategy="fixed", base_seconds=0.001, cap_seconds=0.001, max_attempts=2)
LATER = RetryPolicy(strategy="fixed", base_seconds=600, cap_seconds=600, max_attempts=3)
ONCE = RetryPolicy(max_attempts=1)


class Customer(Exception):
    """An exception of the application."""


def records(caplog, outcome: str) -> list[logging.LogRecord]:
    """Return the records of attempts that ended so."""
    return [r for r in caplog.records if getattr(r, "outcome", None) == outcome]


@pytest.fixture(params=["coroutine", "thread", "transaction", "coroutine in transaction", "batch"])
def failing(request, app):
    """A handler of each sort, which raises."""

    def plain(n: int = 0) -> None:
        raise Customer("no figures")

    async def coroutine(n: int = 0) -> None:
        raise Customer("no figures")

    def batch(jobs: list[Job]) -> None:
        raise Customer("no figures")

    if request.param == "batch":
        return app.batch_job(name="failing", retry=TWICE, size=10)(batch)
    function = coroutine if request.param.startswith("coroutine") else plain
    return app.job(name="failing", retry=TWICE, transaction="transaction" in request.param)(
        function
    )


async def test_a_retry_is_a_warning_and_a_dead_job_an_error_with_its_exception(
    app, conn, caplog, failing
):
    """
    Of every sort of handler: which job, which attempt of how many, the error, when it runs again,
    and the real exception.
    """
    caplog.set_level(logging.INFO, "forebay.worker")
    job = failing.using(tag="nightly", correlation_id="c-1").enqueue(conn, n=1)
    async with running(app):
        await wait_for_async(lambda: records(caplog, "dead"), 20)
    (first,) = records(caplog, "retried")
    (second,) = records(caplog, "dead")

    assert first.levelno == logging.WARNING
    assert f"job {job} (failing), attempt 1 of 2, failed after " in first.getMessage()
    assert ", runs again in 0." in first.getMessage()
    assert first.getMessage().endswith("test_job_log.Customer: no figures")
    assert (first.attempt, first.exc_info) == (1, None)
    assert datetime.fromisoformat(first.next_at).tzinfo == UTC

    assert second.levelno == logging.ERROR
    assert f"job {job} (failing), attempt 2 of 2, failed after " in second.getMessage()
    assert " and is a dead letter now, no attempts are left: " in second.getMessage()
    kind, error, trace = second.exc_info
    assert kind is Customer
    assert isinstance(error, Customer)
    assert trace.tb_frame.f_code.co_filename == __file__
    assert (second.kind, second.queue, second.max_attempts) == ("failing", "default", 2)
    assert (second.tag, second.correlation_id, second.job_id) == ("nightly", "c-1", job)
    assert second.duration_seconds > 0


@pytest.mark.parametrize("transaction", [False, True])
@pytest.mark.parametrize(
    ("outcome", "level", "text"),
    [
        (None, "DEBUG", "done after"),
        (
            Retry(reason=("not ready")),
            "ERROR",
            "and is a dead letter now, no attempts are left: Retry: not ready",
        ),
        (
            Dead("no such user"),
            "ERROR",
            "and is a dead letter now, a retry cannot help: Dead: no such user",
        ),
        (Cancel("not wanted"), "INFO", "Cancel: not wanted"),
        (Snooze(600), "DEBUG", "runs again in 10 min"),
    ],
    ids=lambda value: type(value).__name__,
)
async def test_an_outcome_that_a_handler_returns_is_logged(
    app, conn, caplog, outcome, level, text, transaction
):
    """
    Also the last attempt that returns Retry, and what a transaction has settled; and the counters
    agree.
    """
    caplog.set_level(logging.DEBUG, "forebay.worker")

    @app.job(max_attempts=1, transaction=transaction)
    async def decide() -> object:
        return outcome

    job = decide.enqueue(conn)
    worker = await run_until_idle(app)
    (record,) = [r for r in caplog.records if hasattr(r, "outcome")]
    assert (record.levelname, record.job_id) == (level, job)
    assert text in record.getMessage()
    assert f"job {job} (decide), attempt 1 of 1, started" in caplog.text
    stats = worker.stats
    counted = [stats.done, stats.dead, stats.cancelled, stats.snoozed]
    assert counted == {
        "done": [1, 0, 0, 0], "dead": [0, 1, 0, 0], "cancelled": [0, 0, 1, 0],
        "snoozed": [0, 0, 0, 1]
    }[record.outcome]  # fmt: skip
    assert stats.ended == 1 - stats.done


async def test_wrong_arguments_a_timeout_and_an_unknown_kind_are_logged(app, conn, caplog):
    """
    Each with its reason; a soft timeout shows where the handler was.
    """
    caplog.set_level(logging.INFO, "forebay.worker")

    @app.job
    def typed(n: int) -> None: ...

    @app.job(retry=ONCE, soft_timeout=0.05)
    async def slow() -> None:
        await asyncio.Event().wait()

    @app.job(retry=ONCE, timeout=0.05)
    async def slower() -> None:
        await asyncio.Event().wait()

    enqueue(conn, kind="typed", args={"n": "x"})
    enqueue(conn, kind="nobody")
    slow.enqueue(conn)
    slower.enqueue(conn)
    async with running(app):
        await wait_for_async(lambda: len(records(caplog, "dead")) == 3, 20)
        await wait_for_async(lambda: records(caplog, "unknown"), 20)
    dead = {r.kind: r for r in records(caplog, "dead")}
    assert (
        "its arguments do not fit the handler: forebay.errors.InvalidJob"
        in dead["typed"].getMessage()
    )
    assert dead["typed"].exc_info
    assert "forebay.errors.SoftTimeout" in dead["slow"].getMessage()
    assert "in slow" in dead["slow"].exc_text
    assert "forebay.errors.HardTimeout" in dead["slower"].getMessage()
    (unknown,) = records(caplog, "unknown")
    what = "(nobody), attempt 1, postponed: no handler for kind 'nobody' in this worker"
    assert what in unknown.getMessage()


@pytest.mark.usual("the doctor asks as an operator")
async def test_a_job_of_a_renamed_handler_names_the_one_that_may_be_meant(
    app, conn, caplog, database
):
    """
    In the log, and in the doctor's report; both it and the explanation say how the job keeps its
    handler.
    """

    @app.job
    def renew_contract(n: int) -> None: ...

    job = enqueue(conn, kind="renew_contracts", args={"n": 1})
    async with running(app):
        await wait_for_async(lambda: records(caplog, "unknown"), 20)
    (unknown,) = records(caplog, "unknown")
    named = "no handler for kind 'renew_contracts' (did you mean 'renew_contract'?)"
    assert named in unknown.getMessage()
    (why,) = forebay.Client(database).explain(job)
    assert "@app.job(name='renew_contracts')" in why.hint
    (found,) = [each for each in await examine(database) if each.check == "failures"]
    assert named in found.what
    assert "@app.job(name=OLD_NAME)" in found.remedy


async def test_a_job_that_was_cancelled_is_logged(app, conn, caplog):
    """
    At INFO: an operator wanted it.
    """
    caplog.set_level(logging.INFO, "forebay.worker")

    @app.job
    async def long() -> None:
        await asyncio.Event().wait()

    job = long.enqueue(conn)
    async with running(app):
        await wait_for_async(lambda: state(conn, job) == "running", 20)
        one(conn, "select forebay.cancel(%s)", job)
        await wait_for_async(lambda: records(caplog, "cancelled"), 20)
    (record,) = records(caplog, "cancelled")
    assert record.levelname == "INFO"


async def test_the_jobs_of_a_batch_show_their_traceback_once(app, conn, caplog):
    """
    Each dead job has its record with the exception; the text of the others refers to the first.
    """

    @app.batch_job(retry=ONCE, size=3)
    def batch(jobs: list[Job]) -> None:
        raise Customer("all of them")

    @app.batch_job(retry=ONCE, size=3)
    def single(jobs: list[Job]) -> list[object]:
        return [None, Customer("this one"), None]

    ids = [batch.enqueue(conn, n=n) for n in range(3)]
    apart = [single.enqueue(conn, n=n) for n in range(3)]
    await run_until_idle(app)
    dead = {r.job_id: r for r in records(caplog, "dead")}
    assert set(dead) == {*ids, apart[1]}
    assert len({id(dead[job].exc_info[1]) for job in ids}) == 1
    assert "Traceback" in dead[ids[0]].exc_text
    assert [dead[job].exc_text for job in ids[1:]] == [
        f"  The traceback is that of job {ids[0]}."
    ] * 2
    assert "this one" in dead[apart[1]].exc_text


@pytest.mark.slow
def test_a_failure_in_a_process_and_its_death_are_logged(conn, workers, effects):
    """
    With the traceback of the child; a death with its cause. Both are logged once.
    """
    worker = workers.start(concurrency=1)
    failed = enqueue(conn, kind="exceed", args={"entry": 1, "what": "memory"}, max_attempts=1)
    died = enqueue(conn, kind="exceed", args={"entry": 2, "what": "cpu"}, max_attempts=1)
    worker.wait_for_log(f"job {failed} (exceed), attempt 1 of 1, failed")
    worker.wait_for_log(f"job {died} (exceed), attempt 1 of 1, failed", 40)
    assert "dead letter now, no attempts are left: MemoryError" in worker.log
    assert "in exceed" in worker.log
    assert "it killed its process each time it ran alone: WorkerLost" in worker.log
    assert worker.log.count(f"job {died} ") == 1


@pytest.mark.slow
def test_a_suspect_that_fails_is_logged(conn, workers, effects):
    """
    A suspect takes another way through the worker; its end is logged and counted all the same.
    """
    job = enqueue(conn, kind="exceed", args={"entry": 1, "what": "memory"}, max_attempts=1)
    group = one(conn, "select forebay.open_group('default')")
    lease = one(conn, "select forebay.open_lease_v1('dies', 1, 0.1)")
    lane = one(conn, "select forebay._lane_id('default', 100, 0)")
    conn.execute("select forebay.claim_v1(%s, 1, 1, %s, %s, 1)", [lease, group, lane])
    assert one(conn, "select forebay._revoke(%s, 'revoked', true)", lease) == 1
    worker = workers.start(concurrency=1)
    worker.wait_for_log(f"job {job} (exceed), attempt 1 of 1, failed")
    assert "in exceed" in worker.log
    worker.terminate()
    worker.wait_for_log("stopped: 0 done, 0 retried, 1 dead")


@pytest.mark.slow
def test_jobs_of_one_key_in_processes_with_transactions_all_run(conn, workers, effects):
    """
    The end of each job, which its own transaction settles, starts the next one of its ordering key.
    """
    workers.start(concurrency=2)
    jobs = [
        enqueue(conn, kind="write_in_process", args={"entry": entry}, ordering_key="k")
        for entry in range(3)
    ]
    wait_for(lambda: all(state(conn, job) == "done" for job in jobs), 30, lambda: workers.logs)


class Hostile(Exception):
    """Its text pretends to be lines of a log, and would clear the screen."""

    def __str__(self) -> str:
        return "x\n2026-01-01 00:00:00 ERROR forebay.worker: forged\x1b[2J\u2028also forged"


class Explosive(Exception):
    def __str__(self) -> str:
        raise SystemExit(1)


async def test_text_of_an_exception_forges_no_line(app, conn):
    """
    Neither in the message nor in the traceback, with the plainest of formatters: lines that follow
    are indented.
    """
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(logging.Formatter("LINE %(message)s"))
    log = logging.getLogger("forebay.worker")
    log.addHandler(handler)
    try:

        @app.job(retry=ONCE)
        def fail() -> None:
            raise Hostile

        fail.enqueue(conn)
        await run_until_idle(app)
    finally:
        log.removeHandler(handler)
    text = stream.getvalue()
    assert "dead letter" in text
    assert all(line.startswith(("LINE ", "  ")) for line in text.splitlines()), text
    assert not {"\x1b", "\u2028"} & set(text)


class Broken(logging.Handler):
    """A handler of the log whose own errors reach the caller."""

    def __init__(self, error: BaseException) -> None:
        super().__init__()
        self.error = error

    def handle(self, record) -> bool:
        raise self.error


@pytest.mark.parametrize("error", [RuntimeError("no disk"), SystemExit(1), KeyboardInterrupt()])
async def test_a_log_that_fails_changes_no_outcome(app, conn, capsys, error):
    """
    The job is settled as without it, the worker continues, and the error is printed.
    """

    @app.job(retry=ONCE)
    def fail() -> None:
        raise Explosive

    @app.job
    async def succeed() -> None: ...

    dead, done = fail.enqueue(conn), succeed.enqueue(conn)
    log = logging.getLogger("forebay.worker")
    broken = Broken(error)
    broken.addFilter(lambda record: hasattr(record, "outcome"))
    broken.handle = lambda record: broken.filter(record) and Broken.handle(broken, record)
    log.addHandler(broken)
    try:
        await run_until_idle(app)
    finally:
        log.removeHandler(broken)
    assert [state(conn, dead), state(conn, done)] == ["dead", "done"]
    assert type(error).__name__ in capsys.readouterr().err


async def test_a_logged_exception_is_not_kept(app, conn, monkeypatch):
    """
    Neither the worker nor the job refers to it afterwards: its frames hold what the handler had in
    memory.
    """
    # pytest keeps the records that reach it.
    monkeypatch.setattr(logging.getLogger("forebay.worker"), "propagate", False)

    class Large:
        pass

    kept = []

    @app.job(retry=ONCE)
    def fail() -> None:
        large = Large()
        kept.append(weakref.ref(large))
        raise Customer

    fail.enqueue(conn)
    async with running(app):
        await wait_for_async(lambda: one(conn, "select count(*) from forebay.dead_letter"), 20)
        gc.collect()
        assert [reference() for reference in kept] == [None]
