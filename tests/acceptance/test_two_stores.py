"""What is promised of two stores that are kept in step: a comparison that can be believed, and
jobs that end when it is true.
"""

import asyncio
import itertools
import random
import time

import psycopg
import pytest

import forebay
from forebay.mirror import Checksum, Document, PostgresTarget, QuerySource
from forebay.testing import LyingTarget
from tests.support.fix_worker import running
from tests.support.waiting import wait_for_async

pytestmark = pytest.mark.anyio

#: Changes of the live writers per second.
WRITES = 200

#: So many of a hundred writes delete, and as many insert.
CHURN = 10


class Reads:
    """When how many rows were read of both stores."""

    def __init__(self, *stores):
        self.all = []
        for store in stores:
            for name in ("scan", "checksum", "read"):
                if getattr(store, name) is not None:
                    setattr(store, name, self.noted(getattr(store, name)))

    def noted(self, method):
        async def call(*args):
            found = await method(*args)
            asked = args[0] if isinstance(args[0], list) else found
            rows = found.rows if isinstance(found, Checksum) else len(asked)
            self.all.append((time.monotonic(), rows))
            return found

        return call

    def busiest(self):
        """Return how many rows were read in the busiest second."""
        return max(
            sum(rows for at, rows in self.all[place:] if at < first + 1.0)
            for place, (first, _) in enumerate(self.all)
        )


class LiveWriters:
    """Changes items that nothing else is done to: updates, and some inserts and deletions, each
    with its job.
    """

    def __init__(self, dsn, mirror, ids, first_new):
        self.dsn = dsn
        self.mirror = mirror
        self.ids = list(ids)
        self.new = itertools.count(first_new)
        self.count = 0
        self.chosen = random.Random(11)
        self.ended = asyncio.Event()

    async def run(self):
        begun = time.monotonic()
        async with await psycopg.AsyncConnection.connect(self.dsn, autocommit=True) as conn:
            while not self.ended.is_set():
                await asyncio.sleep(max(0.0, begun + self.count / WRITES - time.monotonic()))
                async with conn.transaction():
                    await self.mirror.achanged(conn, await self.change(conn))
                self.count += 1

    async def change(self, conn):
        what = self.chosen.randrange(100)
        if what < CHURN:
            name = next(self.new)
            await conn.execute("insert into page values (%s, 1, 'new')", [name])
            self.ids.append(name)
            return name
        place = self.chosen.randrange(len(self.ids))
        name = self.ids[place]
        if what < 2 * CHURN:
            self.ids[place] = self.ids[-1]
            self.ids.pop()
            await conn.execute("delete from page where id = %s", [name])
        else:
            await conn.execute("update page set version = version + 1 where id = %s", [name])
        return name


@pytest.mark.slow
async def test_an_audit_beside_live_writes_finds_exactly_what_is_wrong(
    app, conn, empty_database, is_long
):
    """
    One percent each missing, stale and orphaned, at random, under 200 writes a second: those are
    found and no others, the repair leaves nothing, and the stores are never read faster than was
    said.
    """
    count = 100_000 if is_long else 10_000
    rate = 20_000
    each = count // 100
    conn.execute("create table page (id bigint primary key, version bigint not null, text text)")
    conn.execute(
        "insert into page select n, 1, 'page ' || n from generate_series(1, %s) n", [count]
    )
    source = QuerySource(
        app.dsn,
        read="select id, version, text from page where id = any(%(ids)s)",
        scan=(
            "select id, version from page where id > coalesce(%(after)s, 0) order by id limit "
            "%(limit)s"
        ),
    )
    target = PostgresTarget(empty_database)
    target.create()
    with psycopg.connect(empty_database) as other:
        other.execute(
            "insert into documents (id, version, words) select n, 1, "
            "to_tsvector('english', 'page ' || n)"
            " from generate_series(1, %s) n",
            [count],
        )
    mirror = forebay.Mirror(app, "pages", source=source, target=target, grace=0.2)
    assert (await asyncio.to_thread(mirror.audit, settle=0, rows_per_second=1e9)).total == 0

    chosen = random.Random(5)
    picked = chosen.sample(range(1, count + 1), 3 * each)
    wrong = {
        "missing": set(picked[:each]),
        "stale": set(picked[each : 2 * each]),
        "orphaned": set(picked[2 * each :]),
        "ahead": set(),
    }
    with psycopg.connect(empty_database) as other:
        other.execute("delete from documents where id = any(%s)", [list(wrong["missing"])])
    conn.execute("update page set version = 2 where id = any(%s)", [list(wrong["stale"])])
    conn.execute("delete from page where id = any(%s)", [list(wrong["orphaned"])])

    writers = LiveWriters(app.dsn, mirror, set(range(1, count + 1)) - set(picked), 2 * count)
    async with running(app):
        writing = asyncio.create_task(writers.run())
        await wait_for_async(lambda: mirror.counts.get("completed.up_to_date", 0) > 0)
        before, begun = writers.count, time.monotonic()
        drift = await asyncio.to_thread(
            mirror.audit, page=500, settle=4 if not is_long else 8, rows_per_second=rate
        )
        seconds = time.monotonic() - begun
        per_second = (writers.count - before) / seconds
        assert {kind: set(getattr(drift, kind)) for kind in wrong} == wrong
        assert drift.suspects > 3 * each  # live writes were among them, and cleared
        assert per_second > (WRITES / 2 if is_long else 10)  # a busy machine writes less
        assert drift.rows_per_second <= rate
        assert await asyncio.to_thread(mirror.repair, drift) == 3 * each

        async def is_repaired():
            found = await asyncio.to_thread(mirror.audit, page=500, settle=4, rows_per_second=rate)
            return found.total == 0

        await wait_for_async(is_repaired, 120)
        writers.ended.set()
        await writing
    print(
        f"{count:,} documents, {per_second:.0f} writes/s beside it: {drift.total} wrong "
        f"and no others found of"
        f" {drift.suspects:,} suspects, in {drift.seconds:.1f} s; {drift.rows:,} rows read,"
        f" {drift.rows_per_second:,.0f}/s of at most {rate:,}; {drift.differed} of "
        f"{drift.ranges} ranges differed"
    )
    first = mirror.audits()[-2]  # the one before found both stores in step
    assert (first.missing, first.stale, first.orphaned, first.repaired) == (
        each,
        each,
        each,
        3 * each,
    )
    assert mirror.audits()[0].total == 0
    assert mirror.status().facts.expired == 0
    mirror.close()


@pytest.mark.slow
@pytest.mark.parametrize(("has_sums", "settle"), [(True, 0), (False, 3)], ids=["sums", "rows"])
async def test_the_stores_are_never_read_faster_than_was_said(
    app, conn, empty_database, has_sums, settle
):
    """
    In no second more rows than that and one call's, wherever the audit is: comparing checksums,
    reading what differs, or looking again at all at once what it had to wait for.
    """
    count, rate = 900, 800
    conn.execute("create table page (id bigint primary key, version bigint not null)")
    conn.execute("insert into page select n, 1 from generate_series(1, %s) n", [count])
    source = QuerySource(
        app.dsn,
        read="select id, version from page where id = any(%(ids)s)",
        scan=(
            "select id, version from page where id > coalesce(%(after)s, 0) order by id limit "
            "%(limit)s"
        ),
    )
    target = PostgresTarget(empty_database)
    target.create()
    with psycopg.connect(empty_database) as other:
        other.execute(
            (
                "insert into documents (id, version) select n, 1 from generate_series(1, %s) n "
                "where n <= %s"
            ),
            [count, count // 4],
        )
    if not has_sums:
        source.checksum = None
    reads = Reads(source, target)
    mirror = forebay.Mirror(app, "pages", source=source, target=target)
    drift = await asyncio.to_thread(mirror.audit, page=20, settle=settle, rows_per_second=rate)
    largest = max(rows for _, rows in reads.all)
    assert len(drift.missing) == count * 3 // 4
    assert drift.rows == sum(rows for _, rows in reads.all)
    assert reads.busiest() <= rate + 2 * largest
    mirror.close()


class Witness(LyingTarget):
    """Notes when it first showed each item."""

    def __init__(self, **options):
        super().__init__(**options)
        self.shown_at = {}

    def read(self, ids):
        found = super().read(ids)
        for name in found:
            self.shown_at.setdefault(name, time.time())
        return found


class Items:
    """A source in memory."""

    def read(self, ids):
        return [Document(name, 1, {}) for name in ids]

    def scan(self, after, limit):
        raise AssertionError("nobody scans")


async def ends_right(app, conn, count):
    """Change items with a target that drops five percent of what it accepts.

    Compare when jobs ended with when it was shown.
    """
    target = Witness(drop=0.05, seed=7)
    mirror = forebay.Mirror(
        app, "pages", source=Items(), target=target, grace=0, interval=0.05, batch_size=250
    )
    try:
        with conn.transaction():
            mirror.changed_many(conn, range(count))
        async with running(app):
            for name in range(0, count, 10):
                await mirror.awrite_now(name)
            await wait_for_async(
                lambda: mirror.counts.get("completed.up_to_date", 0) >= count,
                120,
                lambda: str(mirror.counts),
            )
        assert target.dropped
        assert [name for name in range(count) if target.versions().get(name) != 1] == []
        jobs = conn.execute(
            "select (j.args ->> 'id')::int, j.state, extract(epoch from j.ended_at)::float8"
            " from generate_series(1, %s) n, forebay.job(n) j",
            [count],
        ).fetchall()
        assert len(jobs) == count
        assert {state for _, state, _ in jobs} == {"done"}
        assert [
            name for name, _, ended_at in jobs if ended_at < target.shown_at.get(name, 1e12)
        ] == []
    finally:
        mirror.close()


@pytest.mark.slow
async def test_no_job_ends_before_its_copy_was_shown_by_a_target_that_drops(app, conn, is_long):
    """
    A target that says 200 and drops five percent ends with all of it, and each job ended after a
    read had shown its copy.
    """
    await ends_right(app, conn, 10_000 if is_long else 1_000)


@pytest.mark.slow
async def test_without_the_read_back_jobs_end_before(app, conn, monkeypatch):
    """
    The test above notices it.
    """
    monkeypatch.setattr("forebay.mirror._reconcile.is_proved", lambda *_: True)
    with pytest.raises(AssertionError):
        await ends_right(app, conn, 400)
