"""The counters of jobs through the clients."""

from datetime import UTC, datetime, timedelta

import psycopg
import pytest

import forebay
from forebay.errors import InvalidJob
from tests.support.engine import Reader, connect, enqueue, one

pytestmark = pytest.mark.anyio


@pytest.fixture
def conn(database):
    with connect(database) as conn:
        yield conn


def settle_one_of_each(database, conn) -> None:
    """Let one job be done, one be retried and one wait, of the tag x.

    And one wait of another queue.
    """
    for _ in range(3):
        enqueue(conn, queue="mail", kind="send", tag="x")
    enqueue(conn, queue="sites", kind="crawl")
    with Reader(database, "mail") as reader:
        batch = reader.claim_ready(2)
        ended = [{"offset": 2, "outcome": "retried", "after": 3600}]
        reader.settle(batch.claim_no, [1], ended=ended)


async def test_both_clients_read_every_counter(database, conn):
    """Now, and over time; histograms have a number for each bound and one more."""
    settle_one_of_each(database, conn)
    client = forebay.Client(database)
    (mail,) = client.stats("mail")
    assert (mail.queue, mail.group, mail.priority, mail.kind, mail.tag) == (
        "mail", "default", 100, "send", "x",
    )  # fmt: skip
    assert (mail.ready, mail.retrying, mail.claimed, mail.held, mail.running) == (1, 1, 0, 0, 0)
    assert (mail.enqueued, mail.handed, mail.done, mail.failed) == (3, 2, 1, 1)
    bounds = one(conn, "select forebay.stats_bounds()")
    assert (sum(mail.waits), len(mail.waits), len(mail.durations)) == (2, *[len(bounds) + 1] * 2)
    sites, both = next(iter(client.stats("sites"))), client.stats()
    assert (sites.kind, sites.tag, sites.ready) == ("crawl", None, 1)
    assert sorted(both, key=lambda line: line.queue) == [mail, sites]

    one(conn, "select forebay.fold_v1()")
    (sample,) = client.stats_series("second", queue="mail")
    assert (sample.kind, sample.done, sample.failed, sample.ready) == ("send", 1, 1, 1)
    later = datetime.now(UTC) + timedelta(hours=2)
    assert client.stats_series("second", since=later) == []

    other = forebay.AsyncClient(database)
    assert await other.stats() == both
    assert await other.stats_series("second", queue="mail") == [sample]
    audit = await other.audit_stats()
    assert audit == client.audit_stats()
    assert (audit.equal, audit.differences) == (True, [])


def test_jobs_of_the_own_transaction_count(database):
    """And no longer after its rollback, nor for anybody else before its commit."""
    client = forebay.Client(database)
    with psycopg.connect(database) as conn:
        enqueue(conn, queue="mail")
        assert [line.ready for line in client.stats(conn=conn)] == [1]
        assert client.audit_stats(conn=conn).equal
        assert sum(line.ready for line in client.stats()) == 0
        conn.rollback()
        assert sum(line.ready for line in client.stats(conn=conn)) == 0


def test_bad_steps_and_times_are_refused(database):
    client = forebay.Client(database)
    with pytest.raises(InvalidJob, match="step"):
        client.stats_series("day")
    for name in ("since", "until"):
        with pytest.raises(InvalidJob, match=name):
            client.stats_series("hour", **{name: datetime(2026, 1, 1)})  # noqa: DTZ001 - the fault
