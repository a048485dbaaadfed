"""The target for Groonga, on a real server, where several write at once."""

import asyncio
import itertools
import random
import threading

import pytest

import forebay
from forebay.errors import ConfigError, TargetUnavailable
from forebay.mirror import Document, Gone, GroongaTarget, Rejected, Seen
from forebay.testing import TargetContract
from tests.support.fix_worker import running
from tests.support.waiting import wait_for_async

pytestmark = pytest.mark.anyio


class TestGroongaTarget(TargetContract):
    id_type = "integer"
    _numbers = itertools.count(1)

    @pytest.fixture(autouse=True)
    def _server(self, groonga, groonga_table):
        self.url, self.table = groonga, groonga_table

    def make_target(self):
        return made(self.url, self.table, id_type=self.id_type)


class TestGroongaTargetOfTexts(TestGroongaTarget):
    ids = ('B "b" \\', "a", "ä")
    id_type = "text"


def made(url, table, **options):
    target = GroongaTarget(url, table=table, **options)
    target.create()
    return target


@pytest.fixture
async def target(groonga, groonga_table):
    found = made(groonga, groonga_table)
    yield found
    await found.close()


async def keys(target):
    """Return all rows there are."""
    answer = await target._request(
        "select", {"table": target._table, "output_columns": "_key", "limit": "-1", "cache": "no"}
    )
    return sorted(key for (key,) in answer.checked()["records"])


async def test_words_are_found_best_first_and_the_replaced_and_deleted_are_not(target):
    """
    Full text search, ranked by how often the words come and how rare they are.
    """
    texts = {
        1: "an old mill",
        2: "a mill by a mill race, a mill with a weir",
        3: "a weir",
        4: "水車と堰",
    }
    texts |= dict.fromkeys(range(100, 130), "nothing to be found")
    await target.write([Document(name, 1, {"text": text}) for name, text in texts.items()])
    assert await target.search("mill") == [2, 1]
    assert await target.search("MILL weir") == [2]
    assert await target.search("水車") == [4]
    await target.write([Document(2, 2, {"text": "a pond"})])
    await target.delete([Gone(1)])
    assert await target.search("mill") == []
    assert await target.search("weir OR pond", limit=1) in ([2], [3])
    with pytest.raises(ValueError, match="yntax"):
        await target.search('("mill')


def word(version):
    """Return a word that no other version has, nor begins with."""
    return chr(ord("a") + version) * 4


def writing(url, table, versions, ids, barrier, failures):
    """Write and delete items at these versions, from a thread and with connections of its own."""

    async def write():
        target = GroongaTarget(url, table=table)
        for version in versions:
            await asyncio.to_thread(barrier.wait, 20)
            if version % 5 == 4:
                await target.delete([Gone(name, version) for name in ids])
            else:
                text = f"{word(version)} " * 200
                await target.write(
                    [Document(name, version, {"text": text}, f"d{version}") for name in ids]
                )
        await target.close()

    try:
        asyncio.run(write())
    except BaseException as error:  # told by the test
        barrier.abort()
        failures.append(error)


async def test_the_newest_wins_when_several_write_at_once(groonga, target):
    """
    Four writers on four threads of the server, the same items at the same moment: what is left is
    the newest version, with its own words and digest, and nothing else is found.
    """
    for newest, ids in ((24, [1, 2, 3]), (23, [4, 5, 6])):
        versions = list(range(newest - 19, newest + 1))
        random.shuffle(versions)
        barrier, failures = threading.Barrier(4), []
        threads = [
            threading.Thread(
                target=writing,
                args=(groonga, target._table, versions[n::4], ids, barrier, failures),
            )
            for n in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            await asyncio.to_thread(thread.join)
        assert failures == []
        is_there = newest % 5 != 4
        wanted = {name: Seen(newest, f"d{newest}") for name in ids} if is_there else {}
        assert await target.read(ids) == wanted
        found = {version: await target.search(word(version)) for version in versions}
        found = {version: hits for version, hits in found.items() if hits}
        assert found == ({newest: ids} if is_there else {})
    assert len(await keys(target)) == 6


async def test_what_a_writer_left_halfway_is_cleared_by_the_next_who_looks(target):
    """
    Stopped before it removed the older row, or in the middle of a row: neither counts, and the
    older row is removed.
    """
    await target.write([Document(1, 1, {"text": "old"})])
    await target._load([target._document(Document(1, 2, {"text": "new"}))])
    half = target._document(Document(1, 3, {"text": "half"}))
    del half["whole"]
    await target._load([half])
    assert await target.scan(None, None, 10) == [(1, Seen(2))]
    assert await target.scan(None, None, 1) == [(1, Seen(2))]
    assert await target.read([1]) == {1: Seen(2)}
    assert await keys(target) == ["1:2", "1:3"]
    assert await target.search("old") == await target.search("half") == []
    await target.write([Document(1, 3, {"text": "whole"})])
    assert await keys(target) == ["1:3"]
    assert await target.search("whole") == [1]


async def test_deletions_are_remembered_for_a_time(groonga, groonga_table):
    """
    Tombstones do not pile up, and what they outlived does not come to light again.
    """
    target = made(groonga, groonga_table, tombstone_seconds=-1.0)
    await target.delete([Gone(1)])
    assert await keys(target) == []
    await target.write([Document(1, 1, {})])
    await target.write([Document(2, 1, {})])
    tombstone = target._tombstone(Gone(2))
    await target._load([tombstone])  # and stopped before it removed the other row
    await target._purge()
    assert await keys(target) == ["1:1"]
    assert await target.read([1, 2]) == {1: Seen(1)}
    await target.close()


async def test_what_cannot_be_taken_is_told(groonga, groonga_table, target):
    """
    An id of the other sort is the item's fault; a server or a table that is not there is nobody's.
    """
    errors = await target.write([Document("x", 1, {}), Document(2, 2**63 - 2, {})])
    assert {name: type(error) for name, error in errors.items()} == {"x": Rejected}
    assert await target.read(["x", 2]) == {2: Seen(2**63 - 2)}
    texts = GroongaTarget(groonga, table="Nowhere", id_type="text")
    assert set(await texts.write([Document("a\x01b", 1, {})])) == {"a\x01b"}
    with pytest.raises(TargetUnavailable, match="Nowhere") as caught:
        await texts.write([Document("a", 1, {})])
    assert "create()" in caught.value.hint
    await texts.close()
    away = GroongaTarget("http://127.0.0.1:9")
    with pytest.raises(TargetUnavailable):
        await away.read([1])
    await away.close()
    with pytest.raises(ConfigError, match="NoSuchTokenizer"):
        made(groonga, f"{groonga_table}T", tokenizer="NoSuchTokenizer")
    for options in ({"table": "1 table"}, {"id_type": "bigint"}):
        with pytest.raises(ConfigError):
            GroongaTarget(groonga, **options)


class Items:
    """A source in memory."""

    def __init__(self, versions):
        self.versions = dict(versions)

    def read(self, ids):
        return [
            Document(n, self.versions[n], {"text": f"mill {n} {self.versions[n]}"})
            for n in ids
            if n in self.versions
        ]

    def scan(self, after, limit):
        names = sorted(name for name in self.versions if after is None or name > after)
        return [(name, self.versions[name]) for name in names[:limit]]


@pytest.mark.slow
async def test_a_real_search_server_is_kept_in_step(app, conn, target):
    """
    Written, changed, deleted, by jobs and at once; an audit finds nothing wrong, and what was
    broken by hand.
    """
    source = Items(dict.fromkeys(range(500), 1))
    mirror = forebay.Mirror(app, "pages", source=source, target=target, grace=0, compare="hash")
    with conn.transaction():
        mirror.changed_many(conn, range(500))
    async with running(app):
        await wait_for_async(lambda: mirror.counts.get("completed.up_to_date", 0) == 500)
        source.versions |= {1: 2, 500: 1}
        del source.versions[2]
        assert await mirror.awrite_now(500)
        mirror.changed_many(conn, [1, 2, 500])
        await wait_for_async(lambda: mirror.counts.get("completed.gone", 0) == 1)
        await wait_for_async(lambda: mirror.counts.get("completed.up_to_date", 0) == 502)
    assert (await asyncio.to_thread(mirror.audit, settle=0, page=100)).total == 0
    assert await target.search("500") == [500]
    await target._remove(await target._rows("item == 7"))
    drift = await asyncio.to_thread(mirror.audit, settle=0, page=100)
    assert (drift.missing, drift.total, drift.items) == ([7], 1, 500)
    await asyncio.to_thread(mirror.close)
