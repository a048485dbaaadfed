"""Keys from Python: what waits for them, and why."""

import pytest

import forebay
from forebay.errors import InvalidJob
from forebay.model.keys import KeyInfo
from tests.support.engine import Reader, connect, enqueue_many


@pytest.fixture
def jobs(database):
    """Jobs of an ordering key: the first is with a worker, and the others wait."""
    with (
        connect(database) as conn,
        Reader(database, "docs") as reader,
        Reader(database, "docs") as other,
    ):
        jobs = enqueue_many(conn, [{"kind": "index", "queue": "docs", "ordering_key": "doc 1"}] * 3)
        assert reader.claim_ready(1).job_ids == jobs[:1]
        assert other.claim_ready(10).jobs == []
        yield jobs


def test_keys_are_listed_and_shown(database, jobs):
    """
    The list has the keys that jobs wait for; one key is shown whether or not jobs wait for it.
    """
    client = forebay.Client(database)
    expected = KeyInfo(
        queue="docs",
        group="default",
        sort="ordering",
        key=("doc 1"),
        waiting=2,
        running=1,
        reason="running",
        until=None,
        blocking_jobs=[jobs[0]],
        blocking_workers=["default@test"],
        held_by=None,
        first_job_id=jobs[1],
        waits_for=None,
    )
    assert client.keys() == client.keys("docs", limit=1) == [expected]
    assert client.keys("other") == []
    assert client.key("docs", ordering_key="doc 1") == [expected]
    (found,) = client.key("docs", limit_key="acme")
    assert (found.sort, found.waiting, found.reason, found.first_job_id) == (
        "limit",
        0,
        "free",
        None,
    )
    assert client.key("other", limit_key="acme") == []


def test_bad_arguments_are_refused(database):
    """
    A limit out of range, and a call that does not name one key.
    """
    client = forebay.Client(database)
    with pytest.raises(InvalidJob, match="limit is 0, not within 1 to 1000"):
        client.keys(limit=0)
    with pytest.raises(InvalidJob, match="give an ordering_key or a limit_key"):
        client.key("docs")
    with pytest.raises(InvalidJob, match="give an ordering_key or a limit_key"):
        client.key("docs", ordering_key="a", limit_key="b")


@pytest.mark.anyio
async def test_the_asynchronous_client_has_the_same_calls(database, jobs):
    """
    It gives the same answers.
    """
    client = forebay.AsyncClient(database)
    assert await client.keys() == await client.key("docs", ordering_key="doc 1")
    assert (await client.keys())[0].first_job_id == jobs[1]
