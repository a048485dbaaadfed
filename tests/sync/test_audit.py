"""An audit finds what is wrong between both stores, nothing else, and what it finds can be repaired."""

import asyncio
import json
import random
import threading
import time

import psycopg
import pytest

import forebay
from forebay.cli._main import run
from forebay.errors import ConfigError, TargetUnavailable
from forebay.sync import Document, Gone, PostgresTarget, QuerySource, SQLiteTarget
from forebay.testing import LyingTarget
from tests.support.fix_worker import run_until_idle, running
from tests.support.waiting import wait_for_async

COUNT = 1000


class Items:
    """A source in memory that can be scanned."""

    def __init__(self, versions):
        self.versions = dict(versions)

    def read(self, ids):
        return [Document(name, self.versions[name], {}) for name in ids if name in self.versions]

    def scan(self, after, limit):
        return sorted(pair for pair in self.versions.items() if after is None or pair[0] > after)[
            :limit
        ]


def pair(app, source, target, **options):
    return forebay.Sync(app, "pages", source=source, target=target, **options)


def drifted(drift):
    """Return what an audit found, as sets."""
    return {kind: set(getattr(drift, kind)) for kind in ("missing", "stale", "orphaned", "ahead")}


def test_two_stores_in_step_are_found_so(app):
    """
    Also empty ones, and ones that end with a full page.
    """
    for count in (0, 1, 10, 20, 25):
        source, target = Items(dict.fromkeys(range(count), 3)), LyingTarget()
        target.write([Document(name, 3, {}) for name in range(count)])
        app.syncs.clear()
        sync = pair(app, source, target)
        drift = sync.audit(page=10)
        assert (drift.total, drift.items, drift.copies, drift.suspects) == (0, count, count, 0)
        sync.close()


@pytest.mark.parametrize("page", [1, 7, 1000])
def test_each_kind_of_drift_is_found_wherever_it_is(app, page):
    """
    At both ends, in between, and in long runs of copies without an item.
    """
    source = Items(dict.fromkeys(range(10, 40), 2))
    target = LyingTarget()
    target.write([Document(name, 2, {}) for name in range(60)])
    target.write([Document(15, 9, {})])
    source.versions[20] = 5
    target.delete([Gone(10), Gone(39), Gone(25)])
    sync = pair(app, source, target)
    drift = sync.audit(page=page, settle=0)
    assert drifted(drift) == {
        "missing": {10, 25, 39},
        "stale": {20},
        "orphaned": {*range(10), *range(40, 60)},
        "ahead": {15},
    }
    assert drift.total == len(drift.repairable) + 1
    sync.close()


class Moving(Items):
    """A source in which everything changes right after it was scanned, and is in the target a moment later."""

    def __init__(self, versions, target, then):
        super().__init__(versions)
        self.target = target
        self.then = then

    def scan(self, after, limit):
        found = super().scan(after, limit)
        for name, version in found:
            if self.then == "deleted":
                del self.versions[name]
                self.target.delete([Gone(name)])
            elif self.then == "changed":
                self.versions[name] = version + 1
                self.target.write([Document(name, version + 1, {})])
            else:
                self.versions[name] = version + 1
        return found


@pytest.mark.parametrize("then", ["changed", "deleted", "changed, and on the way"])
def test_what_changes_meanwhile_is_no_drift(app, then):
    """
    A suspect is compared at the version that was scanned: what changed since has a job of its own.
    """
    target = LyingTarget()
    target.write([Document(name, 1, {}) for name in range(20)])
    sync = pair(app, Moving(dict.fromkeys(range(20), 1), target, then), target)
    drift = sync.audit(settle=0)
    assert drift.total == 0
    assert then == "changed, and on the way" or drift.suspects == 20
    sync.close()


def test_what_a_running_job_repairs_in_time_is_no_drift(app):
    """
    A suspect has time to become right: that of the grace and a little more, or as is said.
    """
    source, target = Items({1: 2}), LyingTarget()
    target.write([Document(1, 1, {})])
    sync = pair(app, source, target)
    later = threading.Timer(0.3, lambda: target.write([Document(1, 2, {})]))
    later.start()
    assert sync.audit(settle=2).total == 0
    target.write([Document(2, 1, {})])
    assert drifted(sync.audit(settle=0))["orphaned"] == {2}
    sync.close()


def test_reads_are_bounded(app):
    """
    The rows read per second of both stores together are as many as was said.
    """
    source, target = Items(dict.fromkeys(range(50), 1)), LyingTarget()
    target.write([Document(name, 1, {}) for name in range(50)])
    sync = pair(app, source, target)
    begun = time.monotonic()
    drift = sync.audit(page=10, rows_per_second=200)
    assert time.monotonic() - begun >= 0.45
    assert drift.seconds >= 0.45
    sync.close()


def test_an_audit_that_cannot_be_made_says_why(app):
    """
    A scan out of order would give false alarms, a store that cannot be read none at all.
    """
    source, target = Items({2: 1}), LyingTarget()
    sync = pair(app, source, target)
    source.scan = lambda _after, _limit: [(2, 1), (1, 1)]
    with pytest.raises(ConfigError, match="gave id 1 behind 2"):
        sync.audit()
    for options in ({"page": 0}, {"rows_per_second": 0}, {"settle": -1}):
        with pytest.raises(ConfigError):
            sync.audit(**options)
    sync.close()


@pytest.mark.slow
@pytest.mark.anyio
async def test_drift_planted_under_live_writes_is_found_exactly_and_repaired(
    app, conn, empty_database
):
    """
    Missing, stale and orphaned copies at random, while others are written: the audit finds those and no other, and after the
    repair there is none.
    """
    conn.execute("create table page (id bigint primary key, version bigint)")
    conn.execute("insert into page select n, 1 from generate_series(1, %s) n", [COUNT])
    source = QuerySource(
        app.dsn,
        read="select id, version from page where id = any(%(ids)s)",
        scan="select id, version from page where id > coalesce(%(after)s, 0) order by id limit %(limit)s",
    )
    target = PostgresTarget(empty_database)
    target.create()
    sync = pair(app, source, target, grace=0.05)
    sync.changed_many(conn, range(1, COUNT + 1), delay=0)
    await run_until_idle(app)
    chosen = random.Random(4)
    picked = chosen.sample(range(1, COUNT + 1), 60)
    wrong = {
        "missing": set(picked[:20]),
        "stale": set(picked[20:40]),
        "orphaned": set(picked[40:]),
        "ahead": set(),
    }
    with psycopg.connect(empty_database) as other:
        other.execute("delete from documents where id = any(%s)", [list(wrong["missing"])])
    conn.execute("update page set version = 2 where id = any(%s)", [list(wrong["stale"])])
    conn.execute("delete from page where id = any(%s)", [list(wrong["orphaned"])])
    others = sorted(set(range(1, COUNT + 1)) - set(picked))
    ended = asyncio.Event()

    async def write():
        async with await psycopg.AsyncConnection.connect(app.dsn, autocommit=True) as mine:
            while not ended.is_set():
                name = chosen.choice(others)
                async with mine.transaction():
                    await mine.execute(
                        "update page set version = version + 1 where id = %s", [name]
                    )
                    await sync.achanged(mine, name)
                await asyncio.sleep(0.005)

    async with running(app):
        writing = asyncio.create_task(write())
        drift = await asyncio.to_thread(sync.audit, page=100, settle=6)
        assert drifted(drift) == wrong
        assert drift.suspects > 60
        assert await asyncio.to_thread(sync.repair, drift) == 60
        ended.set()
        await writing

        async def in_step():
            return (await asyncio.to_thread(sync.audit, settle=0)).total == 0

        await wait_for_async(in_step)
    assert any(
        (job.tag, job.priority) == ("audit", 1000)
        for job in app.client().jobs(kind="sync.pages", limit=1000)
    )
    sync.close()


def test_the_command_tells_and_repairs(database, tmp_path, monkeypatch, capsys):
    """
    With numbers for people, one line for programs, and 1 as long as something is wrong.
    """
    monkeypatch.setenv("FOREBAY_DATABASE_URL", database)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    (tmp_path / "audited_shop.py").write_text(
        "import forebay\n"
        "from forebay.sync import Document, SQLiteTarget\n"
        "class Items:\n"
        "    def read(self, ids): return [Document(i, 1, {'text': 'mill'}) for i in ids if i < 4]\n"
        "    def scan(self, after, limit): return [(i, 1) for i in range(1, 4) if i > (after or 0)]\n"
        "app = forebay.App()\n"
        "pages = forebay.Sync(app, 'pages', source=Items(), target=SQLiteTarget('index.db'))\n"
    )
    target = SQLiteTarget(tmp_path / "index.db")
    target.write([Document(2, 1, {}), Document(7, 1, {})])
    command = ["sync", "audit", "audited_shop:app", "pages", "--settle", "0s"]
    assert run(command) == 1
    said = capsys.readouterr().out
    assert "3 items, 2 copies, 3 looked at again" in said
    assert "--repair" in said
    assert run([*command, "--repair", "--json"]) == 1
    told = json.loads(capsys.readouterr().out)
    assert (told["missing"], told["stale"], told["orphaned"], told["enqueued"]) == (2, 0, 1, 3)
    assert told["ids"]["orphaned"] == [7]
    assert run(["worker", "audited_shop:app", "--until-idle", "--log-level", "error"]) == 0
    assert run(command) == 0
    capsys.readouterr()
    assert run(["sync", "audit", "audited_shop:app", "nothing"]) == 2
    assert "There are: pages" in capsys.readouterr().err


def test_a_target_that_cannot_be_scanned_ends_the_audit(app):
    """
    Nothing is said about items then.
    """

    class Down(LyingTarget):
        def scan(self, after, until, limit):
            raise TargetUnavailable("maintenance")

    sync = pair(app, Items({1: 1}), Down())
    with pytest.raises(TargetUnavailable):
        sync.audit()
    sync.close()
