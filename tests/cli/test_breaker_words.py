"""What the screens say of an endpoint whose breaker is open: the same words, and the cause."""

import json

from tests.support.delivering import create_endpoint, send
from tests.support.engine import Reader


def test_an_open_breaker_is_named_by_one_word_on_all_screens(forebay, database, conn):
    """The lists of endpoints and keys, the endpoint, and doctor: not a rate of probes."""
    endpoint = create_endpoint(conn, "shop", "http", {"url": "https://example.com/"})
    send(conn, "shop", 2)
    report = {
        "endpoint_id": endpoint,
        "failures": 10,
        "answered": False,
        "error": "HTTP status 500",
    }
    conn.execute("select forebay.report_deliveries_v1('w', %s::jsonb)", [json.dumps([report])])
    with Reader(database, "forebay.deliver") as reader:
        assert reader.claim_all() == []
    (key,) = forebay("keys", "list", "--queue", "forebay.deliver", "--json").json
    assert key["reason"] == "breaker"
    screens = [
        forebay("keys", "list", "--queue", "forebay.deliver").out,
        forebay("endpoints", "list").out,
        forebay("endpoints", "show", "shop").out,
        forebay("doctor", "-v").out,
    ]
    for out in screens:
        words = " ".join(out.split())
        assert "breaker" in words, out
        assert "open" in words, out
        assert "at its rate" not in words, out
    assert "HTTP status 500" in " ".join(screens[3].split())
