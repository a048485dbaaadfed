"""A kind declares a breaker for its limit key: while a key fails, its jobs wait and use no
attempt.
"""

import asyncio
from collections import Counter

import pytest

import forebay
from forebay import Breaker, Cancel, Dead, Job, Retry, RetryPolicy, Snooze
from tests.support.effects import Effects
from tests.support.engine import enqueue, enqueue_many, one
from tests.support.fix_worker import run_until_idle, running
from tests.support.fragile_app import mode_of
from tests.support.waiting import wait_for, wait_for_async

pytestmark = pytest.mark.anyio

AT_ONCE = RetryPolicy(
    strategy="fixed", base_seconds=0.01, cap_seconds=0.01, jitter=False, max_attempts=1000
)


def put(conn, host: str | None, count: int = 1) -> None:
    job = {"kind": "fetch", "limit_key": host, "args": {"host": host}}
    enqueue_many(conn, [job] * count)


def breaker(conn, host: str = "down") -> dict:
    """Return the breaker of a host as it is shown; an empty one for none."""
    query = "select breaker from forebay.key('default', limit_key => %s)"
    row = conn.execute(query, [host]).fetchone()
    return (row and row[0]) or {}


def acts(conn) -> list[str]:
    rows = conn.execute("select act from forebay.event where act ~ 'circuit' order by event_id")
    return [act for (act,) in rows]


@pytest.mark.slow
async def test_jobs_of_a_host_that_is_down_wait_and_run_when_it_is_up(app, conn):
    """Few attempts are used, those of other hosts run, and a probe finds that it is up."""
    down = {"down"}
    calls: Counter[str] = Counter()
    done: Counter[str] = Counter()

    @app.job(limit_by=("host",), breaker=Breaker(failures=4, cooldown=1), retry=AT_ONCE)
    async def fetch(host: str) -> None:
        calls[host] += 1
        if host in down:
            raise ConnectionError(host)
        done[host] += 1

    put(conn, "down", 40)
    put(conn, "up", 5)
    async with running(app, concurrency=4):
        await wait_for_async(lambda: breaker(conn).get("probes", 0) >= 2, 30)
        assert breaker(conn)["error"].endswith("ConnectionError: down")
        # Those that opened it, those that ran at that time, and the probes; not all in hand.
        assert calls["down"] <= 4 + 4 + 3
        put(conn, "up", 20)
        await wait_for_async(lambda: done["up"] == 25)
        down.clear()
        await wait_for_async(lambda: done["down"] == 40, 30)
        await wait_for_async(lambda: breaker(conn) == {})
    assert acts(conn) == ["circuit.opened", "circuit.closed"]
    assert one(conn, "select count(*) from forebay.dead_letter") == 0


@pytest.mark.slow
async def test_two_workers_count_together_and_run_one_probe_at_a_time(app, conn):
    """The failures of one alone would not open it."""
    inside = most = probes = 0
    is_open = False

    @app.job(limit_by=("host",), breaker=Breaker(failures=6, cooldown=1, cooldown_max=1))
    async def fetch(host: str) -> None:
        nonlocal inside, most, probes
        inside += 1
        if is_open:
            most, probes = max(most, inside), probes + 1
        await asyncio.sleep(0.05)
        inside -= 1
        raise ConnectionError(host)

    async with running(app, concurrency=3) as first, running(app, concurrency=3) as second:
        put(conn, "down", 60)
        await wait_for_async(lambda: breaker(conn).get("probes") == 1, 30)
        before = first.stats.retried + second.stats.retried
        # Those that opened it, and what each worker ran until its report was answered.
        assert before < 40
        is_open = True
        await wait_for_async(lambda: breaker(conn)["probes"] >= 4, 30)
        assert most == 1
        assert first.stats.retried + second.stats.retried - before <= probes + 1
    assert acts(conn) == ["circuit.opened"]


@pytest.mark.parametrize(
    ("ends", "expected"),
    [
        (ValueError("v"), {"failures": 3}),
        (ConnectionError("c"), {"failures": 3}),
        (ExceptionGroup("some", [ConnectionError("c")]), {"failures": 3}),
        (LookupError("permanent"), {}),
        (Dead("gone"), {}),
        (Retry(reason="later"), {"failures": 2}),
        (Snooze(1), {"failures": 2}),
        (Cancel("no"), {"failures": 2}),
        (None, {}),
    ],
    ids=str,
)
async def test_what_a_handler_raises_counts_and_what_it_returns_does_not(app, conn, ends, expected):
    """Permanent errors and successes show that the key works; ``Retry`` and the like nothing."""
    retry = RetryPolicy(base_seconds=600, permanent_on=(LookupError,), cap_seconds=3600)
    fails = iter([ConnectionError("one"), ConnectionError("two"), ends])

    @app.job(limit_by=("host",), breaker=Breaker(), retry=retry)
    async def fetch(host: str) -> object:
        end = next(fails)
        if isinstance(end, Exception):
            raise end
        return end

    for _ in range(3):
        put(conn, "down")
        await run_until_idle(app, concurrency=1)
    assert {key: value for key, value in breaker(conn).items() if key == "failures"} == expected


async def test_only_the_exceptions_that_it_names_count(app, conn):
    fails = iter([ConnectionError("one"), KeyError("not the host"), ConnectionError("two")])
    breaks = Breaker(count_on=(OSError,))

    @app.job(limit_by=("host",), breaker=breaks, retry=RetryPolicy(base_seconds=600))
    async def fetch(host: str) -> None:
        raise next(fails)

    put(conn, "down", 3)
    await run_until_idle(app, concurrency=1)
    assert breaker(conn)["failures"] == 2


@pytest.mark.parametrize("hard", [False, True])
async def test_timeouts_count(app, conn, hard):
    timeout = {"timeout": 0.1} if hard else {"soft_timeout": 0.1}
    breaks = Breaker(count_on=(OSError,))

    @app.job(limit_by=("host",), breaker=breaks, retry=RetryPolicy(base_seconds=600), **timeout)
    async def fetch(host: str) -> None:
        await asyncio.sleep(60)

    put(conn, "down")
    await run_until_idle(app)
    assert breaker(conn)["failures"] == 1


async def test_each_job_of_a_batch_counts_for_its_own_key(app, conn):
    @app.batch_job(name="fetch", size=10, limit_by=("host",), breaker=Breaker(), retry=AT_ONCE)
    async def handler(jobs: list[Job]) -> list[object]:
        return [
            ConnectionError("down") if job.args["host"] == "down" and job.attempt < 3 else None
            for job in jobs
        ]

    put(conn, "down", 2)
    put(conn, "up", 2)
    seen = set()
    async with running(app) as worker:
        await wait_for_async(
            lambda: seen.add(breaker(conn).get("failures")) or worker.stats.done == 4
        )
        await wait_for_async(lambda: breaker(conn) == {})
    assert worker.stats.retried == 4
    assert breaker(conn, "up") == {}


async def test_a_kind_without_a_breaker_opens_none_and_closes_that_of_its_key(app, conn):
    """Else a probe of another kind could keep the breaker open for ever."""

    @app.job(limit_by=("host",), breaker=Breaker(failures=1, cooldown=1), retry=AT_ONCE)
    async def fetch(host: str) -> None:
        raise ConnectionError(host)

    @app.job(limit_by=("host",), retry=RetryPolicy(base_seconds=600))
    async def look(host: str, fails: bool) -> None:
        if fails:
            raise ConnectionError(host)

    look.enqueue(conn, "down", fails=True)
    await run_until_idle(app)
    assert breaker(conn) == {}
    fetch.using(max_attempts=1).enqueue(conn, "down")
    async with running(app, concurrency=1) as worker:
        await wait_for_async(lambda: "opened_at" in breaker(conn))
        look.enqueue(conn, "down", fails=False)
        await wait_for_async(lambda: worker.stats.done == 1, 30)
        await wait_for_async(lambda: breaker(conn) == {})
    assert acts(conn) == ["circuit.opened", "circuit.closed"]


async def test_without_a_breaker_nothing_is_reported(app, conn, monkeypatch):
    """And with one, nothing but whether successes matter is asked while all goes well."""
    calls = []
    from forebay.ops import protocol

    original = protocol.report_breakers

    def report(worker, queues, ended):
        calls.append(list(ended))
        return original(worker, queues, ended)

    monkeypatch.setattr(protocol, "report_breakers", report)

    @app.job(limit_by=("host",), name="fetch")
    async def plain(host: str) -> None:
        if host == "down":
            raise ConnectionError(host)

    put(conn, "up", 20)
    put(conn, "down")
    await run_until_idle(app)
    assert calls == []
    other = forebay.App(app.dsn, settings=app.settings)

    @other.job(limit_by=("host",), name="fetch", breaker=Breaker())
    async def guarded(host: str) -> None: ...

    put(conn, "up", 20)
    await run_until_idle(other)
    assert calls
    assert not any(calls)
    assert one(conn, "select count(*) from forebay.breaker") == 0


@pytest.mark.slow
async def test_one_at_a_time_continues_at_once_after_a_breaker_has_closed(app, conn):
    """The settlement of a job gives its turn to the next one; no timer does."""
    down = True

    @app.job(limit_by=("host",), breaker=Breaker(failures=2, cooldown=1), retry=AT_ONCE)
    async def fetch(host: str) -> None:
        if down:
            raise ConnectionError(host)

    one(conn, "select forebay.limit_queue('default', key_concurrency => 1)")
    put(conn, "down", 40)
    async with running(app, concurrency=4) as worker:
        await wait_for_async(lambda: "opened_at" in breaker(conn), 30)
        down = False
        await wait_for_async(lambda: breaker(conn) == {}, 30)
        before = one(conn, "select count(*) from forebay.promotion where promoted > 0")
        await wait_for_async(lambda: worker.stats.done == 40, 30)
    after = one(conn, "select count(*) from forebay.promotion where promoted > 0")
    assert after - before < 10


@pytest.mark.slow
def test_a_probe_whose_process_is_killed_is_followed_by_another(conn, workers):
    """The breaker stays open until the lease of the dead worker is revoked, and then until the
    next probe; no job is lost, and none dies.
    """
    mode = mode_of(workers.effects)
    mode.write_text("down")
    for entry in range(6):
        enqueue(conn, kind="fetch", args={"host": "a.org", "entry": entry}, limit_key="a.org")
    first = workers.start(app="tests.support.fragile_app:app")
    effects = Effects(workers.effects)
    wait_for(lambda: "opened_at" in breaker(conn, "a.org"), 60)
    mode.write_text("hangs")
    wait_for(lambda: effects.all("hang"), 60)
    first.kill()
    assert "opened_at" in breaker(conn, "a.org")
    mode.write_text("up")
    workers.start(app="tests.support.fragile_app:app")
    wait_for(lambda: len(effects.entries("end")) == 6, 90)
    wait_for(lambda: breaker(conn, "a.org") == {}, 30)
    assert acts(conn) == ["circuit.opened", "circuit.closed"]
    assert one(conn, "select count(*) from forebay.dead_letter") == 0
