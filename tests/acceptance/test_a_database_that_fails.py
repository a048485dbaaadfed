"""What is promised when PostgreSQL ends sessions, crashes, or is used by strangers."""

import asyncio
import os
import signal
import time
from collections import Counter

import psycopg
import pytest

import forebay
from forebay import RetryPolicy
from tests.support.effects import Effects
from tests.support.engine import connect, depth, one, small_segments
from tests.support.fix_worker import make_effect_table, running
from tests.support.waiting import wait_for, wait_for_async
from tests.support.worker_process import Crew, crew
from tests.support.writers import Writers, for_seconds, read_run, wait_until_drained

AT_ONCE = RetryPolicy(strategy="fixed", base_seconds=0.001, cap_seconds=0.001)

#: The lease of the default settings; a test of seconds must not shorten what it says is kept.
DEFAULT_LEASE = {
    "lease_seconds": 30.0,
    "lease_margin_seconds": 5.0,
    "suspect_seconds": 5.0,
    "heartbeat_seconds": 1.0,
}


def revoked(conn: psycopg.Connection) -> int:
    """Return how many leases were taken away that had been used.

    A lease whose opening was not answered because the server crashed is nobody's, and ends that
    way.
    """
    return one(
        conn,
        "select count(*) from forebay.lease l where closed_as = 'revoked'"
        " and exists (select from forebay.batch b where b.lease_id = l.lease_id)",
    )


def assert_all_lived(workers: Crew) -> None:
    """Fail when a worker process ended, or said that it lost its lease."""
    assert all(member.is_running for member in workers.members), workers.logs
    assert "LeaseLost" not in workers.logs


@pytest.mark.slow
@pytest.mark.direct  # through a pooler heartbeats share their server sessions with handlers
def test_terminating_heartbeats_costs_no_living_worker_its_lease(
    conn, database, workers, effects, seed, is_long
):
    """
    The connection that carries the heartbeats is terminated every two seconds, under load: no lease
    is lost, nothing runs twice.
    """
    for _ in range(2):
        workers.start(concurrency=5, **DEFAULT_LEASE)
    terminated = 0
    with Writers(database, seed, count=3) as writers:
        clock = for_seconds(60 if is_long else 9)
        while clock:
            next_at = time.monotonic() + 2
            terminated += one(
                conn,
                "select count(pg_terminate_backend(pid)) from (select distinct on (lease_id)"
                " backend_pid as pid from forebay.heartbeat order by lease_id, heartbeat_at desc) h"
                " where exists (select from pg_stat_activity a where a.pid = h.pid)",
            )
            wait_for(lambda: time.monotonic() > next_at, 5)
    wait_until_drained(database, 60, lambda: workers.logs[-20_000:])
    print(f"terminated {terminated} sessions")
    assert terminated >= 4
    assert revoked(conn) == 0
    assert_all_lived(workers)
    assert not writers.failures, writers.failures
    read_run(writers.ledger, conn, effects)
    writers.ledger.assert_clean()
    assert writers.ledger.reruns() == 0


def kill_everything(server, dsn: str) -> None:
    """Kill every process of the server, and start it again."""
    server.kill()
    server.start()


def kill_one_backend(server, dsn: str) -> None:
    """Kill one session's process: the server then ends all sessions and recovers by itself."""
    with connect(dsn) as conn:
        pid = one(
            conn,
            "select pid from pg_stat_activity where application_name like 'forebay %'"
            " order by random() limit 1",
        )
    os.kill(pid, signal.SIGKILL)


@pytest.mark.slow
@pytest.mark.crash
@pytest.mark.parametrize("crash", [kill_everything, kill_one_backend])
def test_a_database_killed_under_load_loses_nothing_and_needs_no_hand(
    own_server, own_database, tmp_path, seed, is_long, crash
):
    """
    The server is killed again and again while producers and workers go on: every committed job is
    done, nothing that was rolled back ran, effects are there once, no living worker lost its lease,
    and no process was restarted.
    """
    effects = Effects(tmp_path / "effects")
    with connect(own_database) as conn:
        make_effect_table(conn)
    with crew(own_database, effects.path) as workers:
        for _ in range(2):
            workers.start(concurrency=5, **DEFAULT_LEASE)
        with Writers(own_database, seed, count=4) as writers:
            for round_number in range(10 if is_long else 3):
                mark = len(effects.all("end"))
                wait_for(
                    lambda mark=mark: len(effects.all("end")) > mark + 40,
                    60,
                    lambda: f"no work after crash {round_number}\n{workers.logs[-20_000:]}",
                )
                crash(own_server, own_database)
        wait_until_drained(own_database, 120, lambda: workers.logs[-20_000:])
        assert_all_lived(workers)
        with connect(own_database) as conn:
            in_doubt = writers.resolve(conn)
            assert revoked(conn) == 0
            assert not writers.failures, writers.failures
            read_run(writers.ledger, conn, effects)
        print(f"{in_doubt} commits in doubt, {writers.ledger.reruns()} reruns")
        # A claim that the crash took back left no row that says that its jobs were sent back.
        problems = writers.ledger.problems()
        assert problems.keys() <= {"run too often in default"}, problems
        assert len(writers.ledger.committed) > 50


@pytest.mark.slow
@pytest.mark.anyio
async def test_of_two_groups_one_sees_each_job_once_however_often_the_other_fails(app, conn):
    """
    Two groups read one queue; one fails every second job at first. Its retries reach only itself.
    """
    runs: Counter[tuple[str, int]] = Counter()

    @app.job(retry=AT_ONCE)
    async def work(ctx: forebay.Context, number: int) -> None:
        runs[ctx.job.group, number] += 1
        if ctx.job.group == "failing" and number % 2 and ctx.attempt < 3:
            raise RuntimeError("every second one")

    for group in ("failing", "other"):
        conn.execute("select forebay.open_group('default', %s)", [group])
    async with running(app, group="failing"), running(app, group="other"):
        work.enqueue_many(conn, [(n,) for n in range(200)])
        await wait_for_async(
            lambda: (
                set(depth(conn).items()) == {("failing", (0, 0, 0)), ("other", (0, 0, 0))}
                and len(runs) == 400
            ),
            30,
        )
    assert {n: runs["other", n] for n in range(200)} == dict.fromkeys(range(200), 1)
    assert {n: runs["failing", n] for n in range(200)} == {n: 3 if n % 2 else 1 for n in range(200)}


@pytest.mark.slow
@pytest.mark.anyio
async def test_strangers_slow_nothing_down(app, conn, database):
    """
    An idle producer, somebody holding the locks of a dump on every table, a paused group and a
    forgotten prepared transaction: claims and enqueues go on, over many segments, and touch no more
    pages than before.
    """
    # All segments beforehand: making one touches as many pages as a thousand jobs do.
    small_segments(conn, rows=200, reserve=12_000)
    while one(conn, "select forebay.extend_v1()"):
        pass
    one(conn, "select forebay.configure('reserve_rows', 1000)")

    @app.job
    async def work() -> None: ...

    conn.execute("select forebay.open_group('default', 'paused', 'beginning')")
    conn.execute("select forebay.pause_queue('default', 'paused')")
    total = 0

    async def churn(count: int) -> float:
        """Run so many jobs and return the pages touched for each of them."""
        nonlocal total
        before = pages(conn)
        for _ in range(count // 100):
            # A worker seals once a second, in which these segments of 200 rows would be used up by
            # the dozen. How many a claim finds unsealed is not to be left to chance.
            one(conn, "select forebay.seal_v1()")
            work.enqueue_many(conn, [()] * 100)
            total += 100
            await wait_for_async(lambda: worker.stats.done == total, 30)
        return (pages(conn) - before) / count

    # However slow the machine is, claims are as large: else their cost is divided by fewer jobs.
    async with running(app, concurrency=10, poll_seconds=0.05, ahead_seconds=60) as worker:
        await churn(600)
        # The least of three: what maintenance does beside it touches pages too, now and then.
        alone = min([await churn(1000) for _ in range(3)])
        with (
            connect(database) as idle,
            connect(database) as dump,
            connect(database) as forgetful,
        ):
            for stranger in (idle, dump, forgetful):
                stranger.execute("begin isolation level repeatable read")
            work.enqueue(idle)
            dump.execute(
                "do $$ declare r record; begin for r in select oid::regclass as t from pg_class"
                " where relnamespace = 'forebay'::regnamespace and relkind in ('r', 'p') loop"
                " execute 'lock table ' || r.t || ' in access share mode'; end loop; end $$"
            )
            work.enqueue(forgetful)
            forgetful.execute("prepare transaction 'forgotten'")
            await churn(2000)
            # What lasts is in each round; what a busy machine adds, by smaller settlements, is not.
            beside_others = await churn(1000)
            for _ in range(9):
                if beside_others > alone * 1.3:
                    beside_others = min(beside_others, await churn(1000))
            segments = one(conn, "select count(*) from forebay.segment where lo <= %s", total)
            print(
                f"pages for each job: {alone:.1f} alone, {beside_others:.1f} beside other sessions"
            )
            conn.execute("rollback prepared 'forgotten'")
            idle.execute("commit")
        total += 1
        await wait_for_async(lambda: worker.stats.done == total, 30)
    assert beside_others <= alone * 1.3
    assert one(conn, "select max(segment_id) from forebay.seal") >= 15
    assert segments >= 0
    ready, held, _ = depth(conn)["paused"]
    assert (ready, held) == (total, 0)


def pages(conn: psycopg.Connection) -> int:
    """Return how many pages of the log's tables and indexes were touched so far."""
    conn.execute("select pg_stat_force_next_flush()")
    conn.execute("select pg_stat_clear_snapshot()")
    return one(
        conn,
        "select sum(coalesce(heap_blks_hit, 0) + coalesce(heap_blks_read, 0)"
        " + coalesce(idx_blks_hit, 0) + coalesce(idx_blks_read, 0))::bigint"
        " from pg_statio_all_tables where schemaname = 'forebay'",
    )


@pytest.mark.slow
@pytest.mark.anyio
async def test_work_goes_on_while_nobody_can_read_a_sealed_segment(app, conn, database):
    """
    A stranger who locks old segments exclusively, to look into them or to rebuild an index, holds
    nobody up.
    """
    small_segments(conn, rows=100)
    ran = []

    @app.job
    async def work(number: int) -> None:
        ran.append(number)
        await asyncio.sleep(0)

    async with running(app):
        work.enqueue_many(conn, [(n,) for n in range(450)])
        await wait_for_async(lambda: len(ran) == 450, 30)
        # A claim after the seal no longer looks into the segment.
        sealed = "select coalesce(max(segment_id), 0) from forebay.seal"
        await wait_for_async(lambda: one(conn, sealed) >= 1)
        work.enqueue(conn, 450)
        await wait_for_async(lambda: len(ran) == 451, 30)
        with connect(database) as stranger:
            stranger.execute("begin")
            stranger.execute("lock table forebay.log_1 in access exclusive mode")
            for n in range(451, 650):
                work.enqueue(conn, n)
            await wait_for_async(lambda: len(ran) == 650, 30)
