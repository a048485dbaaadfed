"""A job of a mirror ends when its item was read in the target and is right, whatever the target
does.
"""

import asyncio
import subprocess
import sys
import threading
import time
import uuid
from contextlib import contextmanager
from itertools import pairwise
from types import SimpleNamespace

import psycopg
import pytest

import forebay
from forebay.errors import ConfigError, InvalidJob
from forebay.mirror import Document, Gone, PostgresTarget, QuerySource, SQLiteTarget
from forebay.mirror._breaker import SharedBreaker
from forebay.testing import LyingTarget
from tests.support.engine import one, state
from tests.support.fix_worker import running
from tests.support.waiting import wait_for_async

pytestmark = pytest.mark.anyio


class Items:
    """A source in memory."""

    def __init__(self, versions=()):
        self.kept = {name: Document(name, version, {}) for name, version in dict(versions).items()}
        self.fails_on = frozenset()

    def read(self, ids):
        if not self.fails_on.isdisjoint(ids):
            raise ValueError("cannot be rendered")
        return [self.kept[name] for name in ids if name in self.kept]

    def scan(self, after, limit):
        raise AssertionError("nobody scans")

    def set(self, name, version):
        self.kept[name] = Document(name, version, {})


@contextmanager
def mirrored(app, source, target, **options):
    """Declare a mirror without a grace and with short waits, and close it at the end."""
    options = {"grace": 0, "interval": 0.01, "timeout": 10, "direct_timeout": 5.0} | options
    mirror = forebay.Mirror(app, "pages", source=source, target=target, **options)
    try:
        yield mirror
    finally:
        if isinstance(target, LyingTarget):
            target.let_go()
        mirror.close()


async def all_done(conn, jobs, seconds=20):
    """Wait until all of these jobs are done."""
    await wait_for_async(
        lambda: all(state(conn, job) == "done" for job in jobs),
        seconds,
        lambda: str({job: state(conn, job) for job in jobs if state(conn, job) != "done"}),
    )


def writes(target, name=None):
    """Return how many calls wrote, an item if one is named."""
    return sum(method == "write" and (name is None or name in ids) for method, ids in target.calls)


async def test_a_job_exists_if_the_change_committed_and_ends_with_the_copy_right(app, conn):
    """
    A change that is rolled back leaves no job; one that is committed is in the target when its job
    is done, not before its grace.
    """
    source, target = Items({1: 3}), LyingTarget()
    with mirrored(app, source, target, grace=60) as mirror:
        with pytest.raises(RuntimeError), conn.transaction():
            mirror.changed(conn, 1, tag="api.create")
            raise RuntimeError
        assert one(conn, "select count(*) from forebay.deferred") == 0
        with conn.transaction():
            later = mirror.changed(conn, 1, tag="api.create")
            at_once = mirror.changed(conn, 1, delay=0)
        async with running(app):
            await all_done(conn, [at_once])
            assert state(conn, later) == "scheduled"
        assert target.versions() == {1: 3}
        wait = one(conn, "select extract(epoch from run_at - enqueued_at) from forebay.deferred")
        assert 59 < wait <= 61
        (status,) = app.client().job(later)
        assert (status.kind, status.queue, status.tag) == ("mirror.pages", "mirror", "api.create")
        assert 29 < (status.expires_at - status.enqueued_at).days <= 30


@pytest.mark.parametrize(
    ("in_source", "in_target", "force", "sent", "left"),
    [
        (None, 4, False, ["delete"], None),
        (None, None, False, [], None),
        (5, None, False, ["write"], 5),
        (5, 4, False, ["write"], 5),
        (5, 5, False, [], 5),
        (5, 5, True, ["write"], 5),
        (None, 4, True, ["delete"], None),
    ],
    ids=[
        "gone, there",
        "gone from both",
        "missing",
        "different",
        "equal",
        "forced",
        "forced, gone",
    ],
)
async def test_what_is_done_about_an_item(app, conn, in_source, in_target, force, sent, left):
    """
    Each case has its action; after an action the target is read again before the job ends.
    """
    source = Items({} if in_source is None else {1: in_source})
    target = LyingTarget()
    if in_target is not None:
        target.write([Document(1, in_target, {})])
    target.calls.clear()
    with mirrored(app, source, target) as mirror:
        job = mirror.changed(conn, 1, force=force)
        async with running(app):
            await all_done(conn, [job])
    methods = [method for method, _ in target.calls]
    assert [method for method in methods if method != "read"] == sent
    assert methods[-1] == "read"
    assert target.versions() == ({} if left is None else {1: left})


async def test_several_jobs_of_an_item_are_one_write_and_end_together(app, conn):
    """
    A thousand changes of an item while the worker was away are one write.
    """
    source, target = Items({1: 1, 2: 1}), LyingTarget()
    with mirrored(app, source, target) as mirror:
        with conn.transaction():
            jobs = [mirror.changed(conn, 1) for _ in range(20)] + [mirror.changed(conn, 2)]
        async with running(app):
            await all_done(conn, jobs)
        assert [ids for method, ids in target.calls if method == "write"] == [[1, 2]]
        assert mirror.counts["mirrored.missing"] == 2
        assert mirror.counts["completed.up_to_date"] == 21


async def churn(app, conn, mirror, source, target, count, seconds=40):
    """Change many items and run until all jobs are done; return those wrong in the target."""
    for name in range(count):
        source.set(name, 1)
    with conn.transaction():
        mirror.changed_many(conn, range(count))
    async with running(app):
        await wait_for_async(
            lambda: mirror.counts.get("completed.up_to_date", 0) >= count,
            seconds,
            lambda: str(mirror.counts),
        )
    return {name for name in range(count) if target.versions().get(name) != 1}


@pytest.mark.slow
@pytest.mark.parametrize(
    "fault",
    [{"drop": 0.05}, {"half": True}, {"drop": 0.05, "lag_seconds": 0.05}],
    ids=["drops 5 %", "takes half of each call", "drops and lags"],
)
async def test_nothing_is_missing_of_what_a_target_only_said_it_took(app, conn, fault):
    """
    Jobs end when their items were read, not when the target said so; each that ended was shown at
    its version before.
    """
    source, target = Items(), LyingTarget(**fault)
    with mirrored(app, source, target, batch_size=100) as mirror:
        assert await churn(app, conn, mirror, source, target, 400) == set()
        assert target.dropped or target.half
        assert all(1 in target.shown[name] for name in range(400))


async def test_without_the_read_back_items_are_lost(app, conn, monkeypatch):
    """
    The test above notices when a job ends with the target's word for it.
    """
    monkeypatch.setattr("forebay.mirror._reconcile.is_proved", lambda *_: True)
    source, target = Items(), LyingTarget(drop=0.05)
    with mirrored(app, source, target, batch_size=100) as mirror:
        assert await churn(app, conn, mirror, source, target, 400)


@pytest.mark.slow
async def test_what_cannot_be_read_yet_is_not_wrong(app, conn):
    """
    A target that shows its writes late is waited for, and not written to again.
    """
    source, target = Items({1: 1}), LyingTarget(lag_seconds=1.5)
    with mirrored(app, source, target) as mirror:
        job = mirror.changed(conn, 1)
        async with running(app):
            await wait_for_async(lambda: writes(target) == 1)
            again = mirror.changed(conn, 1)  # comes while the copy is not shown
            await all_done(conn, [job, again])
        assert writes(target) == 1
        assert mirror.counts["not_yet"] >= 1
        assert "rejected" not in mirror.counts
        assert one(conn, "select count(*) from forebay.log where attempt > 0") == 0


async def test_a_forced_write_is_made_once_and_read_later(app, conn):
    """
    Also where the copy can be read only later, and looks right before the write.
    """
    source, target = Items({1: 1}), LyingTarget()
    target.write([Document(1, 1, {})])
    target.calls.clear()
    target.lag_seconds = 0.1
    with mirrored(app, source, target) as mirror:
        job = mirror.changed(conn, 1, force=True)
        async with running(app):
            await all_done(conn, [job])
    assert [method for method, _ in target.calls] == ["write", "read"]


@pytest.mark.slow
async def test_broken_off_calls_are_repeated_until_it_is_right(app, conn):
    """
    A call without an answer may have had its effect or not: both are found out by looking.
    """
    source, target = Items(dict.fromkeys(range(20), 1)), LyingTarget(resetting=True)
    with mirrored(app, source, target) as mirror:
        with conn.transaction():
            jobs = [mirror.changed(conn, name) for name in range(20)]
        async with running(app):
            await wait_for_async(lambda: mirror.counts.get("unavailable", 0) >= 1)
            target.resetting = False
            await all_done(conn, jobs)
        assert target.versions() == dict.fromkeys(range(20), 1)
        assert one(conn, "select count(*) from forebay.log where attempt > 0") == 0


@pytest.mark.slow
async def test_a_target_that_never_answers_costs_no_attempt(app, conn):
    """
    A call has its time; then its jobs are postponed, and when the target answers again they are
    done.
    """
    source, target = Items({1: 1}), LyingTarget(hanging=True)
    with mirrored(app, source, target, timeout=0.1) as mirror:
        job = mirror.changed(conn, 1)
        async with running(app):
            await wait_for_async(lambda: mirror.counts.get("timeout", 0) >= 1)
            target.let_go()
            await all_done(conn, [job])
        assert one(conn, "select count(*) from forebay.log where attempt > 0") == 0


async def test_refused_items_back_off_and_the_others_are_done(app, conn):
    """
    What a bulk call says of one item concerns that item alone, and its job keeps the reason.
    """
    source, target = Items(dict.fromkeys(range(10), 1)), LyingTarget(refused=frozenset({3}))
    with mirrored(app, source, target, interval=60) as mirror:
        with conn.transaction():
            jobs = [mirror.changed(conn, name) for name in range(10)]
        async with running(app):
            await all_done(conn, jobs[:3] + jobs[4:])
            await wait_for_async(lambda: state(conn, jobs[3]) == "retrying")
        (status,) = app.client().job(jobs[3])
        assert status.attempt == 2
        assert "3 is refused" in str(app.client().job_history(jobs[3])[0].errors)


@pytest.mark.parametrize("where", ["source", "target"])
async def test_items_that_make_whole_calls_fail_starve_nobody(app, conn, where):
    """
    More of them than a pass takes, in front of all others and with a better priority: the others
    are done all the same.
    """
    bad, good = range(100, 130), range(10)
    source, target = Items(dict.fromkeys([*bad, *good], 1)), LyingTarget()
    if where == "source":
        source.fails_on = frozenset(bad)
    else:
        target.poison = frozenset(bad)
    with mirrored(app, source, target, batch_size=20, interval=60) as mirror:
        with conn.transaction():
            for name in bad:
                mirror.changed(conn, name, priority=0)
            jobs = [mirror.changed(conn, name) for name in good]
        async with running(app):
            await all_done(conn, jobs)
            await wait_for_async(lambda: mirror.counts.get("rejected", 0) == len(bad))
        assert target.versions() == dict.fromkeys(good, 1)


class Gate(Items):
    """A source that answers, but lets the answer out only when it is told to."""

    def __init__(self, versions):
        super().__init__(versions)
        self.holds = True
        self.inside = threading.Event()
        self.opened = threading.Event()

    def read(self, ids):
        found = super().read(ids)
        if self.holds:
            self.holds = False
            self.inside.set()
            assert self.opened.wait(20)
        return found


async def after_a_late_writer(app, conn, target, *, first, deleted):
    """
    Let somebody read item 1 and be stopped, have it changed to version 2 or deleted, and proved;
    then let him go on. Return what the target has.
    """
    source = Gate({1: 1})
    with mirrored(app, source, target, direct_timeout=20, timeout=20) as mirror:
        async with running(app):
            if first == "direct write":
                old = asyncio.create_task(mirror.awrite_now(1))
            else:
                old = mirror.changed(conn, 1)
            await wait_for_async(source.inside.is_set)
            if deleted:
                target.write([Document(1, 1, {})])
                del source.kept[1]
            else:
                source.set(1, 2)
            await all_done(conn, [mirror.changed(conn, 1)])
            target.calls.clear()
            source.opened.set()
            if first == "direct write":
                await old
            else:
                await wait_for_async(lambda: writes(target) == 1)
                late = target.versions()
                await all_done(conn, [old])
                return late
    return target.versions()


@pytest.mark.parametrize("deleted", [False, True], ids=["changed", "deleted"])
@pytest.mark.parametrize("first", ["direct write", "another pass"])
async def test_who_was_stopped_with_an_old_document_does_no_harm(app, conn, first, deleted):
    """
    An older document never overwrites a newer one, and does not bring a deleted item back.
    """
    late = await after_a_late_writer(app, conn, LyingTarget(), first=first, deleted=deleted)
    assert late == ({} if deleted else {1: 2})


class Forgetful(LyingTarget):
    """Takes whatever comes last, and forgets what it deleted."""

    def _keep(self, name, version, digest, *, is_gone):
        self._kept[name] = [(0.0, version, digest, is_gone)]


async def test_without_the_fence_the_late_document_wins(app, conn):
    """
    The test above notices when nobody compares versions.
    """
    late = await after_a_late_writer(app, conn, Forgetful(), first="direct write", deleted=False)
    assert late == {1: 1}


async def test_a_copy_that_is_newer_than_the_source_is_told_and_left(app, conn):
    """
    The source went back, or is a replica that lags: an older document does not overwrite it.
    """
    source, target = Items({1: 4}), LyingTarget()
    target.write([Document(1, 9, {})])
    with mirrored(app, source, target, interval=0.1) as mirror:
        job = mirror.changed(conn, 1)
        async with running(app):
            await wait_for_async(lambda: mirror.counts.get("ahead", 0) >= 1)
            assert target.versions() == {1: 9}
            source.set(1, 9)
            await all_done(conn, [job])
    assert "version 9, the source 4" in str(app.client().job_history(job)[0].errors)


@pytest.mark.slow
async def test_copies_are_compared_as_was_said(app, conn, tmp_path):
    """
    By hash a changed body is found under the same version; a function decides by itself.
    """
    source = Items()
    target = SQLiteTarget(tmp_path / "index.db")
    target.write([Document(1, 1, {"text": "old"}, "no such digest")])
    source.kept[1] = Document(1, 1, {"text": "new"})
    with mirrored(app, source, target, compare="hash") as mirror:
        job = mirror.changed(conn, 1)
        async with running(app):
            await all_done(conn, [job])
        assert target.search("new") == [1]
        assert mirror.counts["mirrored.different"] == 1
    other = forebay.Mirror(
        app,
        "other",
        source=source,
        target=target,
        compare=lambda _, seen: seen.version == 1,
        grace=0,
    )
    job = other.changed(conn, 1)
    async with running(app):
        await all_done(conn, [job])
    assert other.counts == {"completed.up_to_date": 1}
    other.close()


async def test_a_direct_write_is_there_at_once_and_the_job_only_looks(app, conn):
    """
    When all is well the target has it before the job begins.
    """
    source, target = Items({1: 1}), LyingTarget()
    with mirrored(app, source, target) as mirror:
        assert await asyncio.to_thread(mirror.write_now, 1)
        assert target.versions() == {1: 1}
        del source.kept[1]
        assert await mirror.awrite_now(1)
        assert target.versions() == {}
        job = mirror.changed(conn, 1)
        async with running(app):
            await all_done(conn, [job])
        assert mirror.counts == {"direct.accepted": 2, "completed.gone": 1}


async def test_a_direct_write_never_raises_and_never_waits_long(app):
    """
    With a target that never answers each call returns within its deadline, and after some of them
    at once.
    """
    target = LyingTarget(hanging=True)
    with mirrored(app, Items({1: 1}), target, direct_timeout=0.1) as mirror:
        mirror._direct._breaker = SharedBreaker(failures=5, seconds=60)
        for write in (mirror.write_now, lambda item: asyncio.run(mirror.awrite_now(item))) * 3:
            begun = time.monotonic()
            assert await asyncio.to_thread(write, 1) is False
            assert time.monotonic() - begun < 5
        assert mirror.counts["direct.timeout"] == 5
        assert mirror.counts["direct.skipped"] == 1
        assert mirror.write_now(object()) is False
        target.let_go()
    broken = Items({1: 1})
    broken.fails_on = frozenset({1})
    app.mirrors.clear()
    with mirrored(app, broken, LyingTarget()) as mirror:
        assert mirror.write_now(1) is False
        assert mirror.write_now(None) is False
        assert mirror.counts == {"direct.failed": 2}


def test_a_backlog_is_postponed_in_line_while_a_store_is_away(app, monkeypatch):
    """
    What two passes postponed comes back after the breaker's wait one behind the other, at a bounded
    rate; when the store has answered, the next that is postponed does not wait behind those.
    """
    monkeypatch.setattr("forebay.mirror._reconcile.POSTPONED_PER_SECOND", 10.0)
    source, target = Items(dict.fromkeys(range(60), 1)), LyingTarget(hanging=True)
    with mirrored(app, source, target, timeout=0.05) as mirror:
        reconciler = mirror._reconciler
        reconciler.breaker = breaker = SharedBreaker(failures=1, seconds=60)

        def waits(items):
            jobs = [
                SimpleNamespace(args={"id": item}, tag=None, priority=0, job_id=item, enqueued_at=0)
                for item in items
            ]
            endings = mirror._loop_thread.submit(reconciler.run(jobs)).result()
            return [None if end is None else end.delay for end in endings]

        first, second = waits(range(30)), waits(range(30, 60))
        assert mirror.counts["postponed"] == 60
        assert first[0] >= 59
        assert all(b - a == pytest.approx(0.1, abs=0.05) for a, b in pairwise(first))
        assert second[0] == pytest.approx(first[-1] + 0.1, abs=2)
        assert second[-1] == pytest.approx(second[0] + 2.9, abs=0.5)
        target.let_go()
        breaker.succeeded()
        assert waits(range(60)) == [None] * 60
        source.kept[1] = Document(1, 2, {})
        target.hanging = True
        assert waits([1])[0] <= 60


def test_calls_that_fail_side_by_side_count_once():
    """
    Sixteen calls that hang at the same time open the breaker for its first wait, not for its
    longest.
    """
    now = [0.0]
    breaker = SharedBreaker(failures=5, seconds=1, seconds_max=10, clock=lambda: now[0])
    for _ in range(16):
        breaker.failed()
    assert breaker.wait_seconds == 1
    for wait in (2, 4, 8, 10, 10):
        now[0] += breaker.wait_seconds
        assert breaker.allows()
        assert not breaker.allows()
        breaker.failed()
        breaker.failed()
        assert breaker.wait_seconds == wait


FORKED = """
import os, sys
import forebay
from forebay.mirror import Document
from forebay.testing import LyingTarget

class Items:
    def read(self, ids): return [Document(each, 1, {}) for each in ids]
    def scan(self, after, limit): return []

target = LyingTarget()
mirror = forebay.Mirror(forebay.App(), "pages", source=Items(), target=target, direct_timeout=10)
assert mirror.write_now(1)
child = os.fork()
if child == 0:
    mirror.write_now(2)
    os._exit(0 if target.versions() == {1: 1, 2: 1} else 1)
assert os.waitpid(child, 0)[1] == 0
assert mirror.write_now(3)
mirror.close()
assert mirror.write_now(4)
mirror.close()
"""


@pytest.mark.slow
def test_a_forked_process_writes_for_itself_and_a_closed_one_begins_anew():
    """
    As web servers do that load the application before they fork.
    """
    ended = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FORKED],
        check=False,
        capture_output=True,
        text=True,
        timeout=50,
    )
    assert (ended.returncode, ended.stderr) == (0, "")


def test_what_hangs_is_left_behind_when_it_ends(app):
    """
    Closing does not wait for a call that never comes back.
    """
    target = LyingTarget(hanging=True)
    mirror = forebay.Mirror(
        app, "pages", source=Items({1: 1}), target=target, direct_timeout=0.05, timeout=60
    )
    assert not mirror.write_now(1)
    mirror.close()
    target.let_go()


async def test_every_kind_of_id_and_connection(app, conn, database):
    """
    Numbers, texts and UUIDs; plain and asynchronous connections; one and many. What is no id is
    refused, at the door or, when it came by plain SQL, as a dead letter.
    """
    name = uuid.uuid4()
    source = Items({1: 1, "two": 1, str(name): 1, 4: 1})
    target = LyingTarget()
    with mirrored(app, source, target) as mirror:
        jobs = [mirror.changed(conn, 1)]
        async with await psycopg.AsyncConnection.connect(database) as other:
            jobs += [await mirror.achanged(other, "two", priority=5)]
            assert await mirror.achanged_many(other, [name, 4], tag="import") == 2
        for bad in (None, 1.5, True, "", "x" * 501):
            with pytest.raises(InvalidJob, match="id"):
                mirror.changed(conn, bad)
        bad = one(conn, "select forebay.enqueue('mirror.pages', '{}', queue => 'mirror')")
        async with running(app):
            await all_done(conn, jobs)
            await wait_for_async(lambda: len(target.versions()) == 4)
            await wait_for_async(lambda: state(conn, bad) == "dead")


@pytest.mark.slow
async def test_a_table_and_a_search_in_another_database(app, conn, empty_database):
    """
    The whole of it with real stores: written, changed, flagged as deleted, deleted.
    """
    conn.execute(
        "create table page (id bigint primary key, version bigint, text text, hidden bool)"
    )
    source = QuerySource(
        app.dsn,
        read="select id, version, text, hidden as gone from page where id = any(%(ids)s);",
        scan=(
            "select id, version from page where id > coalesce(%(after)s, 0) order by id limit "
            "%(limit)s"
        ),
    )
    target = PostgresTarget(empty_database)
    target.create()

    def found():
        with psycopg.connect(empty_database) as other:
            rows = other.execute("select id from documents where words @@ to_tsquery('mill')")
            return sorted(name for (name,) in rows)

    with mirrored(app, source, target) as mirror:

        async def changed(statement, *names):
            with conn.transaction():
                conn.execute(statement)
                jobs = [mirror.changed(conn, name) for name in names]
            await all_done(conn, jobs)

        async with running(app):
            await changed(
                "insert into page select n, 1, 'a mill', false from generate_series(1, 4) n",
                1,
                2,
                3,
                4,
            )
            assert found() == [1, 2, 3, 4]
            await changed("update page set text = 'a weir', version = 2 where id = 1", 1)
            await changed("update page set hidden = true, version = 2 where id = 2", 2)
            await changed("delete from page where id = 3", 3)
            assert found() == [4]
            await changed("update page set hidden = false, version = 3 where id = 2", 2)
            assert found() == [2, 4]
    assert await source_scan(source) == [(1, 2), (2, 3), (4, 1)]


async def source_scan(source):
    """Return what the source scans, on this loop."""
    found = await source.scan(None, 10)
    assert await source.scan(2, 1) == found[2:3]
    await source.close()
    return found


def test_what_cannot_be_served_is_refused_where_it_is_declared(app):
    """
    A typed error names the mirror and what is wrong.
    """
    source, target = Items(), LyingTarget()
    for options, problem in [
        ({"batch_size": 0}, "batch_size is 0"),
        ({"compare": "size"}, "compare"),
        ({"grace": -1}, "grace"),
        ({"timeout": 0}, "timeout"),
        ({"source": object()}, r"no read\(\)"),
        ({"target": source}, r"no write\(\)"),
    ]:
        with pytest.raises(ConfigError, match=problem):
            forebay.Mirror(app, "pages", **{"source": source, "target": target} | options)
    forebay.Mirror(app, "pages", source=source, target=target)
    with pytest.raises(ConfigError, match="declared twice"):
        forebay.Mirror(app, "pages", source=source, target=target)


def test_a_version_is_a_whole_number(app):
    """
    A source that gives something else is told so, for that item.
    """
    from forebay.mirror._model import checked_entries

    assert checked_entries([1, 2], [Document(2, 7, {})]) == {1: Gone(1), 2: Document(2, 7, {})}
    for entry in (Document(1, 1.5, {}), Document(1, -1, {}), Gone(1, 2**63 - 1), "x"):
        with pytest.raises(TypeError):
            checked_entries([1], [entry])
