"""Leadership: of several idle workers one looks closely and one does the maintenance, and others
take over.
"""

import asyncio
import time
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime

import pytest

from forebay.db.session import Session
from forebay.worker.claim import polling
from tests.support.engine import connect, enqueue, one, sqlstate
from tests.support.fix_worker import running
from tests.support.proxy import Proxy
from tests.support.waiting import wait_for, wait_for_async

pytestmark = pytest.mark.anyio

#: How long a duty is kept without its leader, and how long a heartbeat of an idle worker takes,
#: with the tests' settings.
TAKEN_OVER_SECONDS = 1.6 + 0.6


def group_of(conn, queue="default") -> int:
    return one(conn, "select forebay.open_group(%s)", queue)


def looks(proxy: Proxy, *texts: str) -> int:
    """How often one of these statements passed so far."""
    return sum(any(text in statement for text in texts) for statement in list(proxy.statements))


def polls(proxy: Proxy) -> int:
    return looks(proxy, "ready_v1", "poll_v1")


@asynccontextmanager
async def pair(app, database, **settings):
    """Two workers, each behind a proxy of its own, when each has found its place."""
    async with AsyncExitStack() as stack:
        found = []
        for _ in range(2):
            proxy = stack.enter_context(Proxy(database))
            worker = await stack.enter_async_context(running(app, dsn=proxy.dsn, **settings))
            await wait_for_async(
                lambda proxy=proxy: looks(proxy, "poll_v1") and looks(proxy, "heartbeat_v1")
            )
            if not found:
                await wait_for_async(
                    lambda worker=worker: (
                        worker._leadership.held and not worker._maintenance.leaderless
                    )
                )
            found.append((worker, proxy))
        yield found


async def test_of_two_idle_workers_one_looks_closely_and_one_does_the_maintenance(
    app, conn, database
):
    """
    The second one asks neither what is ready nor for due jobs, second after second.
    """

    @app.job
    async def work() -> None: ...

    async with pair(app, database) as ((_, near), (_, far)):
        before = [
            count for proxy in (near, far) for count in (polls(proxy), looks(proxy, "maintain_v1"))
        ]
        # What is measured is how often each looks: once one has often, the other has not.
        await wait_for_async(lambda: polls(near) > before[0] + 40)
        await wait_for_async(lambda: looks(near, "maintain_v1") > before[1] + 8)
        assert polls(far) - before[2] <= 1
        assert looks(far, "maintain_v1") == before[3]


@pytest.mark.slow
async def test_a_holder_that_vanishes_is_replaced(app, conn, database):
    """
    Its connections are silent, so it renews nothing: within its time and a heartbeat the other one
    looks closely and promotes. The wake-up is off, so that only looking finds jobs.
    """
    ran = []

    @app.job
    async def work(number: int) -> None:
        ran.append(number)

    conn.execute("set forebay.wakeup = 'off'")
    async with pair(app, database) as ((gone, near), (other, _)):
        with near.black_hole():
            began = time.monotonic()
            work.enqueue(conn, 1)
            work.using(delay=0.1).enqueue(conn, 2)
            await wait_for_async(lambda: sorted(ran) == [1, 2], 10)
            assert time.monotonic() - began < TAKEN_OVER_SECONDS + 2
            await wait_for_async(lambda: other._leadership.held == {group_of(conn)})
            assert not gone._leadership.held


async def test_a_worker_without_a_free_slot_resigns(app, conn, database):
    """
    The leader's only slot is taken: the next job starts on the other worker at once, by the
    notification that the leader sends on its own connection, though enqueues notify none.
    """
    started = []
    release = asyncio.Event()

    @app.job
    async def work(number: int) -> None:
        started.append((number, time.monotonic()))
        await release.wait()

    conn.execute("set forebay.wakeup = 'off'")
    async with pair(app, database, concurrency=1) as ((full, _), (other, _)):
        work.enqueue(conn, 1)
        await wait_for_async(lambda: full._executor.busy)
        # Sooner than the duty would have run out.
        await wait_for_async(lambda: other._leadership.held and not full._leadership.held, 1)
        began = time.monotonic()
        work.enqueue(conn, 2)
        await wait_for_async(lambda: len(started) == 2)
        assert started[1][1] - began < 0.5
        assert other._executor.busy
        release.set()


@pytest.mark.direct
async def test_a_job_that_nobody_announced_is_noticed(app, conn, monkeypatch):
    """
    The worker expects notifications and polls rarely, but this producer sends none. After its first
    job the worker polls at the shortest interval. A late poll proves nothing, so the test may need
    several jobs.
    """
    ran = []

    @app.job
    async def work(number: int) -> None:
        ran.append(number)

    monkeypatch.setattr(polling, "_QUIET_SECONDS", 0.1)
    conn.execute("set forebay.wakeup = 'off'")
    async with running(app) as worker:
        leadership, often = worker._leadership, worker._settings.poll_seconds
        await wait_for_async(lambda: leadership.producers_notify is not None)
        # The database of the tests allows prepared transactions, so its producers do not notify.
        leadership.producers_notify = True
        sent = 0

        def is_noticed() -> bool:
            nonlocal sent
            if sent == len(ran) and leadership.poll_seconds > often:
                work.enqueue(conn, sent)
                sent += 1
            return leadership.misses_notifications

        await wait_for_async(is_noticed, 10)
        assert leadership.poll_seconds == often


@pytest.mark.direct
async def test_a_job_runs_though_its_notification_is_taken_for_that_of_another(app, conn):
    """
    A claim took more jobs than were announced, so one notification counts as late. It is that of a
    new job, and the next poll is far away.
    """
    ran = []

    @app.job
    async def work(number: int) -> None:
        ran.append(number)

    conn.execute("set forebay.wakeup = 'on'")
    async with running(app, poll_seconds=30.0) as worker:
        await wait_for_async(lambda: worker._leadership.held)
        work.enqueue(conn, 0)
        await wait_for_async(lambda: ran == [0])
        await wait_for_async(lambda: worker._claimer._is_drained)
        worker._claimer._notified.explain("default", 0, taken=1)
        until = worker._claimer._notified._early["default"][1] + 60.0
        worker._claimer._notified._early["default"] = 1, until
        work.enqueue(conn, 1)
        await wait_for_async(lambda: ran == [0, 1], 10)


async def test_without_notifications_a_heartbeat_reports_a_duty_without_a_leader(
    app, conn, database, monkeypatch
):
    """
    As behind a pooler in transaction mode: no notification arrives. The leader is full, and the
    other one gets what comes within a heartbeat and a poll.
    """
    started = []
    release = asyncio.Event()

    @app.job
    async def work(number: int) -> None:
        started.append(number)
        await release.wait()

    monkeypatch.setattr(Session, "listen", lambda *_: None)
    async with pair(app, database, concurrency=1) as ((full, _), (other, _)):
        await wait_for_async(lambda: full._leadership.held and not other._leadership.held)
        began = time.monotonic()
        work.enqueue_many(conn, [(1,), (2,)])
        await wait_for_async(lambda: len(started) == 2)
        assert time.monotonic() - began < 2
        assert full._executor.busy
        assert other._executor.busy
        release.set()


@pytest.mark.slow
async def test_a_backlog_is_shared_though_enqueues_do_not_notify(app, conn, database):
    """
    The leader finds more than it can take for longer than a poll, and wakes the other one.
    """

    @app.job
    async def work(number: int) -> None:
        await asyncio.sleep(0.02)

    conn.execute("set forebay.wakeup = 'off'")
    async with pair(app, database, concurrency=2, ahead_seconds=0) as (
        (one_, _),
        (two, _),
    ):
        work.enqueue_many(conn, [(n,) for n in range(200)])
        await wait_for_async(
            lambda: two.stats.claimed, 1
        )  # sooner than the duty would have run out
        await wait_for_async(lambda: one_.stats.done + two.stats.done == 200, 20)
        assert min(one_.stats.done, two.stats.done) > 20


@pytest.mark.slow
async def test_deferred_jobs_start_on_time_with_two_workers(app, conn, database):
    """
    One of them promotes as often as one alone would: some tenths of a second late at most.
    """
    late = []

    @app.job
    async def work(due: float) -> None:
        late.append(time.time() - due)

    async with pair(app, database):
        for number in range(8):
            due = time.time() + 0.5 + number / 7
            work.using(run_at=_at(due)).enqueue(conn, due)
        await wait_for_async(lambda: len(late) == 8)
    print(f"late by milliseconds: {[round(seconds * 1000) for seconds in late]}")
    assert all(seconds >= -0.01 for seconds in late)
    assert sorted(late)[4] < 0.3
    assert max(late) < 1


async def test_one_worker_alone_leads_every_duty_and_leads_again_after_a_restart(app, conn):
    """
    It leaves its duty while it is full and takes it again; when it stops it leaves all of them at
    once.
    """
    release = asyncio.Event()

    @app.job
    async def work() -> None:
        await release.wait()

    async with running(app, concurrency=1) as worker:
        group = group_of(conn)
        await wait_for_async(lambda: worker._leadership.held == {group})
        await wait_for_async(lambda: not worker._maintenance.leaderless)
        work.enqueue(conn)
        await wait_for_async(lambda: worker._executor.busy and not worker._leadership.held)
        release.set()
        await wait_for_async(lambda: worker._leadership.held == {group})
    assert leaderless(conn, 0, group) == [0, group]


@pytest.mark.slow
def test_a_killed_holder_is_replaced_and_its_jobs_run_again(conn, workers, effects):
    """
    A process that holds the duties is killed in the middle of a job: the other process does the
    maintenance from then on, and runs the job.
    """
    victim = workers.start()
    enqueue(conn, kind="work", args={"entry": 1, "seconds": 60})
    wait_for(lambda: len(effects.all("start")) == 1)
    workers.start()
    victim.kill()
    began = time.monotonic()
    wait_for(lambda: len(effects.all("start")) == 2, 10)
    print(f"runs again after {time.monotonic() - began:.1f} s")


# --- the flag sequences ---


def leaderless(conn, *duties) -> list[int]:
    return one(conn, "select leaderless from forebay.heartbeat_v1('{}', '{}', %s)", list(duties))


def hold(conn, leader_id, *duties, seconds=60) -> list[int]:
    return one(conn, "select forebay.lead_v1(%s, %s, %s)", leader_id, list(duties), seconds)


def test_a_duty_has_one_leader_until_it_resigns_or_its_time_is_over(conn):
    """
    Whoever holds it may renew it, nobody else may take or leave it.
    """
    group = group_of(conn)
    assert leaderless(conn, 0, group) == [0, group]
    assert hold(conn, 1, 0, group) == [0, group]
    assert hold(conn, 1, 0, group) == [0, group]
    assert hold(conn, 2, 0, group) == []
    assert leaderless(conn, 0, group) == []
    one(conn, "select forebay.resign_v1(2, %s)", [0, group])
    assert leaderless(conn, 0, group) == []
    one(conn, "select forebay.resign_v1(1, %s)", [group])
    assert leaderless(conn, 0, group) == [group]
    assert hold(conn, 2, 0, group, seconds=0.2) == [group]
    wait_for(lambda: leaderless(conn, 0, group) == [group])


def test_leadership_is_taken_at_once_whatever_the_transaction_around_it_does(conn, database):
    """
    Nobody waits for the one who took it, and a rollback does not give it back.
    """
    with connect(database) as other, other.transaction(force_rollback=True):
        assert hold(other, 1, 0) == [0]
        assert hold(conn, 2, 0) == []
    assert hold(conn, 2, 0) == []


def test_a_time_far_ahead_leads_nothing_and_a_duty_without_a_flag_sequence_has_no_single_leader(
    conn,
):
    """
    The first is what a clock that was set back leaves; the second may not stop anybody.
    """
    group = group_of(conn)
    far = (int(time.time() * 1000) + 3_600_000) << 20 | 1
    one(conn, f"select setval('forebay.leader_{group}', %s)", far)
    assert leaderless(conn, group) == [group]
    assert hold(conn, 2, group) == [group]
    conn.execute(f"drop sequence forebay.leader_{group}")
    assert hold(conn, 2, group) == [group]
    assert hold(conn, 3, group) == [group]


def test_a_bad_holder_or_time_is_refused(conn):
    """
    A number that does not fit into a flag sequence is refused as a leader id.
    """
    for leader_id, seconds in (
        (-1, 1),
        (1 << 20, 1),
        (1, 0),
        (1, 601),
        (1, float("nan")),
        (None, 1),
    ):
        query = "select forebay.lead_v1(%s::integer, '{0}', %s::double precision)"
        assert sqlstate(conn, query, leader_id, seconds) == "JQ001"


def _at(seconds: float):
    return datetime.fromtimestamp(seconds, UTC)


async def test_an_idle_worker_draws_no_transaction_ids(app, conn, database):
    """
    A hundred polls, with their wake-ups and the renewals of leadership, are some transactions:
    heartbeats and the first calls.
    """

    @app.job
    async def work() -> None: ...

    with Proxy(database) as proxy:
        async with running(app, dsn=proxy.dsn, heartbeat_seconds=5.0):
            await wait_for_async(lambda: looks(proxy, "maintain_v1") > 5)
            before = polls(proxy)
            first = one(conn, "select pg_snapshot_xmax(pg_current_snapshot())::text::bigint")
            await wait_for_async(lambda: polls(proxy) > before + 100)
            last = one(conn, "select pg_snapshot_xmax(pg_current_snapshot())::text::bigint")
    assert last - first < 20
