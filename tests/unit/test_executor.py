"""What a worker runs of what it claimed, without a database."""

import asyncio
import gc
import time
from itertools import pairwise
from types import SimpleNamespace

import msgspec
import pytest

import forebay
from forebay.config import WorkerSettings
from forebay.ops.claimed import ClaimedJob
from forebay.ops.protocol import ReadyLane
from forebay.worker.ground.common import Common
from forebay.worker.ground.held import Batch, HeldJob, Lease
from forebay.worker.run._key_queues import KeyQueues
from forebay.worker.run.executor import Executor
from forebay.worker.run.messages import ChildReport
from tests.support.waiting import wait_for_async

LANE = ReadyLane(1, 1, "default", 0, is_private=False, is_suspect=False)


class Outcomes:
    """Keeps what is told, and does not settle it."""

    def __init__(self):
        self.ended = []

    def done(self, jobs):
        self.ended += [(job.row.args["no"], "done") for job in jobs]

    def end(self, job, ended, *, solo=False):
        self.ended.append((job.row.args["no"], ended.outcome))

    def settled_by_handler(self, job, ended):
        raise AssertionError(job)

    def progress(self, jobs, done, note):
        raise AssertionError(jobs)

    def holds_back(self, job):
        return False

    def lease_lost(self, lease):
        raise AssertionError(lease)


def executor_of(app, outcomes, *, concurrency):
    """Return an executor without a worker around it."""
    common = Common(
        SimpleNamespace(kinds=app.kinds, middleware=()),
        dsn="",
        settings=WorkerSettings(concurrency=concurrency),
        group="default",
        name="unit",
        weights={},
    )
    return Executor(common, outcomes, {}, lambda: None)


def claimed(lease, *numbers):
    """Jobs of one ordering key, as one claim brings them."""
    batch = Batch(lease, lease.next_claim_no(), len(numbers), set(range(1, len(numbers) + 1)))
    lease.batches[batch.claim_no] = batch
    return [
        HeldJob(
            ClaimedJob(no, "work", 0, {"no": no}, job_id=no, offset=offset, ordering_key="k"),
            batch,
            LANE,
        )
        for offset, no in enumerate(numbers, 1)
    ]


def test_what_was_released_before_it_started_keeps_those_behind_it_waiting():
    """
    The first job of a key fails. A claim made before that was known brings the second, which goes
    back; until *that* is known, the database takes it for one that is worked here, and hands out
    the third. It must not run first.
    """
    app = forebay.App()
    ran = []

    @app.job(name="work")
    async def work(no: int) -> None:
        ran.append(no)
        if no == 1:
            raise ValueError(no)

    async def story():
        outcomes = Outcomes()
        executor = executor_of(app, outcomes, concurrency=2)
        lease = Lease(1, float("inf"))
        [first] = claimed(lease, 1)
        executor.take([first])
        await wait_for_async(lambda: outcomes.ended)
        [second] = claimed(lease, 2)
        first.batch.close(None)
        [third] = claimed(lease, 3)
        executor.take([second])
        executor.take([third])
        second.batch.close(None)
        third.batch.close(None)
        executor.take(claimed(lease, 2, 3))
        await wait_for_async(lambda: len(outcomes.ended) == 5)
        await executor.close()
        return outcomes.ended

    assert asyncio.run(story()) == [
        (1, "retried"),
        (2, "released"),
        (3, "released"),
        (2, "done"),
        (3, "done"),
    ]
    assert ran == [1, 2, 3]


@pytest.mark.slow
def test_ended_jobs_of_a_key_need_no_garbage_collector():
    """References in a circle would keep each job in memory until a collection, which takes as
    long as many short jobs.
    """
    keys = KeyQueues(release=lambda _: None)
    lease = Lease(1, float("inf"))
    gc.collect()
    gc.disable()
    try:
        first, second, third = claimed(lease, 1, 2, 3)
        assert keys.admit([first, second, third]) == [first]
        assert keys.next_after(first, None) is second
        assert keys.next_after(second, None) is third
        assert keys.next_after(third, None) is None
        lease.batches.clear()
        del first, second, third
        assert gc.collect() == 0
    finally:
        gc.enable()
    assert keys.waiting == keys.waiting_size == 0


def test_a_transaction_in_a_process_waits_for_the_settlement_before_it():
    """
    Its commit would become visible although the previous job of its ordering key may still run
    again, after a crash.
    """
    sent = []

    async def run_call(helds, *_, **__):
        sent.extend(held.row.job_id for held in helds)
        return [ChildReport(settled=True) for _ in helds]

    async def story():
        executor = executor_of(forebay.App(), Outcomes(), concurrency=2)
        runner = executor._run.__self__
        runner._places = SimpleNamespace(processes=SimpleNamespace(run_call=run_call))
        runner._reporter = SimpleNamespace(finish_committed=lambda *_: None)
        runner._record_duration = lambda *_: None
        lease = Lease(1, float("inf"))
        [first], [second] = claimed(lease, 1), claimed(lease, 2)
        second.follows = first
        call = SimpleNamespace(kind=SimpleNamespace(transaction=True), jobs=[None], started=False)
        running = asyncio.create_task(runner._run_in_process(call, [second]))
        await wait_for_async(lambda: first.batch._waiting or sent)
        assert sent == []
        first.batch.close(None)
        await running
        await executor.close()

    asyncio.run(story())
    assert sent == [2]


def test_small_jobs_pass_large_ones_whose_arguments_wait():
    """
    Decoding has used its share of the loop: a small job of another lane starts at once, one of the
    same lane after the large one.
    """
    app = forebay.App()
    ran = []

    @app.job(name="work")
    async def work(no: int) -> None:
        ran.append(no)

    def job(no: int, lane: int, *, is_text: bool) -> HeldJob:
        [held] = claimed(lease, no)
        held.row.ordering_key = None
        held.lane = ReadyLane(1, lane, "default", 0, is_private=False, is_suspect=False)
        if is_text:
            held.row.args = msgspec.Raw(msgspec.json.encode({"no": no}))
        return held

    lease = Lease(1, float("inf"))

    async def story():
        executor = executor_of(app, Outcomes(), concurrency=2)
        executor._decoding._until = time.monotonic() + 1.0
        executor.take([job(1, 1, is_text=True)])
        executor.take([job(2, 1, is_text=False)])
        executor.take([job(3, 2, is_text=False)])
        await wait_for_async(lambda: ran)
        assert ran == [3]
        assert executor.buffered == 2
        await wait_for_async(lambda: len(ran) == 3)
        assert ran == [3, 1, 2]
        await executor.close()

    asyncio.run(story())


def test_decoding_leaves_the_loop_to_others(monkeypatch):
    """
    After each slow decoding the loop is free for about as long; with nothing else to do all are
    decoded.
    """
    app = forebay.App()
    ran = []

    @app.job(name="work")
    async def work(no: int) -> None:
        ran.append(no)

    lease = Lease(1, float("inf"))
    clock = [0.0]
    decoded_at = []
    prepare = Executor.prepare

    def slowly(self, held):
        decoded_at.append(clock[0])
        clock[0] += 0.05
        return prepare(self, held)

    monkeypatch.setattr(Executor, "prepare", slowly)
    fake = SimpleNamespace(monotonic=lambda: clock[0])
    for module in ("executor", "_loop_share"):
        monkeypatch.setattr(f"forebay.worker.run.{module}.time", fake)

    async def story():
        executor = executor_of(app, Outcomes(), concurrency=5)
        helds = claimed(lease, 1, 2, 3)
        for held in helds:
            held.row.ordering_key = None
            held.row.args = msgspec.Raw(msgspec.json.encode(held.row.args))
        executor.take(helds)
        await wait_for_async(lambda: ran == [1])
        assert executor.is_decoding_behind
        for expected in ([1, 2], [1, 2, 3]):
            clock[0] += 0.04
            executor._decoding._on_timer()
            await asyncio.sleep(0)
            assert ran != expected
            clock[0] += 0.02
            executor._decoding._on_timer()
            await wait_for_async(lambda expected=expected: ran == expected)
        assert not executor.is_decoding_behind
        assert [round(after - before, 3) for before, after in pairwise(decoded_at)] == [0.11, 0.11]
        await executor.close()

    asyncio.run(story())
