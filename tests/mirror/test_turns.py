"""The turns of a backlog: it yields to people who write, and makes progress."""

import asyncio
import json
import random
from types import SimpleNamespace

import pytest

import forebay
from forebay.errors import ConfigError
from forebay.mirror import Document
from forebay.mirror._turns import NoTurn, Turns
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


class Server:
    """
    What a look finds on a simulated server, and a backlog that works there by turns.

    Args:
        slow: the fraction of slow direct writes; None for no direct writes. A function of the time
            and the present share of the backlog.
        answer: how long a look takes, a function of the same.
        least: the least share of the backlog.
    """

    def __init__(self, slow, answer=lambda _now, _share: 0.002, *, least=0.2):
        self.clock = Clock()
        self.slow, self.answer = slow, answer
        self.turns = Turns(least, self.look, clock=self.clock, sleep=self.clock.sleep)
        self.share = least

    async def look(self):
        now, share = self.clock.now, self.share
        self.clock.now += self.answer(now, share)
        return self.slow(now, share)

    async def run(self, seconds, turn=0.1):
        """Work for some time; return the part of it that was work."""
        begun, worked = self.clock.now, 0.0
        while self.clock.now < begun + seconds:
            async with self.turns.turn(1000, seconds=60):
                self.clock.now += turn
                worked += turn
            self.share = await self.turns.share()
        return worked / (self.clock.now - begun)


def nobody(_now, _share):
    return None


def fast(_now, _share):
    return 0.0


def slow(_now, _share):
    return 1.0


# --- the share ---


async def test_an_idle_server_gives_all_of_the_time():
    """
    Nobody writes directly and answers are quick: from the first look on.
    """
    server = Server(nobody)
    assert await server.run(60) >= 0.95
    assert server.share == 1


async def test_direct_writes_that_are_fast_leave_almost_all_of_the_time():
    """
    The share begins with the least, since the first moments are the ones that people notice, and
    grows to all.
    """
    server = Server(fast)
    assert await server.run(3) < 0.35
    await server.run(30)
    assert await server.run(60) >= 0.95


async def test_a_sudden_load_makes_the_backlog_yield_within_seconds():
    """
    Direct writes become slow at some moment, whatever the cause: after five seconds the share is
    the least.
    """
    server = Server(lambda now, _: float(now > 60))
    await server.run(60)
    assert server.share == 1
    await server.run(5)
    assert server.share == 0.2
    assert await server.run(60) == pytest.approx(0.2, abs=0.01)


async def test_a_server_that_recovers_gets_the_backlog_back():
    server = Server(lambda now, _: float(now < 60))
    await server.run(60)
    assert server.share == 0.2
    await server.run(30)
    assert await server.run(60) >= 0.95


@pytest.mark.parametrize("turn", [0.1, 3.0])
@pytest.mark.parametrize("least", [0.05, 0.2, 0.5])
async def test_a_server_that_is_slow_for_ever_gets_the_least_and_no_less(least, turn):
    """
    The guarantee of progress: the backlog always has its least share, however long turns take.
    """
    server = Server(slow, lambda _now, _share: 0.0, least=least)
    await server.run(60, turn)
    assert await server.run(3600, turn) == pytest.approx(least, rel=0.05)


async def test_the_share_settles_where_direct_writes_are_just_fast():
    """
    Direct writes are slow while the backlog takes more than half: it takes a good part of the half,
    and does not exceed it for long.
    """
    shares = []

    def above_half(_now, share):
        shares.append(share)
        return float(share > 0.5)

    server = Server(above_half)
    await server.run(600)
    settled = shares[60:]
    assert 0.3 < sum(settled) / len(settled) < 0.5
    assert sum(share > 0.5 for share in settled) < 0.15 * len(settled)


async def test_noise_costs_little():
    """
    One direct write in twenty is slow, and one answer in ten: neither says that the server is busy.
    """
    chance = random.Random(1)
    server = Server(
        lambda _now, _share: 0.05, lambda _now, _share: 0.3 if chance.random() < 0.1 else 0.002
    )
    await server.run(30)
    assert await server.run(600) >= 0.9


async def test_slow_answers_count_although_nobody_writes_directly():
    """
    A database that answers late to three looks in a row is busy. When it answers quickly again, the
    backlog takes all.
    """
    server = Server(nobody, lambda now, _: 0.2 if 60 < now < 120 else 0.002)
    await server.run(60)
    await server.run(10)
    assert server.share == 0.2
    await server.run(60)
    assert server.share == 1


async def test_answers_that_are_always_slow_are_usual():
    """
    Late is what takes longer than the quickest of some minutes: a database that is far away is not
    busy, and one that has become slow is the usual one after ten minutes.
    """
    server = Server(nobody, lambda now, _: 0.2 if now < 60 else 0.4)
    assert await server.run(60) >= 0.7  # looks take a part
    await server.run(60)
    assert server.share == 0.2
    await server.run(600)
    assert server.share == 1


async def test_after_a_pause_or_trouble_the_share_begins_again():
    """
    What was seen before says nothing now. Nobody sees slow direct writes while an outage keeps them
    from being tried.
    """
    server = Server(fast)
    await server.run(60)
    server.turns.restart()
    assert await server.turns.share() < 0.3
    await server.run(60)
    assert server.share == 1
    server.clock.now += 11
    assert await server.turns.share() < 0.3


async def test_turns_in_which_nothing_was_tried_do_not_grow():
    """
    In an outage passes end at once. The first one after it has few items, as at the beginning.
    """
    server = Server(fast)
    for _ in range(10):
        async with server.turns.turn(10_000, seconds=60):
            server.turns.restart()
    async with server.turns.turn(10_000, seconds=60) as size:
        assert size <= 500


# --- turns ---


async def call(turns, clock, took, count=10_000):
    """Make a call that takes so many seconds; return for how many items."""
    async with turns.turn(count, seconds=60) as size:
        clock.now += took
    return size


def held_at(share):
    """Return turns whose share stays the same, and their clock."""
    clock = Clock()

    async def look():
        return 1.0

    return Turns(share, look, clock=clock, sleep=clock.sleep), clock


@pytest.mark.parametrize("share", [0.25, 0.5, 0.8])
async def test_turns_take_their_share_of_the_time_and_no_more(share):
    """
    After a turn comes a rest that is in proportion to the time it took, whatever that was. A pause
    that was made anyway counts.
    """
    turns, clock = held_at(share)
    worked = 0.0
    for took in (0.1, 4.0, 0.001, 0.7):
        await call(turns, clock, took)
        worked += took
    await call(turns, clock, 0.0)
    assert worked / clock.now == pytest.approx(share)
    await call(turns, clock, 1.0)
    clock.now += 1000
    clock.slept.clear()
    await call(turns, clock, 1.0)
    assert clock.slept == []


async def test_a_turn_that_takes_long_makes_the_next_one_smaller():
    """
    Short turns grow to all items of a pass; those at a busy target shrink to a few; a failed
    one counts by its time too.
    """
    turns, clock = held_at(0.5)
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


async def test_turns_come_one_at_a_time_and_nobody_waits_for_ever():
    """
    Who does not get a turn in its time hears that, and the next gets it. A cancelled one leaves the
    turn.
    """
    turns, _ = held_at(0.9)
    async with turns.turn(1, seconds=60):
        with pytest.raises(NoTurn):
            async with turns.turn(1, seconds=0.01):
                raise AssertionError("two at a time")
        waiting = asyncio.create_task(turns.turn(1, seconds=60).__aenter__())
        await asyncio.sleep(0)
        waiting.cancel()
    turns, clock = held_at(0.01)
    await call(turns, clock, 10.0)
    with pytest.raises(NoTurn):  # the rest is longer than it may wait
        async with turns.turn(1, seconds=60):
            raise AssertionError("no rest")
    clock.now += 1000
    assert await call(turns, clock, 0.0, count=1) == 1


async def test_with_the_whole_time_turns_are_side_by_side():
    """
    A least share of 1 is no limit at all, and nothing is looked up.
    """

    async def look():
        raise AssertionError("a look")

    turns = Turns(1, look)
    async with turns.turn(10_000, seconds=0) as one, turns.turn(10_000, seconds=0) as other:
        assert one == other == 10_000
    assert await turns.share() == 1


# --- passes ---


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
    mirror = forebay.Mirror(app, "pages", source=Items(), target=target, share_least=share)
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
        async with mirror._reconciler._turns.turn(1, seconds=10):
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
        async with mirror._reconciler._turns.turn(1, seconds=60):
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
        with pytest.raises(ConfigError, match="share_least"):
            forebay.Mirror(app, "pages", source=Items(), target=LyingTarget(), share_least=share)


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


def on_clock(mirror, clock, look=None):
    """Let the turns of a mirror go by a clock, at a quarter of the time; return its reconciler."""
    reconciler = mirror._reconciler
    look = look or mirror._slow_direct_writes
    reconciler._turns = Turns(0.25, look, clock=clock, sleep=clock.sleep)
    return reconciler


def direct(name, slow=0):
    """Return the counts of a direct write."""
    counts = [["direct.accepted", None, None, 1], ["direct.slow", None, None, slow]]
    return json.dumps({"mirror": name, "counts": counts})


@pytest.mark.parametrize("slow", [True, False])
async def test_beside_slow_direct_writes_whole_passes_take_their_share(app, conn, slow):
    """
    Reads of the target and proofs count too, and a backlog is worked on in parts. Without a direct
    write of any process a pass is one.
    """
    clock = Clock()
    target = Slow(clock)
    mirror = forebay.Mirror(app, "pages", source=Items(), target=target)
    on_clock(mirror, clock)
    if slow:
        one(conn, "select forebay.record_direct(%s::jsonb, 'web')", direct("pages", 1))
    one(conn, "select forebay.record_direct(%s::jsonb, 'web')", direct("other", 1))
    (endings,) = await asyncio.to_thread(passes, mirror, range(1000))
    assert endings == [None] * 1000
    if slow:
        assert target.asked[:2] == [250, 250]  # looked at, and read back
        assert sum(clock.slept) >= 3 * (target.busy - 0.15) - 1e-6  # all but the last part
    else:
        assert target.asked[:1] == [1000]
        assert clock.slept == []
    mirror.close()


async def test_the_fraction_of_slow_direct_writes_is_that_of_the_last_seconds(app, conn):
    """
    None without a direct write for a quarter of a minute; those of other mirrors do not count.
    """

    def fraction():
        return one(conn, "select forebay.slow_direct_writes('pages')")

    assert fraction() is None
    one(conn, "select forebay.record_direct(%s::jsonb, 'web')", direct("other", 1))
    assert fraction() is None
    one(conn, "select forebay.record_direct(%s::jsonb, 'web')", direct("pages", 0))
    assert fraction() == 0
    one(conn, "select forebay.record_direct(%s::jsonb, 'web')", direct("pages", 1))
    assert fraction() == 0.5
    one(conn, "select forebay.record_direct(%s::jsonb, 'web')", direct("pages", 9))
    assert fraction() == 1
    shift_clock(conn, 3)
    assert fraction() == 0
    shift_clock(conn, 16)
    assert fraction() is None


async def test_a_slow_direct_write_is_recorded_soon(app, conn):
    """
    The caller of a direct write waits for a target that does not answer: workers hear of it, and
    status does not count the same direct write twice.
    """

    class Never(LyingTarget):
        async def write(self, documents):
            await asyncio.sleep(3600)

    mirror = forebay.Mirror(app, "pages", source=Items(), target=Never(), direct_timeout=0.05)
    assert not await mirror.awrite_now(1)
    await wait_for_async(lambda: one(conn, "select forebay.slow_direct_writes('pages')") == 1, 10)
    assert mirror.counts == {"direct.timeout": 1}
    counts = one(conn, "select forebay.mirror_status('pages') -> 'counts'")
    assert [each["outcome"] for each in counts] == ["direct.timeout"]
    mirror.close()


async def test_without_an_answer_direct_writes_are_assumed_to_be_slow(app, conn):
    """
    A role without the right, or an older schema: work goes on, with the least share.
    """
    conn.execute("drop function forebay.slow_direct_writes(text)")
    clock = Clock()
    mirror = forebay.Mirror(app, "pages", source=Items(), target=Slow(clock))
    on_clock(mirror, clock)
    (endings,) = await asyncio.to_thread(passes, mirror, range(300))
    assert endings == [None] * 300
    assert clock.slept
    mirror.close()


async def test_a_store_that_is_away_makes_the_share_begin_again(app):
    """
    In an outage nobody writes directly, or notices that it is slow; when it ends, the backlog
    begins with the least share.
    """

    class Away(LyingTarget):
        def read(self, ids):
            raise OSError("away")

    clock = Clock()

    async def look():
        return None

    mirror = forebay.Mirror(app, "pages", source=Items(), target=Away())
    reconciler = on_clock(mirror, clock, look)
    (endings,) = await asyncio.to_thread(passes, mirror, range(3))
    assert [type(end).__name__ for end in endings] == ["Snooze"] * 3
    assert mirror._loop_thread.submit(reconciler._turns.share()).result() == 0.25
    mirror.close()


async def test_parts_whose_turn_does_not_come_are_postponed(app, conn):
    """
    A heartbeat is one of them: nothing proves that both stores answered.
    """
    one(conn, "select forebay.record_direct(%s::jsonb, 'web')", direct("pages", 1))
    mirror = forebay.Mirror(app, "pages", source=Items(), target=Counting())
    clock = Clock()
    reconciler = on_clock(mirror, clock)
    reconciler._turns._took = 1e6
    (beat,) = jobs_of([0])
    beat.args = {"heartbeat": True}
    running = mirror._loop_thread.submit(reconciler.run([beat, *jobs_of(range(3))]))
    endings = await asyncio.wrap_future(running)
    assert [type(end).__name__ for end in endings] == ["Snooze"] * 4
    assert mirror.target.sizes == []
    mirror.close()
