"""Endpoints from Python."""

from datetime import timedelta

import pytest

import forebay
from forebay.errors import (
    ConfigError,
    EndpointDisabled,
    EndpointExists,
    EndpointInUse,
    EndpointNotFound,
    InvalidJob,
)
from forebay.model.unique import Idempotent
from tests.support.engine import Reader, connect

HTTP = {"url": "https://example.com/hook", "secrets": ["env:KEY"]}


@pytest.fixture
def client(database):
    return forebay.Client(database)


def test_an_endpoint_is_created_changed_and_shown(client):
    """None removes a limit, and what is not given stays."""
    endpoint_id = client.create_endpoint(
        "shop", "http", HTTP, rate=5, burst=9, retry=[1, 60.5], disable_after=timedelta(days=5)
    )
    found = client.endpoint("shop")
    assert client.endpoints() == [found]
    assert (found.endpoint_id, found.sink, found.config) == (endpoint_id, "http", HTTP)
    assert (found.rate, found.burst, found.retry) == (5, 9, [1, 60.5])
    assert (found.disable_after, found.max_age) == (432_000, None)
    assert (found.breaker, found.is_paused, found.waiting) == ("closed", False, 0)
    assert client.alter_endpoint("shop", rate=None, max_age=60, keeps_response=True)
    assert not client.alter_endpoint("shop", max_age=60)
    found = client.endpoint("shop")
    assert (found.rate, found.burst, found.max_age, found.keeps_response) == (None, None, 60, True)
    assert client.alter_endpoint("shop", sink="redis-list", config={"url": "redis://a", "key": "k"})
    assert client.endpoint("shop").sink == "redis-list"
    client.drop_endpoint("shop")
    assert client.endpoints() == []


def test_a_configuration_is_checked_by_the_class_of_its_sink(client):
    """What SQL cannot check is refused too, before anything is written."""
    with pytest.raises(ConfigError, match="timeout"):
        client.create_endpoint("shop", "http", {**HTTP, "timeout": -1})
    assert client.endpoints() == []
    client.create_endpoint("shop", "http", HTTP)
    with pytest.raises(ConfigError, match="timeout"):
        client.alter_endpoint("shop", config={**HTTP, "timeout": -1})
    with pytest.raises(ConfigError, match="secrets"):
        client.alter_endpoint("shop", sink="kafka", config=HTTP)
    assert client.endpoint("shop").config == HTTP


def test_what_is_refused_has_its_class_and_its_facts(client):
    """Each error names the endpoint."""
    client.create_endpoint("shop", "http", HTTP)
    with pytest.raises(EndpointExists) as exists:
        client.create_endpoint("shop", "http", HTTP)
    assert exists.value.endpoint == "shop"
    for call in (
        client.endpoint,
        client.enable_endpoint,
        client.reset_endpoint,
        client.test_endpoint,
    ):
        with pytest.raises(EndpointNotFound) as missing:
            call("no")
        assert missing.value.endpoint == "no"
    with pytest.raises(InvalidJob) as bad:
        client.create_endpoint("other", "http", HTTP, concurrency=0)
    assert bad.value.field == "concurrency"
    with pytest.raises(InvalidJob, match="colour"):
        client.alter_endpoint("shop", colour="red")
    with pytest.raises(InvalidJob, match=r"^retry is a set, which"):
        client.alter_endpoint("shop", retry={1, 2})


def test_a_disabled_endpoint_takes_no_messages(database, client):
    """It can be dropped with what waits for it, if that is said."""
    client.create_endpoint("shop", "http", HTTP)
    with connect(database) as conn, Reader(database, "forebay.deliver") as reader:
        client.send(conn, "shop", {})
        assert client.disable_endpoint("shop", "moving")
        assert not client.disable_endpoint("shop")
        with pytest.raises(EndpointDisabled) as refused:
            client.send(conn, "shop", {})
        assert (refused.value.endpoint, refused.value.why) == ("shop", "moving")
        assert reader.claim_all() == []
        with pytest.raises(EndpointInUse) as in_use:
            client.drop_endpoint("shop")
        assert in_use.value.waiting == 1
        assert client.endpoint("shop").waiting == 1
        assert client.enable_endpoint("shop")
        assert len(reader.claim_all()) == 1
        client.drop_endpoint("shop", discard=True)


def test_a_message_is_sent_in_the_transaction(database, client):
    """With the options of a job, except those that its endpoint has."""
    endpoint_id = client.create_endpoint("shop", "http", HTTP)
    with connect(database) as conn:
        with conn.transaction(force_rollback=True):
            client.send(conn, "shop", {"a": 0})
        key = Idempotent("order-1")
        first = client.send(conn, "shop", {"a": 1}, kind="order.paid", tag="t", unique=key)
        assert client.send(conn, "shop", {"a": 1}, kind="order.paid", unique=key) == first
        with pytest.raises(InvalidJob, match="that of the endpoint"):
            client.send(conn, "shop", {}, queue="other")
    (job,) = client.job(first)
    assert (job.kind, job.queue, job.tag) == ("order.paid", "forebay.deliver", "t")
    assert job.args == {"payload": {"a": 1}, "endpoint": endpoint_id}


def test_a_secret_is_rotated(client):
    """The reference changes; a plain secret is refused and not shown."""
    client.create_endpoint("shop", "http", HTTP)
    client.rotate_secret("shop", "env:NEW", grace=timedelta(hours=1))
    assert client.endpoint("shop").config["secrets"] == ["env:NEW"]
    with pytest.raises(InvalidJob) as refused:
        client.rotate_secret("shop", "whsec_plain")
    assert "whsec_plain" not in str(refused.value)


@pytest.mark.anyio
async def test_the_asynchronous_client_has_the_same_calls(database):
    """It gives the same answers."""
    client = forebay.AsyncClient(database)
    await client.create_endpoint("shop", "http", HTTP)
    assert not await client.reset_endpoint("shop")
    job_id = await client.test_endpoint("shop")
    (job,) = await client.job(job_id)
    assert job.kind == "forebay.test"
    assert [one.name for one in await client.endpoints()] == ["shop"]
