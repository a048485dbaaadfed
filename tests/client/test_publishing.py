"""Events and subscriptions from Python."""

from datetime import UTC, datetime, timedelta

import pytest

import forebay
from forebay.errors import EndpointNotFound, InvalidJob
from forebay.model.unique import Once
from tests.support.engine import Reader, connect


@pytest.fixture
def client(database):
    client = forebay.Client(database)
    client.create_event_type("order.paid", "money came")
    client.create_endpoint("shop", "http", {"url": "https://example.com"})
    return client


def test_an_event_is_published_if_and_only_if_the_transaction_commits(client, database):
    client.subscribe("shop", "order.paid")
    with connect(database) as conn:
        with conn.transaction(force_rollback=True):
            client.publish(conn, "order.paid", {"n": 1})
        with conn.transaction():
            made = client.publish(conn, "order.paid", {"n": 2}, tag="t", ordering_key="k", delay=0)
        assert made.subscriptions == 1
        found = conn.execute(
            "select seq, args, tag, ordering_key from forebay.log where kind = 'order.paid'"
        ).fetchall()
    assert found == [(made.event_id, {"n": 2}, "t", "k")]
    first = client.publish(None, "order.paid", unique=Once("u"))
    assert client.publish(None, "order.paid", unique=Once("u")).event_id == first.event_id


def test_many_events_are_published_in_order(client):
    ids = client.publish_many(None, "order.paid", ({"n": n, "text": 'a"b'} for n in range(5)))
    assert len(ids) == 5
    assert ids == sorted(ids)
    assert client.publish_many(None, "order.paid", []) == []


@pytest.mark.parametrize(
    "options", [{"queue": "q"}, {"limit_key": "k"}, {"max_attempts": 3}, {"priority": 10**6}]
)
def test_an_option_that_events_do_not_have_is_refused(client, options):
    with pytest.raises(InvalidJob):
        client.publish(None, "order.paid", {}, **options)


def test_an_unknown_event_type_is_refused(client):
    with pytest.raises(InvalidJob, match=r"'no.such' does not exist"):
        client.publish(None, "no.such", {})


def test_subscriptions_are_made_changed_and_ended(client):
    since = datetime.now(UTC) - timedelta(days=1)
    made = client.subscribe("shop", "order.paid", {"country": "de"}, start=since)
    assert client.subscribe("shop", "order.paid", {"country": "fr"}) == made
    (found,) = client.subscriptions("shop")
    assert (found.subscription_id, found.endpoint, found.event_type) == (made, "shop", "order.paid")
    assert (found.filter, found.starts_at) == ({"country": "fr"}, since)
    assert (found.is_from_beginning, found.is_active) == (False, False)
    assert client.subscriptions("other") == []
    types = {one.name: (one.description, one.subscriptions) for one in client.event_types()}
    assert types["order.paid"] == ("money came", 1)
    assert client.unsubscribe("shop", "order.paid")
    assert not client.unsubscribe("shop", "order.paid")
    assert client.drop_event_type("order.paid")
    with pytest.raises(EndpointNotFound):
        client.subscribe("none", "forebay.endpoint_failing")
    with pytest.raises(InvalidJob, match="start"):
        client.subscribe("shop", "forebay.endpoint_failing", start="later")


def test_an_endpoint_is_replayed_and_redriven(client, database):
    job = client.replay_endpoint("shop", datetime.now(UTC) - timedelta(hours=1))
    assert client.job(job)[0].kind == "forebay.replay"
    with pytest.raises(InvalidJob, match="since"):
        client.replay_endpoint("shop", datetime.now(UTC) + timedelta(hours=1))
    with Reader(database, "forebay.deliver") as deliverer:
        client.send(deliverer.conn, "shop", {"n": 1})
        batch = deliverer.claim_ready(1)
        ended = [{"offset": 1, "outcome": "dead", "reason": "permanent"}]
        assert deliverer.settle(batch.claim_no, [], ended=ended) == "settled"
    assert client.redrive_endpoint("shop") == 1
    assert client.redrive_endpoint("shop", limit=5) == 0
