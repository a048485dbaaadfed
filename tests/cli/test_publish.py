"""forebay publish, event-types, subscriptions, and endpoints replay and redrive."""

import pytest

from tests.support.engine import one

NEW = ("endpoints", "create", "shop", "--sink", "http", "--set", "url=https://a.example/hook")


@pytest.fixture
def shop(forebay):
    forebay(*NEW)
    forebay("event-types", "create", "order.paid", "--description", "A payment arrived.")


def test_events_are_published_to_the_endpoints_that_subscribe(forebay, shop, conn):
    said = forebay("publish", "order.paid", '{"order": 7}').out
    assert said.endswith("no endpoint subscribes to order.paid\n")
    add = ("subscriptions", "add", "shop", "order.paid", "--filter", '{"country": "de"}')
    assert (
        forebay(*add).out == 'shop gets events of type order.paid that contain {"country": "de"}\n'
    )
    options = ("--ordering-key", "7", "--tag", "t", "--correlation-id", "c", "--delay", "2h")
    found = forebay("publish", "order.paid", "{}", *options, "--json").json
    assert found["subscriptions"] == 1
    row = conn.execute(
        "select kind, ordering_key, tag, correlation_id, run_at > now() + interval '119 minutes'"
        " from forebay.deferred where job_id = %s",
        [found["event_id"]],
    ).fetchone()
    assert row == ("order.paid", "7", "t", "c", True)
    assert "order.paid has 1 subscription\n" in forebay("publish", "order.paid").out


def test_types_and_subscriptions_are_listed_and_removed(forebay, shop):
    assert (
        forebay("event-types", "create", "order.paid").out
        == "event type order.paid: was there already\n"
    )
    forebay("subscriptions", "add", "shop", "order.paid", "--from", "beginning")
    listed = forebay("subscriptions", "list").out
    assert listed.split()[-6:] == ["shop", "order.paid", "-", "beginning", "catches", "up"]
    (found,) = forebay("subscriptions", "list", "shop", "--json").json
    assert (found["endpoint"], found["is_from_beginning"]) == ("shop", True)
    types = {
        each["name"]: each["subscriptions"]
        for each in forebay("event-types", "list", "--json").json
    }
    assert types["order.paid"] == 1
    assert "order.paid" in forebay("event-types", "list").out
    remove = ("subscriptions", "remove", "shop", "order.paid")
    assert forebay(*remove).out == "shop: no more events of type order.paid\n"
    assert forebay(*remove).out == "shop: did not get events of type order.paid\n"
    assert forebay("subscriptions", "list").out == "No subscriptions.\n"
    assert forebay("event-types", "drop", "order.paid").out == "event type order.paid: dropped\n"


def test_an_endpoint_gets_events_again(forebay, shop, conn):
    forebay("subscriptions", "add", "shop", "order.paid")
    found = forebay("endpoints", "replay", "shop", "--since", "2h", "--json").json
    assert one(conn, "select kind from forebay.job(%s)", found["job_id"]) == "forebay.replay"
    assert forebay("endpoints", "redrive", "shop").out == "endpoint shop: 0 redriven\n"


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("publish", "unknown.type"), "unknown.type"),
        (("publish", "order.paid", "{"), "payload"),
        (("subscriptions", "add", "shop", "order.paid", "--from", "soon"), "--from"),
        (("subscriptions", "add", "nowhere", "order.paid"), "nowhere"),
        (("endpoints", "replay", "shop", "--since", "soon"), "--since"),
    ],
)
def test_what_is_refused_is_named(forebay, shop, arguments, named):
    refused = forebay(*arguments)
    assert refused.code in {1, 2}
    assert named in refused.err
