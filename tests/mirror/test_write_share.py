"""The jobs of a mirror write in short calls with rests for other work."""

import asyncio
import json
from types import SimpleNamespace

import pytest

import forebay
from forebay.errors import ConfigError
from forebay.mirror import Document
from forebay.mirror._write_share import NoTurn, WriteShare
from forebay.testing import LyingTarget
from tests.support.engine import one, shift_clock, state
from tests.support.fix_worker import running
from tests.support.waiting import wait_for_async

pytestmark = pytest.mark.anyio


class Clock:
    """A clock that only waits and calls move on."""

    def __init__(self):
        self.now = 0.0
        self.slept = []

    def __call__(self):
        return self.now

    async def sleep(self, seconds):
        self.slept.append(seconds)
        self.now += seconds


async def call(turns, clock, took, count=10_000):
    """Make a call that takes so many seconds; return for how many items."""
    async with turns.turn(count, seconds=60) as size:
        clock.now += took
    return size


@pytest.mark.parametrize("share", [0.25, 0.5, 0.8])
async def test_calls_that_write_take_their_share_of_the_time_and_no_more(share):
    """
    After a call comes a rest that is in proportion to the time it took, whatever that was. A pause
    that was made anyway counts.
    """
    clock = Clock()
    turns = WriteShare(share, clock=clock, sleep=clock.sleep)
    wrote = 0.0
    for took in (0.1, 4.0, 0.001, 0.7):
        await call(turns, clock, took)
        wrote += took
    await call(turns, clock, 0.0)
    assert wrote / clock.now == pytest.approx(share)
    await call(turns, clock, 1.0)
    clock.now += 1000
    clock.slept.clear()
    await call(turns, clock, 1.0)
    assert clock.slept == []


async def test_a_call_that_takes_long_makes_the_next_one_smaller():
    """
    Short calls grow to all items of a pass; calls of a target that is busy shrink to a few; a
    failed call counts by its time too.
    """
    clock = Clock()
    turns = WriteShare(0.5, clock=clock, sleep=clock.sleep)
    sizes = [await call(turns, clock, 0.001) for _ in range(8)]
    assert sizes == [250, 500, 1000, 2000, 4000, 8000, 10_000, 10_000]
    assert await call(turns, clock, 1.0) == 10_000
    assert await call(turns, clock, 0.09) == 1000  # a tenth of what took ten times too long
    assert await call(turns, clock, 30.0, count=10) == 10
    assert await call(turns, clock, 30.0) == 25
    with pytest.raises(ZeroDivisionError):
        async with turns.turn(100, seconds=60) as size:
            raise ZeroDivisionError
    assert size == 25
    assert await call(turns, clock, 0.0, count=1) == 1  # the call that failed took no time
    assert await call(turns, clock, 0.0) == 50  # a small call says little about larger ones


async def test_calls_take_turns_and_do_not_wait_for_ever():
    """
    One call at a time; who does not get a turn in its time hears that, and the next gets it. A
    cancelled one leaves the turn.
    """
    turns = WriteShare(0.9)
    async with turns.turn(1, seconds=60):
        with pytest.raises(NoTurn):
            async with turns.turn(1, seconds=0.01):
                raise AssertionError("two at a time")
        waiting = asyncio.create_task(turns.turn(1, seconds=60).__aenter__())
        await asyncio.sleep(0)
        waiting.cancel()
    clock = Clock()
    turns = WriteShare(0.01, clock=clock, sleep=clock.sleep)
    await call(turns, clock, 10.0)
    with pytest.raises(NoTurn):  # the rest is longer than it may wait
        async with turns.turn(1, seconds=60):
            raise AssertionError("no rest")
    clock.now += 1000
    assert await call(turns, clock, 0.0, count=1) == 1


async def test_with_the_whole_time_calls_are_made_side_by_side():
    """
    A share of 1 is no limit at all.
    """
    turns = WriteShare(1)
    async with turns.turn(10_000, seconds=0) as one, turns.turn(10_000, seconds=0) as other:
        assert one == other == 10_000


class Items:
    """A source in memory."""

    def read(self, ids):
        return [Document(name, 1, {}) for name in ids]

    def scan(self, after, limit):
        raise AssertionError("nobody scans")


def jobs_of(items):
    return [
        SimpleNamespace(args={"id": item}, tag=None, priority=0, job_id=item, enqueued_at=0)
        for item in items
    ]


def passes(mirror, *groups):
    """Run passes over these groups of items at the same time; return how the jobs of each end."""

    async def run():
        return await asyncio.gather(*(mirror._reconciler.run(jobs_of(each)) for each in groups))

    return mirror._loop_thread.submit(run()).result()


class Counting(LyingTarget):
    """
    Notes how many items each write has, and how many writes run at the same time.

    Args:
        together: each write waits until so many run.
    """

    def __init__(self, together=1):
        super().__init__()
        self.sizes, self.running, self.most = [], 0, 0
        self.barrier = asyncio.Barrier(together)

    async def write(self, documents):
        self.sizes.append(len(documents))
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            async with asyncio.timeout(30):
                await self.barrier.wait()
            await asyncio.sleep(0)
            return super().write(documents)
        finally:
            self.running -= 1


@pytest.mark.slow
@pytest.mark.parametrize(("share", "calls", "side_by_side"), [(0.5, False, 1), (1, True, 4)])
async def test_a_backlog_is_written_in_short_calls_one_after_another(
    app, share, calls, side_by_side
):
    """
    Four passes at the same time over a thousand items each. Every item is written once, and every
    job is done.
    """
    target = Counting(together=side_by_side)
    mirror = forebay.Mirror(app, "pages", source=Items(), target=target, write_share=share)
    groups = [range(1000 * n, 1000 * n + 1000) for n in range(4)]
    endings = await asyncio.to_thread(passes, mirror, *groups)
    assert [list(each) for each in endings] == [[None] * 1000] * 4
    assert sum(target.sizes) == 4000
    assert (target.sizes == [1000] * 4) is calls
    assert target.most == side_by_side
    if not calls:
        assert target.sizes[0] == 250
    mirror.close()


async def test_items_that_get_no_turn_are_postponed_and_not_failed(app):
    """
    A pass whose turn does not come postpones what it did not write, without an attempt; what it
    wrote is read back and done.
    """
    target = Counting()
    mirror = forebay.Mirror(app, "pages", source=Items(), target=target, timeout=0.2)
    held, release = asyncio.Event(), asyncio.Event()

    async def hold():
        async with mirror._reconciler._write_share.turn(1, seconds=10):
            held.set()
            await release.wait()

    holding = mirror._loop_thread.submit(hold())
    await wait_for_async(held.is_set)
    (endings,) = await asyncio.to_thread(passes, mirror, range(3))
    assert [type(end).__name__ for end in endings] == ["Snooze"] * 3
    assert target.sizes == []
    mirror._loop_thread.submit(asyncio.sleep(0)).result()

    async def let_go():
        release.set()

    mirror._loop_thread.submit(let_go()).result()
    holding.result()
    await wait_for_async(lambda: passes(mirror, range(3))[0] == [None] * 3)
    mirror.close()


@pytest.mark.slow
async def test_closing_a_mirror_costs_no_attempt(app, conn):
    """
    A pass that ``close`` interrupts while it waits for its turn, in a worker that still runs: its
    job runs again, as the same attempt, and is done.
    """
    mirror = forebay.Mirror(app, "pages", source=Items(), target=Counting(), grace=0)
    held = asyncio.Event()

    async def hold():
        async with mirror._reconciler._write_share.turn(1, seconds=60):
            held.set()
            await asyncio.sleep(3600)

    mirror._loop_thread.submit(hold())
    await wait_for_async(held.is_set)
    job = mirror.changed(conn, 1)
    conn.commit()
    async with running(app):
        await wait_for_async(lambda: state(conn, job) == "running")
        await asyncio.to_thread(mirror.close)
        await wait_for_async(lambda: state(conn, job) == "done", 20)
    assert (
        one(
            conn,
            ("select count(*) from forebay.job_history(%s) h, jsonb_array_elements(h.errors) e"),
            job,
        )
        == 0
    )
    mirror.close()


def test_a_share_of_nothing_is_refused(app):
    """
    A mirror that may never write is a mistake.
    """
    for share in (0, -1, 1.01, float("nan")):
        with pytest.raises(ConfigError, match="write_share"):
            forebay.Mirror(app, "pages", source=Items(), target=LyingTarget(), write_share=share)


# --- beside others ---


class Slow(LyingTarget):
    """A target whose reads and writes take a part of the clock's time, which is noted."""

    def __init__(self, clock):
        super().__init__()
        self.clock = clock
        self.busy = 0.0
        self.asked = []

    def read(self, ids):
        self.clock.now += 0.05
        self.busy += 0.05
        self.asked.append(len(ids))
        return super().read(ids)

    def write(self, documents):
        self.clock.now += 0.05
        self.busy += 0.05
        return super().write(documents)


def on_clock(mirror, clock):
    """Let the turns of whole passes go by a clock; return the mirror's reconciler."""
    reconciler = mirror._reconciler
    reconciler._pass_share = WriteShare(0.25, clock=clock, sleep=clock.sleep)
    return reconciler


@pytest.mark.parametrize("beside", [True, False])
async def test_beside_direct_writes_whole_passes_take_their_share(app, conn, beside):
    """
    Reads of the target and proofs count too, and a backlog is worked on in parts. Without a direct
    write of any process a pass is one.
    """
    clock = Clock()
    target = Slow(clock)
    mirror = forebay.Mirror(app, "pages", source=Items(), target=target)
    on_clock(mirror, clock)
    if beside:
        one(conn, "select forebay.record_direct(%s::jsonb, 'web')", direct("pages"))
    one(conn, "select forebay.record_direct(%s::jsonb, 'web')", direct("other"))
    (endings,) = await asyncio.to_thread(passes, mirror, range(1000))
    assert endings == [None] * 1000
    if beside:
        assert target.asked[:2] == [250, 250]  # looked at, and read back
        assert sum(clock.slept) >= 3 * (target.busy - 0.15) - 1e-6  # all but the last part
    else:
        assert target.asked[:1] == [1000]
        assert clock.slept == []
    mirror.close()


def direct(name):
    """Return the counts of a direct write."""
    return json.dumps({"mirror": name, "counts": [["direct.skipped", None, None, 1]]})


async def test_a_direct_write_counts_for_a_quarter_of_a_minute(app, conn):
    one(conn, "select forebay.record_direct(%s::jsonb, 'web')", direct("pages"))
    assert one(conn, "select forebay.has_direct_writes('pages')")
    shift_clock(conn, 16)
    assert not one(conn, "select forebay.has_direct_writes('pages')")


async def test_without_an_answer_direct_writes_are_assumed(app, conn):
    """
    A role without the right, or an older schema: work goes on, at the lower share.
    """
    conn.execute("drop function forebay.has_direct_writes(text)")
    clock = Clock()
    mirror = forebay.Mirror(app, "pages", source=Items(), target=Slow(clock))
    on_clock(mirror, clock)
    (endings,) = await asyncio.to_thread(passes, mirror, range(300))
    assert endings == [None] * 300
    assert clock.slept
    mirror.close()


async def test_parts_whose_turn_does_not_come_are_postponed(app, conn):
    """
    A heartbeat is one of them: nothing proves that both stores answered.
    """
    one(conn, "select forebay.record_direct(%s::jsonb, 'web')", direct("pages"))
    mirror = forebay.Mirror(app, "pages", source=Items(), target=Counting())
    clock = Clock()
    reconciler = on_clock(mirror, clock)
    reconciler._pass_share._rested_at = 1e6
    (beat,) = jobs_of([0])
    beat.args = {"heartbeat": True}
    running = mirror._loop_thread.submit(reconciler.run([beat, *jobs_of(range(3))]))
    endings = await asyncio.wrap_future(running)
    assert [type(end).__name__ for end in endings] == ["Snooze"] * 4
    assert mirror.target.sizes == []
    mirror.close()
