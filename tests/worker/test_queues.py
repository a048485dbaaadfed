"""Which jobs a worker takes, when, and what it costs to find none."""

import asyncio
import time
from collections import Counter

import pytest

import forebay
from tests.support.engine import Reader, depth, enqueue, one, state
from tests.support.fix_worker import run_until_idle, running
from tests.support.waiting import wait_for_async

pytestmark = pytest.mark.anyio


async def test_a_paused_queue_is_not_claimed_until_it_is_resumed(app, conn):
    """
    While paused its jobs wait, another queue's run; resumed, they run at once.
    """
    ran = []

    @app.job(queue="held")
    async def held() -> None:
        ran.append("held")

    @app.job(queue="free")
    async def free() -> None:
        ran.append("free")

    conn.execute("select forebay.pause_queue('held')")
    job = held.enqueue(conn)
    async with running(app):
        for n in range(1, 4):
            free.enqueue(conn)
            await wait_for_async(lambda n=n: ran.count("free") == n)
        assert state(conn, job) == "ready"
        conn.execute("select forebay.resume_queue('held')")
        await wait_for_async(lambda: "held" in ran)


async def test_a_worker_says_that_its_queue_is_paused(app, conn, caplog):
    """
    Also one that ends when it is idle, having done nothing: its log says why, and what resumes it.
    """
    app.job(name="held", queue="held")(lambda: None)
    app.job(name="free", queue="free")(lambda: None)
    for queue, until in (("held", "now() + interval '1 hour'"), ("other", "null")):
        conn.execute(f"select forebay.pause_queue('{queue}', until => {until})")
    enqueue(conn, queue="held")
    assert (await run_until_idle(app)).stats.done == 0
    (said,) = [text for text in caplog.messages if "paused" in text]
    assert said.startswith("queue held is paused since ")
    assert " until " in said
    assert said.endswith("`forebay queues resume held`")


@pytest.mark.slow
async def test_slots_are_shared_between_queues_by_weight(app, conn):
    """
    Three slots of one queue to one of the other, as long as both have work.
    """
    ran = []

    @app.job(queue="large")
    async def large() -> None:
        ran.append("large")
        await asyncio.sleep(0.001)

    @app.job(queue="small")
    async def small() -> None:
        ran.append("small")
        await asyncio.sleep(0.001)

    large.enqueue_many(conn, [()] * 400)
    small.enqueue_many(conn, [()] * 400)
    async with running(
        app, queues={"large": 3, "small": 1}, concurrency=4, ahead_seconds=0, grace_seconds=1
    ):
        await wait_for_async(lambda: len(ran) >= 200)
    first = Counter(ran[:200])
    assert 130 <= first["large"] <= 170, first


async def test_lower_numbers_first_and_a_share_for_those_that_would_starve(app, conn):
    """
    A queue's urgent jobs go first; a tenth of the slots goes to the others, so that they do not
    wait for ever.
    """
    ran = []

    @app.job
    async def work(urgent: bool) -> None:
        ran.append(urgent)
        await asyncio.sleep(0)

    work.using(priority=100).enqueue_many(conn, [(False,)] * 200)
    work.using(priority=0).enqueue_many(conn, [(True,)] * 400)
    async with running(app, concurrency=10, ahead_seconds=0, grace_seconds=1):
        await wait_for_async(lambda: len(ran) >= 200)
    waiting = ran[:200].count(False)
    assert 10 <= waiting <= 40, waiting


async def test_without_a_starving_share_priorities_are_strict(app, conn):
    """
    With starving_share 0 nothing else starts while urgent jobs wait.
    """
    ran = []

    @app.job
    async def work(urgent: bool) -> None:
        ran.append(urgent)

    work.using(priority=100).enqueue_many(conn, [(False,)] * 20)
    work.using(priority=0).enqueue_many(conn, [(True,)] * 60)
    await run_until_idle(app, concurrency=5, ahead_seconds=0, starving_share=0)
    assert ran == [True] * 60 + [False] * 20


@pytest.mark.parametrize("way", ["one lane at a time", "many lanes at once", "limited"])
async def test_retries_start_before_new_jobs(app, conn, database, way):
    """
    Whichever way the worker claims: a job that failed before waits for no newer one of its queue
    and priority.
    """
    ran = []

    @app.job
    async def work(number: int) -> None:
        ran.append(number)

    @app.job(queue="a")
    async def other_a() -> None:
        """A lane to claim together with others."""

    @app.job(queue="b")
    async def other_b() -> None:
        """Another one."""

    if way == "limited":
        conn.execute("select forebay.limit_queue('default', concurrency => 1)")
    work.enqueue(conn, 0)
    with Reader(database) as reader:
        batch = reader.claim()
        failed = {"offset": 1, "outcome": "retried", "after": 0.0, "error": {"type": "E"}}
        assert reader.settle(batch.claim_no, ended=[failed]) == "settled"
    work.enqueue_many(conn, [(number,) for number in range(1, 40)])
    if way == "many lanes at once":
        other_a.enqueue_many(conn, [()] * 5)
        other_b.enqueue_many(conn, [()] * 5)
    await run_until_idle(app, concurrency=5)
    assert ran[0] == 0
    assert sorted(ran) == list(range(40))


@pytest.mark.slow
async def test_urgent_jobs_do_not_wait_until_a_long_queue_of_others_is_empty(app, conn):
    """
    A worker claims from one lane again and again while that is all there is. Once it has seen
    another one, it looks for it in between.
    """
    started = []

    @app.job
    async def work(urgent: bool) -> None:
        started.append(urgent)
        if len(started) == 500:
            work.using(priority=0).enqueue(conn, True)

    work.using(priority=0).enqueue(conn, True)
    work.using(priority=100).enqueue_many(conn, [(False,)] * 20_000)
    await run_until_idle(app, poll_seconds=30)
    assert started.count(True) == 2
    assert len(started) - 1 - started[::-1].index(True) < 10_000


async def test_a_deferred_job_starts_soon_after_its_time_and_never_before(app, conn):
    """
    By the database's clock, not the worker's.
    """
    starts = {}

    @app.job
    async def work(number: int) -> None:
        row = conn.execute("select clock_timestamp()").fetchone()
        starts[number] = row[0]

    due = {}
    for number in range(10):
        job = work.using(delay=0.1 + 0.05 * number).enqueue(conn, number)
        due[number] = one(conn, "select run_at from forebay.deferred where job_id = %s", job)
    async with running(app):
        await wait_for_async(lambda: len(starts) == 10)
    late = {n: (starts[n] - due[n]).total_seconds() for n in due}
    assert all(0 <= seconds < 3 for seconds in late.values()), late


async def test_two_groups_get_every_job_each(app, conn, database):
    """
    Groups are independent readers: what one does with a job is nothing to the other.
    """
    ran = Counter()

    @app.job
    async def work(ctx: forebay.Context, number: int) -> None:
        ran[ctx.job.group, number] += 1

    conn.execute("select forebay.open_group('default', 'one')")
    conn.execute("select forebay.open_group('default', 'two')")
    work.enqueue_many(conn, [(n,) for n in range(50)])
    async with running(app, group="one"), running(app, group="two"):
        await wait_for_async(lambda: len(ran) == 100)
    assert set(ran.values()) == {1}


@pytest.mark.slow
async def test_an_idle_worker_asks_little_and_wakes_at_once(app, conn, database):
    """
    An idle worker's statements are bounded by its poll, not by its slots or queues; a new job is
    picked up by wake-up or poll well within a second.
    """
    picked_up = asyncio.Event()

    @app.job
    async def work() -> None:
        picked_up.set()

    for n in range(20):
        app.job(name=f"other_{n}", queue=f"queue_{n}")(lambda: None)

    def counted() -> int:
        conn.execute("select pg_stat_clear_snapshot()")
        return one(
            conn,
            "select xact_commit + xact_rollback from pg_stat_database"
            " where datname = current_database()",
        )

    async with running(app, concurrency=50, poll_seconds=0.1, heartbeat_seconds=0.5):
        before, began = counted(), time.monotonic()
        asked = 0
        while time.monotonic() < began + 3:  # What is measured is a rate, so time has to pass.
            await asyncio.sleep(0.5)
            asked += 3
        per_second = (counted() - before - asked) / (time.monotonic() - began)
        print(f"idle worker: {per_second:.1f} transactions per second")
        assert per_second < 40
        work.enqueue(conn)
        async with asyncio.timeout(5):
            await picked_up.wait()


@pytest.mark.direct
async def test_a_notification_wakes_a_worker_that_polls_seldom(app, conn):
    """
    A new job is heard of by notification; the poll is for the case that one is lost.
    """
    seconds = []

    @app.job
    async def work(sent_at: float) -> None:
        seconds.append(time.monotonic() - sent_at)

    # By default it is silent on servers that allow prepared transactions, which cannot notify.
    conn.execute("set forebay.wakeup = 'on'")
    async with running(app, poll_seconds=5) as worker:
        for n in range(5):
            await wait_for_async(lambda: worker._executor.is_idle)
            # Asleep, with its wake-up set.
            await wait_for_async(
                lambda: one(
                    conn,
                    "select bool_or(last_value > extract(epoch from clock_timestamp()) * 1000)"
                    " from pg_sequences where sequencename like 'wakeup%'",
                )
            )
            work.enqueue(conn, time.monotonic())
            await wait_for_async(lambda n=n: len(seconds) == n + 1, 20)
    print(f"milliseconds: {[round(s * 1000, 1) for s in seconds]}")
    assert sorted(seconds)[2] < 1


@pytest.mark.direct
async def test_a_new_job_of_one_queue_among_many_needs_no_poll_of_all(app, conn):
    """
    The first job of a queue, whose lane the worker does not know yet, needs a poll of that queue; a
    later one needs none.
    """
    queues = [f"queue_{n}" for n in range(12)]
    begun = []
    for queue in queues:

        @app.job(name=f"work_{queue}", queue=queue)
        async def work(queue: str = queue) -> None:
            begun.append(queue)

    conn.execute("set forebay.wakeup = 'on'")
    async with running(app, poll_seconds=5) as worker:
        await wait_for_async(lambda: len(worker._leadership.held) == len(queues))
        run, polled = worker._claims.run, []

        async def recorded(operation, **options):
            if "ready_v1" in operation.sql or "poll_v1" in operation.sql:
                polled.append((len(begun), len(operation.params["groups"])))
            return await run(operation, **options)

        async def polls_before_a_job(queue):
            await wait_for_async(lambda: worker._executor.is_idle and worker._claimer._is_drained)
            polled.clear()
            begun.clear()
            enqueue(conn, kind=f"work_{queue}", queue=queue)
            await wait_for_async(lambda: begun)
            return [groups for done, groups in polled if not done]

        worker._claims.run = recorded
        # A poll for another reason may come between.
        assert [[1], []] in [
            [await polls_before_a_job(queue), await polls_before_a_job(queue)] for queue in queues
        ]


async def test_a_job_of_a_queue_that_nobody_serves_is_left_alone(app, conn):
    """
    A worker claims from its own queues only.
    """

    @app.job(queue="mine")
    async def work() -> None: ...

    mine = work.enqueue(conn)
    other = enqueue(conn, kind="work", queue="not_mine")
    await run_until_idle(app)
    assert state(conn, mine) == "done"
    assert depth(conn, "not_mine") == {} or state(conn, other) in {None, "ready"}


@pytest.mark.slow
async def test_many_waiting_jobs_are_claimed_in_bounded_numbers(app, conn):
    """
    However much waits, a worker holds at most two claims' rows beyond its slots.
    """
    most = 0

    @app.batch_job(size=500)
    async def work(jobs: list[forebay.Job]) -> None:
        nonlocal most
        most = max(most, one_worker._executor.buffered + len(jobs))

    conn.execute(
        "select forebay.enqueue_many('work', array(select '{}'::jsonb from "
        "generate_series(1, 20000)))"
    )
    async with running(app, concurrency=4, claim_rows_max=500) as one_worker:
        await wait_for_async(lambda: one_worker.stats.done == 20000, 60)
    assert most <= 1500


@pytest.mark.parametrize("linger", [None, 0.05])
async def test_with_linger_a_busy_queue_beside_it_leaves_batches_full(app, conn, linger):
    """
    120 jobs at 50 per call run in three calls although another queue always has jobs; without
    linger a call before the last one has fewer than 50.
    """
    calls = []

    @app.batch_job(size=50, queue="search", linger=linger)
    async def index(items: list[forebay.Job]) -> None:
        calls.append(len(items))

    @app.job(queue="other")
    async def other() -> None:
        await asyncio.sleep(0.005)

    index.enqueue_many(conn, [{"n": n} for n in range(120)])
    other.enqueue_many(conn, [()] * 400)
    await run_until_idle(app)
    assert sum(calls) == 120
    if linger is None:
        assert min(calls[:-1]) < 50
    else:
        assert calls == [50, 50, 20]


async def test_jobs_that_arrive_during_the_linger_share_a_call(app, conn):
    """
    The first job starts at once; those that are enqueued within the linger after it run in one
    call.
    """
    calls = []

    @app.batch_job(size=50, linger=1)
    async def index(items: list[forebay.Job]) -> None:
        calls.append(len(items))

    async with running(app):
        index.enqueue(conn, n=0)
        await wait_for_async(lambda: calls == [1])
        for n in range(20):
            index.enqueue(conn, n=n)  # each commits alone
            await asyncio.sleep(0)
        await wait_for_async(lambda: sum(calls) == 21)
    assert len(calls) <= 3, calls  # a slow machine may need more than one second for the enqueues


@pytest.mark.slow
async def test_the_maximum_attempts_of_a_queue_change_while_a_worker_runs(app, conn):
    """Lowered, the next failure is final; raised, it is retried.

    Handlers see the number after a heartbeat.
    """
    seen = []

    @app.job(queue="flaky", retry=forebay.RetryPolicy(base_seconds=0.01, max_attempts=20))
    async def flaky(ctx: forebay.Context, name: str) -> None:
        seen.append((name, ctx.job.attempt, ctx.job.max_attempts))
        raise ValueError(name)

    conn.execute("select forebay.set_max_attempts('flaky', 2)")
    async with running(app):
        first = flaky.enqueue(conn, "first")
        await wait_for_async(lambda: state(conn, first) == "dead")
        assert [attempt for name, attempt, _ in seen if name == "first"] == [1, 2]

        def most_seen() -> int:
            flaky.enqueue(conn, "probe")
            return seen[-1][2]

        await wait_for_async(lambda: most_seen() == 2)
        conn.execute("select forebay.set_max_attempts('flaky', 3)")
        await wait_for_async(lambda: most_seen() == 3)
        last = flaky.enqueue(conn, "last")
        await wait_for_async(lambda: state(conn, last) == "dead")
        assert [attempt for name, attempt, _ in seen if name == "last"] == [1, 2, 3]
