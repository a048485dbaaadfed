"""Every target of ours keeps the contract that users' targets are tested with."""

import inspect

import psycopg
import pytest

from forebay.errors import DatabaseUnavailable, TargetUnavailable
from forebay.mirror import Document, PostgresTarget, Seen, SQLiteTarget
from forebay.testing import LyingTarget, TargetContract


class TestSQLiteTarget(TargetContract):
    @pytest.fixture(autouse=True)
    def _file(self, tmp_path):
        self.path = tmp_path / "index.db"

    def make_target(self):
        return SQLiteTarget(self.path)


class TestSQLiteTargetOfTexts(TestSQLiteTarget):
    ids = ("B", "a", "ä")

    def make_target(self):
        return SQLiteTarget(self.path, id_type="text")


class TestPostgresTarget(TargetContract):
    id_type = "bigint"

    @pytest.fixture(autouse=True)
    def _database(self, empty_database):
        self.dsn = empty_database

    def make_target(self):
        target = PostgresTarget(self.dsn, id_type=self.id_type)
        target.create()
        return target


class TestPostgresTargetOfTexts(TestPostgresTarget):
    ids = ("B", "a", "ä")
    id_type = "text"


class TestHonestTarget(TargetContract):
    def make_target(self):
        return LyingTarget()


class TestLaggingTarget(TargetContract):
    def make_target(self):
        return LyingTarget(lag_seconds=0.01)


class Forgetful(LyingTarget):
    """Takes whatever comes last, as a plain store would, and forgets what it deleted."""

    def _keep(self, name, version, digest, *, is_gone):
        self._kept[name] = [] if is_gone else [(0.0, version, digest, is_gone)]


@pytest.mark.parametrize(
    ("make", "broken"),
    [
        (
            Forgetful,
            {
                "test_an_older_document_never_overwrites_a_newer_one",
                "test_an_older_document_does_not_bring_a_deleted_item_back",
                "test_an_older_deletion_leaves_a_newer_document",
            },
        ),
        (lambda: LyingTarget(drop=1.0), None),
        (lambda: LyingTarget(half=True), None),
    ],
    ids=["forgetful", "drops all", "takes half"],
)
def test_the_contract_finds_what_is_wrong(make, broken):
    """
    A store without a fence, and one that lies, do not pass.
    """

    class Wrong(TargetContract):
        def make_target(self):
            return make()

    failed = set()
    for name, test in inspect.getmembers(Wrong(), inspect.ismethod):
        if name.startswith("test_"):
            try:
                test()
            except AssertionError:
                failed.add(name)
    assert failed
    assert broken is None or failed == broken


def test_words_are_found_and_the_deleted_are_not(tmp_path, empty_database):
    """
    Both targets of ours are full text searches: what was replaced or deleted is not found any more.
    """
    lite = SQLiteTarget(tmp_path / "index.db")
    lite.write([Document(1, 1, {"text": "an old mill"}), Document(2, 1, {"text": "a weir"})])
    lite.write([Document(1, 2, {"text": "a new weir", "tags": ["water"]})])
    assert set(lite.search("weir")) == {1, 2}
    assert lite.search("mill") == []
    assert lite.search("water") == [1]


@pytest.mark.anyio
async def test_postgresql_finds_words_by_their_stems(empty_database):
    """
    The table is searched with the user's own connection.
    """
    target = PostgresTarget(empty_database, text=lambda body: body["text"])
    target.create()
    target.create()
    await target.write([Document(1, 1, {"text": "mills", "more": "weirs"}, "d1")])
    with psycopg.connect(empty_database) as conn:

        def found(words):
            rows = conn.execute(
                "select id from documents where words @@ websearch_to_tsquery('english', %s)",
                [words],
            )
            return [name for (name,) in rows]

        assert found("mill") == [1]
        assert found("weir") == []
    assert await target.read([1]) == {1: Seen(1, "d1")}
    await target.close()


@pytest.mark.anyio
async def test_a_store_that_cannot_be_asked_says_so(tmp_path, empty_database):
    """
    A missing table, server or folder is no fault of any item.
    """
    target = PostgresTarget(empty_database)
    with pytest.raises(DatabaseUnavailable, match='"documents" does not exist'):
        await target.read([1])
    await target.close()
    with pytest.raises(DatabaseUnavailable):
        await PostgresTarget(f"host={tmp_path} dbname=nowhere").read([1])
    with pytest.raises(TargetUnavailable):
        SQLiteTarget(tmp_path / "no" / "folder.db").read([1])


@pytest.mark.anyio
async def test_deletions_are_remembered_for_a_time(tmp_path, empty_database):
    """
    Tombstones do not pile up: after their time they are removed, and an id can be used again.
    """
    from forebay.mirror import Gone

    target = PostgresTarget(empty_database, tombstone_seconds=0.0)
    target.create()
    await target.delete([Gone(1)])
    await target.write([Document(1, 1, {})])
    assert await target.read([1]) == {1: Seen(1)}
    await target.close()
    lite = SQLiteTarget(tmp_path / "index.db", tombstone_seconds=-1.0)
    lite.delete([Gone(1)])
    lite.write([Document(1, 1, {})])
    assert lite.read([1]) == {1: Seen(1)}
