"""Two targets as one: jobs end when both are right, and the one in use does not suffer from the
one being built.
"""

import asyncio
import time

import pytest

import forebay
from forebay.errors import ConfigError
from forebay.mirror import Document, DualTarget, ElasticsearchTarget, Gone, Seen, SQLiteTarget
from forebay.testing import LyingTarget, TargetContract
from tests.support.engine import one, state
from tests.support.fix_worker import running
from tests.support.search_engine import SearchEngine
from tests.support.source import Items
from tests.support.waiting import wait_for, wait_for_async

pytestmark = pytest.mark.anyio


class TestDualTarget(TargetContract):
    @pytest.fixture(autouse=True)
    def _file(self, tmp_path):
        self.path = tmp_path / "index.db"

    def make_target(self):
        return DualTarget(SQLiteTarget(self.path), LyingTarget())


class TestDualTargetThatLags(TargetContract):
    def make_target(self):
        return DualTarget(LyingTarget(), LyingTarget(lag_seconds=0.01))


@pytest.fixture
def current():
    return LyingTarget()


@pytest.fixture
def new():
    found = LyingTarget()
    yield found
    found.let_go()


@pytest.fixture
def mirror(app, current, new):
    """A mirror of items 0 to 4, at version 1."""
    found = forebay.Mirror(
        app,
        "pages",
        source=Items(dict.fromkeys(range(5), 1)),
        target=DualTarget(current, new, timeout=0.2),
        grace=0,
        interval=0.01,
        direct_timeout=5.0,
    )
    yield found
    new.let_go()
    found.close()


async def test_a_job_ends_when_both_targets_were_read_and_are_right(
    app, conn, mirror, current, new
):
    """
    A new target that drops what it accepted keeps the job open, although the one in use is right.
    """
    new.drop = 1.0
    job = mirror.changed(conn, 1)
    async with running(app):
        await wait_for_async(lambda: mirror.counts.get("unproved", 0) >= 2)
        assert current.versions() == {1: 1}
        assert state(conn, job) != "done"
        new.drop = 0.0
        await wait_for_async(lambda: state(conn, job) == "done")
    assert new.versions() == {1: 1}
    assert new.shown[1][-1] == 1


@pytest.mark.parametrize("in_new", [True, False])
async def test_what_is_gone_is_deleted_from_both(app, conn, mirror, current, new, in_new):
    """
    Also what is left in one of them only.
    """
    (new if in_new else current).write([Document(9, 1, {})])
    job = mirror.changed(conn, 9)
    async with running(app):
        await wait_for_async(lambda: state(conn, job) == "done")
    assert current.versions() == new.versions() == {}


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["hanging", "resetting"])
async def test_a_new_target_that_is_away_harms_nobody(app, conn, mirror, current, new, fault):
    """
    Direct writes are accepted as fast as before, jobs keep the target in use right and wait for the
    other without an attempt; when it is back both are right and the jobs end.
    """
    setattr(new, fault, True)
    mirror.source.versions = dict.fromkeys(range(40), 1)
    begun = time.monotonic()
    for name in range(20):
        assert await mirror.awrite_now(name)
    assert time.monotonic() - begun < 4
    assert mirror.counts == {"direct.accepted": 20}
    with conn.transaction():
        mirror.changed_many(conn, range(20, 40))
    async with running(app):
        await wait_for_async(lambda: set(current.versions()) == set(range(40)))
        await wait_for_async(lambda: mirror.counts.get("postponed", 0) >= 20)
        assert "completed.up_to_date" not in mirror.counts
        new.resetting = False
        new.let_go()
        await wait_for_async(lambda: mirror.counts.get("completed.up_to_date", 0) == 20)
    assert set(range(20, 40)) <= set(new.versions())
    assert one(conn, "select count(*) from forebay.log where attempt > 0") == 0
    # What the direct writes could not tell the new one has jobs of its own in real life; an audit
    # finds it as well.
    await wait_for_async(lambda: not mirror.target.direct._under_way)
    drift = await asyncio.to_thread(mirror.audit, settle=0)
    assert set(drift.repairable) == set(range(40)) - set(new.versions())


async def test_direct_writes_reach_both(mirror, current, new):
    """
    So that the new one is as fresh as the old one when it takes over.
    """
    assert await asyncio.to_thread(mirror.write_now, 1)
    wait_for(lambda: current.versions() == new.versions() == {1: 1})
    del mirror.source.versions[1]
    assert await mirror.awrite_now(1)
    await wait_for_async(lambda: current.versions() == new.versions() == {})


async def test_a_target_in_use_that_is_away_is_told(mirror, current, new):
    """
    Nothing is hidden of it.
    """
    current.resetting = True
    for call in (
        mirror.target.read([1]),
        mirror.target.write([Document(1, 1, {})]),
        mirror.target.scan(None, None, 5),
    ):
        with pytest.raises(ConnectionResetError):
            await call
    assert not await mirror.awrite_now(1)


async def test_errors_of_either_are_told():
    """
    An item that one of them refuses is not right, whatever the other says.
    """
    target = DualTarget(LyingTarget(refused=frozenset({1})), LyingTarget(refused=frozenset({2})))
    errors = await target.write([Document(name, 1, {}) for name in (1, 2, 3)])
    assert set(errors) == {1, 2}
    assert await target.read([1, 2, 3]) == {1: Seen(-1), 2: Seen(-1), 3: Seen(1)}
    with pytest.raises(ValueError, match="cannot parse"):
        await DualTarget(LyingTarget(), LyingTarget(poison=frozenset({1}))).delete([Gone(1)])


async def test_pages_of_two_scans_are_one_scan():
    """
    However the two differ, nothing is left out, told twice or out of order, and a short page is the
    last.
    """
    first, second = range(0, 60, 2), [*range(0, 60, 3), *range(100, 130)]
    target = DualTarget(LyingTarget(), LyingTarget())
    target.current.write([Document(name, 2, {}) for name in first])
    target.new.write([Document(name, 1 + name % 2, {}) for name in second])
    wanted = {
        name: (1 + name % 2 if name % 6 == 0 and name < 60 else -1) for name in {*first, *second}
    }
    for limit in (1, 2, 7, 1000):
        found, after = [], None
        while True:
            page = await target.scan(after, 120, limit)
            found += page
            if len(page) < limit:
                break
            after = page[-1][0]
        assert [name for name, _ in found] == sorted(name for name in wanted if name <= 120)
        assert all(seen.version == wanted[name] for name, seen in found)


async def test_an_index_is_rebuilt_under_live_writes(app, conn):
    """
    The whole of it: the new index is filled by an audit's jobs while items change, takes over when
    nothing is wrong, and the old one is gone.
    """
    engine = SearchEngine()
    with engine.running() as url:
        old = ElasticsearchTarget(url, "pages", realtime=True, refresh_seconds=0.001)
        old.create()
        source = Items(dict.fromkeys(range(50), 1))
        await old.write(source.read(range(50)))
        await old.close()
        new = old.successor(settings={"number_of_shards": 2})
        new.create()
        mirror = forebay.Mirror(app, "pages", source=source, target=DualTarget(old, new), grace=0)
        async with running(app):

            async def drift():
                return await asyncio.to_thread(mirror.audit, settle=0)

            found = await drift()
            assert sorted(found.stale) == list(range(50))
            with pytest.raises(ConfigError, match="50 items are still wrong"):
                new.take_over(found)
            await asyncio.to_thread(mirror.repair, found)
            for name in (3, 50):
                source.versions[name] = 2
                mirror.changed(conn, name)
            del source.versions[4]
            mirror.changed(conn, 4)
            await wait_for_async(
                lambda: (
                    sum(mirror.counts.get(f"completed.{how}", 0) for how in ("up_to_date", "gone"))
                    == 53
                )
            )
            found = await drift()
            assert (found.total, found.items, found.copies) == (0, 50, 50)
            await asyncio.to_thread(new.take_over, found)
            assert list(engine.indexes) == ["pages-2"]
            # The program still writes to both names, which are one index: it does no harm.
            source.versions[5] = 3
            job = mirror.changed(conn, 5)
            await wait_for_async(lambda: state(conn, job) == "done")
        await asyncio.to_thread(mirror.close)
        app.mirrors.clear()
        shown = await old.read([3, 4, 5, 50])
        assert shown == {3: Seen(2), 5: Seen(3), 50: Seen(2)}
        await old.close()
