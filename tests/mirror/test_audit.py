"""An audit finds what is wrong between both stores, nothing else, and what it finds can be
repaired.
"""

import asyncio
import contextlib
import json
import random
import threading
import time

import psycopg
import pytest

import forebay
from forebay.cli import run
from forebay.errors import ConfigError, InvalidJob, TargetUnavailable
from forebay.mirror import Document, Gone, PostgresTarget, QuerySource, SQLiteTarget, checksum_of
from forebay.testing import LyingTarget
from tests.support.engine import one, trim
from tests.support.fix_worker import run_until_idle, running
from tests.support.source import Items
from tests.support.waiting import wait_for_async

COUNT = 1000


def pair(app, source, target, **options):
    return forebay.Mirror(app, "pages", source=source, target=target, **options)


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
        app.mirrors.clear()
        mirror = pair(app, source, target)
        drift = mirror.audit(page=10)
        assert (drift.total, drift.items, drift.copies, drift.suspects) == (0, count, count, 0)
        mirror.close()


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
    mirror = pair(app, source, target)
    drift = mirror.audit(page=page, settle=0)
    assert drifted(drift) == {
        "missing": {10, 25, 39},
        "stale": {20},
        "orphaned": {*range(10), *range(40, 60)},
        "ahead": {15},
    }
    assert drift.total == len(drift.repairable) + 1
    mirror.close()


class Counting:
    """Records the rows of scans, and the limits of checksums."""

    def __init__(self):
        self.scanned = []
        self.limits = []

    def checksum(self, after, until, limit):
        self.limits.append(limit)
        names = [row for row in self.all() if after is None or row[0] > after]
        return checksum_of([row for row in names if until is None or row[0] <= until][:limit])


class SummedItems(Counting, Items):
    """A source that can tell checksums."""

    def __init__(self, versions):
        Items.__init__(self, versions)
        Counting.__init__(self)

    def all(self):
        return sorted(self.versions.items())

    def scan(self, after, limit):
        found = super().scan(after, limit)
        self.scanned += [name for name, _ in found]
        return found


class SummedTarget(Counting, LyingTarget):
    """A target that can tell checksums."""

    def __init__(self):
        LyingTarget.__init__(self)
        Counting.__init__(self)

    def all(self):
        return sorted(self.versions().items())

    def scan(self, after, until, limit):
        found = super().scan(after, until, limit)
        self.scanned += [name for name, _ in found]
        return found


def test_what_is_in_step_by_its_checksums_is_not_read(app):
    """
    Only the pages that differ are, and only as far as they go.
    """
    source, target = SummedItems(dict.fromkeys(range(1000), 1)), SummedTarget()
    target.write([Document(name, 1, {}) for name in range(1000)])
    mirror = pair(app, source, target)
    drift = mirror.audit(page=10, settle=0, rows_per_second=1e9)
    assert (drift.total, drift.items, drift.copies) == (0, 1000, 1000)
    assert (drift.ranges, drift.differed) == (11, 0)
    assert source.scanned == target.scanned == []

    source.versions[555] = 2
    drift = mirror.audit(page=10, settle=0, rows_per_second=1e9)
    assert drifted(drift)["stale"] == {555}
    assert (drift.items, drift.copies, drift.differed) == (1000, 1000, 2)
    assert source.scanned == target.scanned == list(range(550, 560))
    mirror.close()


@pytest.mark.parametrize("page", [1, 7, 1000])
def test_nothing_hides_behind_a_checksum(app, page):
    """
    With checksums the same is found as without, at both ends, in between and in long runs; and what
    is in a range too many is no load: its checksum is asked of one row more than there should be.
    """
    source = SummedItems(dict.fromkeys(range(10, 90), 2))
    target = SummedTarget()
    target.write([Document(name, 2, {}) for name in range(400)])
    target.write([Document(15, 9, {})])
    source.versions[20] = 5
    target.delete([Gone(10), Gone(39), Gone(25), Gone(89)])
    mirror = pair(app, source, target)
    drift = mirror.audit(page=page, settle=0, rows_per_second=1e9)
    assert drifted(drift) == {
        "missing": {10, 25, 39, 89},
        "stale": {20},
        "orphaned": {*range(10), *range(90, 400)},
        "ahead": {15},
    }
    assert (drift.items, drift.copies) == (80, 396)
    assert max(target.limits) <= 81
    mirror.close()


@pytest.mark.parametrize("then", ["changed", "deleted", "changed, and on the way"])
def test_what_changes_between_two_checksums_is_no_drift(app, then):
    """
    A difference of checksums is none yet: the rows are read, and suspects looked at again.
    """

    class Changing(SummedItems):
        def checksum(self, after, until, limit):
            found = super().checksum(after, until, limit)
            name = after or 0
            if then == "deleted":
                self.versions.pop(name, None)
                target.delete([Gone(name)])
            elif name in self.versions:
                self.versions[name] += 1
                if then == "changed":
                    target.write([Document(name, self.versions[name], {})])
            return found

    target = SummedTarget()
    target.write([Document(name, 1, {}) for name in range(20)])
    mirror = pair(app, Changing(dict.fromkeys(range(20), 1)), target)
    drift = mirror.audit(settle=0, page=2)
    # What is on the way for longer than the audit settles is behind the version that was scanned.
    assert drift.total == 0 or then == "changed, and on the way"
    assert drifted(drift)["missing"] == drifted(drift)["orphaned"] == set()
    mirror.close()


def other_order(conn):
    """Return a collation whose order is not that of the bytes, where the server has one."""
    for name in ("und-x-icu", "en_US.utf8"):
        with contextlib.suppress(psycopg.Error):
            if one(conn, f"""select 'a' < 'B' collate "{name}" """):
                return f' collate "{name}"'
    return ""


@pytest.mark.parametrize(
    "names", [range(1, 60), ["a", "B", "z:1", "ä", "\U0001f4a7", "Z"]], ids=["numbers", "texts"]
)
def test_all_stores_have_the_same_checksum(app, conn, empty_database, tmp_path, names):
    """
    Of the same rows: a query, a table in another database, and a file; numbers, and texts of all
    sorts.
    """
    id_type = "text" if isinstance(names, list) else "bigint"
    column = id_type + (other_order(conn) if id_type == "text" else "")
    conn.execute(f"create table page (id {column} primary key, version bigint)")
    with conn.cursor() as cursor:
        cursor.executemany(
            "insert into page values (%s, %s)", [(name, n * 10**17) for n, name in enumerate(names)]
        )
    ordered = 'id collate "C"' if id_type == "text" else "id"
    least = "''" if id_type == "text" else "0"
    source = QuerySource(
        app.dsn,
        read="select id, version from page where id = any(%(ids)s)",
        scan=(
            f"select id, version from page where {ordered} > coalesce(%(after)s, {least}) "
            f"order by {ordered} limit %(limit)s;"
        ),
    )
    table = PostgresTarget(empty_database, id_type=id_type)
    table.create()
    lite = SQLiteTarget(tmp_path / "index.db", id_type=id_type.replace("bigint", "integer"))
    documents = [Document(name, n * 10**17, {}) for n, name in enumerate(names)]
    lite.write(documents)
    in_order = sorted(names)

    async def compare():
        await table.write(documents)
        for after, until, limit in [
            (None, None, 100), (None, in_order[2], 100), (in_order[1], None, 2),
            (in_order[-1], None, 9), (None, in_order[0], 1),
        ]:  # fmt: skip
            rows = [
                row for row in await source.scan(after, limit) if until is None or row[0] <= until
            ]
            assert [name for name, _ in rows] == [
                name
                for name in in_order
                if (after is None or name > after) and (until is None or name <= until)
            ][:limit]
            expected = checksum_of(rows)
            assert await source.checksum(after, until, limit) == expected
            assert await table.checksum(after, until, limit) == expected
            assert lite.checksum(after, until, limit) == expected
        await source.close()
        await table.close()

    asyncio.run(compare())


def test_documents_are_compared_by_hash_where_that_was_declared(app, conn, tmp_path):
    """
    A copy of the right version with other contents is stale; the repair makes it right. By version
    nothing is found.
    """

    class Texts(Items):
        def read(self, ids):
            return [
                Document(name, self.versions[name], {"text": f"mill {name}"})
                for name in ids
                if name in self.versions
            ]

    source, target = Texts(dict.fromkeys(range(1, 30), 1)), SQLiteTarget(tmp_path / "index.db")
    mirror = pair(app, source, target, compare="hash", grace=0)
    mirror.changed_many(conn, range(1, 30))
    app.run_worker(until_idle=True)
    assert mirror.audit(settle=0).total == 0
    target.write([Document(7, 1, {"text": "weir"}, "another"), Document(9, 1, {"text": "weir"})])
    assert mirror.audit(settle=0, compare="version").total == 0
    drift = mirror.audit(settle=0, page=4)
    assert drifted(drift) | {"compared": drift.compared} == {
        "missing": set(), "stale": {7, 9}, "orphaned": set(), "ahead": set(), "compared": "hash",
    }  # fmt: skip
    source.versions[9] = 2  # a change since has a job of its own
    mirror.repair(drift)
    app.run_worker(until_idle=True)
    assert mirror.audit(settle=0).total == 0
    assert target.search("weir") == []
    assert [audit.compared for audit in mirror.audits()] == ["hash", "hash", "version", "hash"]
    mirror.close()
    plain = forebay.Mirror(app, "other", source=source, target=LyingTarget())
    for compare in ("hash", "size"):
        with pytest.raises((ConfigError, InvalidJob), match="hash"):
            plain.audit(compare=compare)
    plain.close()


def test_what_audits_found_is_kept(app, conn):
    """
    How many of each kind and how many were repaired, newest first; for a year.
    """
    source, target = Items(dict.fromkeys(range(10), 1)), LyingTarget()
    mirror = pair(app, source, target)
    assert mirror.audits() == []
    first = mirror.audit(settle=0)
    mirror.repair(first)
    target.write([Document(name, 1, {}) for name in range(3, 12)])
    second = mirror.audit(settle=0)
    kept = mirror.audits()
    assert [(a.missing, a.orphaned, a.total, a.repaired) for a in kept] == [
        (3, 2, 5, 0),
        (10, 0, 10, 10),
    ]
    assert [a.audit_id for a in kept] == [second.audit_id, first.audit_id]
    assert (kept[0].items, kept[0].copies, kept[0].rows) == (10, 9, second.rows)
    assert mirror.audits(limit=1) == kept[:1]
    assert mirror.status().facts.audits == kept
    conn.execute(
        (
            "update forebay.mirror_audit set ended_at = ended_at - interval '366 days' where "
            "audit_id = %s"
        ),
        [first.audit_id],
    )
    trim(conn)
    assert [a.audit_id for a in mirror.audits()] == [second.audit_id]
    mirror.close()


def test_an_audit_counts_also_where_it_cannot_be_kept(app, conn):
    """
    A role that may only read, or a schema that is older: what was found is returned all the same.
    """
    source, target = Items({1: 1}), LyingTarget()
    mirror = pair(app, source, target)
    conn.execute("drop function forebay.record_audit")
    drift = mirror.audit(settle=0)
    assert (drift.missing, drift.audit_id) == ([1], None)
    assert mirror.repair(drift) == 1
    mirror.close()


class Moving(Items):
    """A source in which everything changes right after it was scanned, and is in the target a
    moment later.
    """

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
    mirror = pair(app, Moving(dict.fromkeys(range(20), 1), target, then), target)
    drift = mirror.audit(settle=0)
    assert drift.total == 0
    assert then == "changed, and on the way" or drift.suspects == 20
    mirror.close()


@pytest.mark.parametrize("has_come", [True, False])
def test_a_suspect_is_compared_with_the_version_that_was_scanned(app, has_come):
    """
    A copy that has come up to that one is right, though the item has changed again; one that has
    not is stale.
    """

    class Late(LyingTarget):
        def read(self, ids):
            source.versions[1] = 3
            if has_come:
                self.write([Document(1, 2, {})])
            return super().read(ids)

    source, target = Items({1: 2}), Late()
    target.write([Document(1, 1, {})])
    mirror = pair(app, source, target)
    assert mirror.audit(settle=0).stale == ([] if has_come else [1])
    mirror.close()


@pytest.mark.slow
def test_what_a_running_job_repairs_in_time_is_no_drift(app):
    """
    A suspect has time to become right: that of the grace and a little more, or as is said.
    """
    source, target = Items({1: 2}), LyingTarget()
    target.write([Document(1, 1, {})])
    mirror = pair(app, source, target)
    later = threading.Timer(0.3, lambda: target.write([Document(1, 2, {})]))
    later.start()
    assert mirror.audit(settle=2).total == 0
    target.write([Document(2, 1, {})])
    assert drifted(mirror.audit(settle=0))["orphaned"] == {2}
    mirror.close()


def test_reads_are_bounded(app):
    """
    The rows read per second of both stores together are as many as was said.
    """
    source, target = Items(dict.fromkeys(range(50), 1)), LyingTarget()
    target.write([Document(name, 1, {}) for name in range(50)])
    mirror = pair(app, source, target)
    begun = time.monotonic()
    drift = mirror.audit(page=10, rows_per_second=200)
    assert time.monotonic() - begun >= 0.45
    assert drift.seconds >= 0.45
    mirror.close()


def test_an_audit_that_cannot_be_made_says_why(app):
    """
    A scan out of order would give false alarms, a store that cannot be read none at all.
    """
    source, target = Items({2: 1}), LyingTarget()
    mirror = pair(app, source, target)
    source.scan = lambda _after, _limit: [(2, 1), (1, 1)]
    with pytest.raises(ConfigError, match="returned id 1 after 2"):
        mirror.audit()
    for options in ({"page": 0}, {"rows_per_second": 0}, {"settle": -1}):
        with pytest.raises(ConfigError):
            mirror.audit(**options)
    mirror.close()


@pytest.mark.slow
@pytest.mark.anyio
async def test_drift_planted_under_live_writes_is_found_exactly_and_repaired(
    app, conn, empty_database
):
    """
    Missing, stale and orphaned copies at random, while others are written: the audit finds those
    and no other, and after the repair there is none.
    """
    conn.execute("create table page (id bigint primary key, version bigint)")
    conn.execute("insert into page select n, 1 from generate_series(1, %s) n", [COUNT])
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
    mirror = pair(app, source, target, grace=0.05)
    mirror.changed_many(conn, range(1, COUNT + 1), delay=0)
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
                    await mirror.achanged(mine, name)
                await asyncio.sleep(0.005)

    async with running(app):
        writing = asyncio.create_task(write())
        drift = await asyncio.to_thread(mirror.audit, page=100, settle=6)
        assert drifted(drift) == wrong
        assert drift.suspects > 60
        assert await asyncio.to_thread(mirror.repair, drift) == 60
        ended.set()
        await writing

        async def in_step():
            return (await asyncio.to_thread(mirror.audit, settle=0)).total == 0

        await wait_for_async(in_step)
    assert any(
        (job.tag, job.priority) == ("audit", 1000)
        for job in app.client().jobs(kind="mirror.pages", limit=1000)
    )
    mirror.close()


def test_the_command_tells_and_repairs(database, tmp_path, monkeypatch, capsys):
    """
    With numbers for people, one line for programs, and 1 as long as something is wrong.
    """
    monkeypatch.setenv("FOREBAY_DATABASE_URL", database)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    (tmp_path / "audited_shop.py").write_text(
        "import forebay\n"
        "from forebay.mirror import Document, SQLiteTarget\n"
        "class Items:\n"
        "    def read(self, ids): return [Document(i, 1, {'text': 'mill'}) for i in ids if i < 4]\n"
        "    def scan(self, after, limit): return [(i, 1) for i in range(1, 4) if i > "
        "(after or 0)]\n"
        "app = forebay.App()\n"
        "pages = forebay.Mirror(app, 'pages', source=Items(), target=SQLiteTarget('index.db'))\n"
    )
    target = SQLiteTarget(tmp_path / "index.db")
    target.write([Document(2, 1, {}), Document(7, 1, {})])
    command = ["mirror", "audit", "audited_shop:app", "pages", "--settle", "0s"]
    assert run(command) == 1
    said = capsys.readouterr().out
    assert "3 items, 2 copies, 3 compared again" in said
    assert "--repair" in said
    assert run([*command, "--repair", "--json"]) == 1
    told = json.loads(capsys.readouterr().out)
    assert (told["missing"], told["stale"], told["orphaned"], told["enqueued"]) == (2, 0, 1, 3)
    assert told["ids"]["orphaned"] == [7]
    assert run(["worker", "audited_shop:app", "--until-idle", "--log-level", "error"]) == 0
    assert run(command) == 0
    capsys.readouterr()
    assert run([*command, "--history"]) == 0
    told = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert told[0][:4] == ["audit", "items", "missing", "stale"]
    assert [line[3:8] for line in told[1:]] == [
        ["0", "0", "0", "0", "0"], ["2", "0", "1", "0", "3"], ["2", "0", "1", "0", "0"],
    ]  # fmt: skip
    assert run([*command, "--history", "--json"]) == 0
    assert [audit["repaired"] for audit in json.loads(capsys.readouterr().out)] == [0, 3, 0]
    assert run([*command, "--history", "--repair"]) == 2
    assert run([*command, "--compare", "size"]) == 2
    assert run([*command, "--compare", "hash"]) == 2
    assert "is not declared to compare by hash" in capsys.readouterr().err
    assert run(["mirror", "audit", "audited_shop:app", "nothing"]) == 2
    assert "Declared: pages" in capsys.readouterr().err


def test_a_target_that_cannot_be_scanned_ends_the_audit(app):
    """
    Nothing is said about items then.
    """

    class Down(LyingTarget):
        def scan(self, after, until, limit):
            raise TargetUnavailable("maintenance")

    mirror = pair(app, Items({1: 1}), Down())
    with pytest.raises(TargetUnavailable):
        mirror.audit()
    mirror.close()
