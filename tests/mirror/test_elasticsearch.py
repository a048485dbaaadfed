"""The target for Elasticsearch and OpenSearch, on a stand-in for both that refuses what they
refuse.
"""

import socket
import sys

import pytest

import forebay
from forebay.errors import ConfigError, TargetUnavailable
from forebay.mirror import Document, Drift, ElasticsearchTarget, Gone, Rejected, Seen
from forebay.testing import TargetContract
from tests.support.fix_worker import running
from tests.support.search_engine import SearchEngine
from tests.support.waiting import wait_for_async

pytestmark = pytest.mark.anyio


def made(url, **options):
    """Return a target with its index, which is refreshed twenty times a second."""
    target = ElasticsearchTarget(url, "pages", **{"refresh_seconds": 0.05, "timeout": 5} | options)
    target.create()
    return target


class TestElasticsearchTarget(TargetContract):
    options = {"refresh_seconds": 0.02}  # noqa: RUF012

    @pytest.fixture(autouse=True)
    def _engine(self):
        self.engine = SearchEngine()
        with self.engine.running() as self.url:
            yield

    def make_target(self):
        return made(self.url, **self.options)


class TestElasticsearchTargetReadByIds(TestElasticsearchTarget):
    # Reads show at once what was written; scans are searches, and need the refresh all the same.
    options = {"realtime": True, "refresh_seconds": 0.001}  # noqa: RUF012


class TestElasticsearchTargetOfTexts(TestElasticsearchTarget):
    ids = ("B", "a", "ä")
    options = {"id_type": "keyword", "refresh_seconds": 0.02}  # noqa: RUF012


async def searched(target, engine, words):
    """Return the ids that a search of the alias finds, after a refresh."""
    for index in engine.indexes.values():
        index.refresh(engine.now())
    answer = await target._http.send(
        "POST",
        f"/{target.alias}/_search",
        body=b'{"query": {"match": {"text": "%b"}}, "sort": ["forebay.id"]}' % words.encode(),
    )
    return [hit["_source"]["forebay"]["id"] for hit in answer.body["hits"]["hits"]]


async def test_a_deletion_is_remembered_when_the_server_has_forgotten_it(engine, url):
    """
    The server forgets deletions after a minute, and when it starts anew; ours are documents until
    their time has come.
    """
    target = made(url, realtime=True)
    await target.write([Document(1, 4, {"text": "a mill"})])
    await target.delete([Gone(1)])
    engine.skip(61)
    engine.restart()
    await target.write([Document(1, 5, {"text": "a mill"})])
    assert await target.read([1]) == {}
    assert await target.scan(None, None, 10) == []
    assert await searched(target, engine, "mill") == []
    await target.close()


async def test_without_tombstones_the_late_document_would_come_back(engine, url):
    """
    The test above would notice: with the server's own deletion, an older document is taken a minute
    later.
    """
    from forebay.mirror.targets import _bulk

    target = made(url, realtime=True)
    await target.write([Document(1, 4, {})])
    meta = b'{"delete":{"_id":"1","version":10,"version_type":"external"}}\n'
    await target._bulk([_bulk.Action(1, "delete", meta)])
    await target.write([Document(1, 4, {})])
    assert await target.read([1]) == {}
    engine.skip(61)
    await target.write([Document(1, 4, {})])
    assert await target.read([1]) == {1: Seen(4)}
    await target.close()


async def test_tombstones_are_removed_after_their_time(engine, url):
    """
    They do not pile up; one that has been overwritten since stays what it became.
    """
    target = made(url, realtime=True, tombstone_seconds=-1.0, refresh_seconds=60)
    await target.delete([Gone(1), Gone(2), Gone(3, 5)])
    for index in engine.indexes.values():
        index.refresh(engine.now())
    await target.write([Document(3, 6, {})])  # the search below does not see it yet
    target._purge_at = 0.0
    await target.delete([])
    assert set(engine.sources("pages")) == {"3"}
    assert await target.read([1, 2, 3]) == {3: Seen(6)}
    engine.skip(61)
    await target.write([Document(1, 1, {})])
    assert await target.read([1]) == {1: Seen(1)}
    await target.close()


async def test_the_errors_of_single_items_are_told(engine, url):
    """
    A request that answers 200 may have failed for some of its items: only those are told, and the
    others are there.
    """
    target = made(url, realtime=True, mappings={"properties": {"pages": {"type": "long"}}})
    await target.write([Document(4, 9, {})])
    errors = await target.write(
        [
            Document(1, 1, {"pages": 3}),
            Document(2, 1, {"pages": "many"}),
            Document(3, 1, {"forebay": 1}),
            Document(4, 8, {"pages": 1}),  # older: no error
            Document(5, 2**63 - 2, {}),
            Document(6, 1, "no fields"),
            Document(7, 1, {"pages": object()}),
        ]
    )
    assert set(errors) == {2, 3, 5, 6, 7}
    assert "document_parsing_exception: failed to parse field [pages]" in str(errors[2])
    assert all(isinstance(errors[name], Rejected) for name in (2, 3, 5, 6))
    assert await target.read([*range(1, 8)]) == {1: Seen(1), 4: Seen(9)}
    await target.close()
    texts = made(url, realtime=True, id_type="keyword", timeout=5)
    assert set(await texts.write([Document("ä" * 300, 1, {})])) == {"ä" * 300}
    assert set(await texts.delete([Gone("ä" * 300)])) == {"ä" * 300}
    assert await texts.read(["ä" * 300]) == {}
    await texts.close()


async def test_items_without_room_are_sent_again(engine, url, monkeypatch):
    """
    429 of an item is no fault of it: it is sent again, alone; when that does not help, nothing is
    said about it.
    """
    monkeypatch.setattr("forebay.mirror.targets._elasticsearch._AGAIN_SECONDS", (0.0, 0.0))
    target = made(url, realtime=True)
    engine.item_errors = {"2": [429, 429], "3": [400]}
    errors = await target.write([Document(name, 1, {}) for name in (1, 2, 3)])
    assert set(errors) == {3}
    assert set(await target.read([1, 2, 3])) == {1, 2}
    sent = [r for r in engine.requests if r.path == "/pages/_bulk"]
    assert [len(r.lines) for r in sent] == [6, 2, 2]
    engine.item_errors = {"4": [429] * 3}
    with pytest.raises(TargetUnavailable, match="1 items had no capacity"):
        await target.write([Document(4, 1, {})])
    await target.close()


@pytest.mark.parametrize("status", [403, 500, 503])
async def test_an_item_that_failed_for_the_servers_reasons_is_not_to_blame(engine, url, status):
    """
    A lost shard or a full disk says nothing about an item.
    """
    target = made(url)
    engine.item_errors = {"1": [status]}
    with pytest.raises(TargetUnavailable, match="item 1"):
        await target.write([Document(1, 1, {})])
    await target.close()


@pytest.mark.slow
@pytest.mark.parametrize("fault", [401, 429, 502, 503, "html", "hang", "reset"])
async def test_a_server_that_cannot_be_asked_says_nothing_about_items(engine, url, fault):
    """
    Whatever goes wrong with a request as a whole: the target is unavailable, and works again when
    the server does.
    """
    target = made(url, realtime=True, timeout=2 if fault == "hang" else 10)
    for call, arguments in (
        (target.read, [[1]]),
        (target.write, [[Document(1, 1, {})]]),
        (target.delete, [[Gone(2)]]),
        (target.scan, [None, None, 10]),
    ):
        engine.answers = [fault]
        with pytest.raises(TargetUnavailable):
            await call(*arguments)
        if fault == "hang":
            break
    engine.continues.set()
    await target.write([Document(1, 1, {})])
    assert await target.read([1]) == {1: Seen(1)}
    await target.close()


async def test_a_request_that_is_refused_as_a_whole_leaves_the_blame_open(engine, url):
    """
    The caller makes it in halves then.
    """
    target = made(url)
    engine.answers = [413]
    with pytest.raises(Rejected, match="413"):
        await target.write([Document(1, 1, {})])
    await target.close()


async def test_nobody_is_there(url):
    """
    A refused connection, a missing alias and half a search are told as what they are; a missing
    alias is not made by a write.
    """
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        away = ElasticsearchTarget(f"http://127.0.0.1:{taken.getsockname()[1]}", "pages")
        with pytest.raises(TargetUnavailable, match="127"):
            await away.read([1])
        with pytest.raises(TargetUnavailable):
            away.create()
        await away.close()
    target = ElasticsearchTarget(url, "pages")
    with pytest.raises(TargetUnavailable, match="no such index"):
        await target.read([1])
    with pytest.raises(TargetUnavailable, match="not an alias"):
        await target.write([Document(1, 1, {})])
    with pytest.raises(TargetUnavailable) as caught:
        await target.scan(None, None, 10)
    assert "create()" in caught.value.hint
    await target.close()


async def test_half_a_search_is_none(engine, url):
    """
    A shard that is missing would look like missing documents.
    """
    target = made(url)
    engine.failed_shards = 1
    with pytest.raises(TargetUnavailable):
        await target.scan(None, None, 10)
    await target.close()


async def test_long_requests_are_divided(engine, url, monkeypatch):
    """
    No request is longer than what hosted servers take.
    """
    monkeypatch.setattr("forebay.mirror.targets._bulk.requests.__defaults__", (1000,))
    target = made(url, realtime=True)
    assert await target.write([Document(n, 1, {"text": "x" * 300}) for n in range(7)]) == {}
    assert set(await target.read(range(7))) == set(range(7))
    assert all(len(r.body) <= 1000 for r in engine.requests if r.path.endswith("_bulk"))
    await target.close()


async def test_what_is_read_back_is_what_searches_find(engine, url):
    """
    A read does not show what has not been refreshed, as searches do not; with realtime it does.
    """
    target = made(url, refresh_seconds=60)
    assert target.lag_seconds == 120
    await target.write([Document(1, 1, {}, "f00d")])
    assert await target.read([1]) == {}
    engine.skip(60)
    assert await target.read([1]) == {1: Seen(1, "f00d")}
    await target.close()


async def test_an_index_is_rebuilt_behind_the_alias(engine, url):
    """
    The successor is written beside the old index, takes its name in one step when nothing is wrong,
    and can have one itself.
    """
    old = made(url, realtime=True)
    await old.write([Document(1, 1, {"text": "a mill"})])
    with pytest.raises(ConfigError, match="is not a successor"):
        old.take_over(Drift())
    for number in (2, 3):
        new = old.successor(mappings={"properties": {"text": {"type": "text"}}})
        new.create()
        new.create()
        await new.write([Document(1, number, {"text": "a weir"}), Document(2, 1, {})])
        await new.delete([Gone(2)])
        assert await old.read([1]) == {1: Seen(number - 1)}
        with pytest.raises(ConfigError, match="1 items are still wrong"):
            new.take_over(Drift(missing=[7]))
        engine.requests.clear()
        new.take_over(Drift())
        changes = [r for r in engine.requests if r.method != "GET"]
        assert [r.path for r in changes] == ["/_aliases"]
        assert list(engine.indexes) == [f"pages-{number}"]
        assert await old.read([1]) == {1: Seen(number)}
        assert await searched(old, engine, "weir") == [1]
        # Somebody who still writes to both does no harm.
        await new.write([Document(1, number, {"text": "a weir"})])
        new.take_over(Drift())
        await new.close()
    await old.close()


async def test_an_old_index_may_be_kept(engine, url):
    """
    It loses its alias and nothing else.
    """
    old = made(url)
    new = old.successor()
    new.create()
    new.take_over(Drift(), drop=False)
    assert sorted(engine.indexes) == ["pages-1", "pages-2"]
    assert list(engine.aliases["pages"]) == ["pages-2"]


async def test_making_it_again_changes_nothing(engine, url):
    """
    Each process may do it when it starts; an index that lost its alias gets it back.
    """
    made(url)
    before = len(engine.requests)
    made(url)
    assert {r.method for r in engine.requests[before:]} == {"GET"}
    engine.aliases.clear()
    made(url)
    assert list(engine.aliases["pages"]) == ["pages-1"]


def test_what_the_server_refuses_to_make_is_told(engine, url):
    """
    A wrong mapping, an index in the alias's place, and arguments that cannot be.
    """
    with pytest.raises(ConfigError, match="No handler for type"):
        made(url, mappings={"properties": {"text": {"type": "txt"}}})
    with pytest.raises(ConfigError, match="alias"):
        ElasticsearchTarget(url, "pages").successor().create()
    for arguments, options in [
        (("ftp://somewhere", "pages"), {}),
        ((url, "Pages!"), {}),
        ((url, "pages"), {"id_type": "text"}),
        ((url, "pages"), {"refresh_seconds": 0}),
    ]:
        with pytest.raises(ConfigError):
            ElasticsearchTarget(*arguments, **options)
    with pytest.raises(TargetUnavailable) as caught:
        ElasticsearchTarget("http://me:secret@127.0.0.1:9", "pages").create()
    assert "secret" not in str(caught.value)


def test_without_the_library_it_is_said_what_to_install(monkeypatch):
    """
    Where the target is declared, not when a job runs.
    """
    monkeypatch.setitem(sys.modules, "aiohttp", None)
    with pytest.raises(ConfigError, match="aiohttp is not installed") as caught:
        ElasticsearchTarget("http://localhost:9200", "pages")
    assert "forebay[elasticsearch]" in caught.value.hint


class Items:
    """A source in memory, all at version 1."""

    def __init__(self, count):
        self.count = count

    def read(self, ids):
        return [Document(name, 1, {"text": "a mill"}) for name in ids if name < self.count]

    def scan(self, after, limit):
        first = 0 if after is None else after + 1
        return [(name, 1) for name in range(first, self.count)][:limit]


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["elasticsearch"], indirect=True)
async def test_nothing_is_missing_of_what_a_server_only_said_it_took(app, conn, engine, url):
    """
    With a server that answers 200 and drops every twentieth item once, all are there when all jobs
    have ended.
    """
    unlucky = {str(name) for name in range(0, 300, 20)}

    def drops(name):
        lucky = name not in unlucky
        unlucky.discard(name)
        return not lucky

    engine.drops = drops
    mirror = forebay.Mirror(
        app, "pages", source=Items(300), target=made(url), grace=0, interval=0.01, batch_size=100
    )
    with conn.transaction():
        mirror.changed_many(conn, range(300))
    async with running(app):
        await wait_for_async(
            lambda: mirror.counts.get("completed.up_to_date", 0) >= 300,
            30,
            lambda: str(mirror.counts),
        )
    assert len(engine.sources("pages")) == 300
    assert mirror.counts["unproved"] >= 15
    drift = mirror.audit(settle=0.1)
    assert (drift.total, drift.copies) == (0, 300)
    mirror.close()
