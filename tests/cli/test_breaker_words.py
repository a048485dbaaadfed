"""What the screens say of an endpoint or a limit key whose breaker is open: the same words, and
the cause.
"""

import json

from tests.support.delivering import create_endpoint, send
from tests.support.engine import Reader, enqueue


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
    for out in (screens[0], screens[2], screens[3]):
        assert "next probe in" in " ".join(out.split()), out
    assert "HTTP status 500" in " ".join(screens[3].split())


def test_an_open_breaker_of_a_limit_key_is_named_with_the_next_probe(forebay, database, conn):
    """By the lists of keys, the key, status, doctor, top and the metrics; and it can be closed."""
    for _ in range(3):
        enqueue(conn, queue="crawl", limit_key="a.org")
    with Reader(database, "crawl") as reader:
        (batch,) = reader.claim_all()
        attempt = {
            "lease_id": reader.lease_id,
            "claim_no": batch.claim_no,
            "offset": 1,
            "failed": True,
            "error": "OSError: refused",
            "threshold": 1,
            "cooldown": 30,
            "cooldown_max": 600,
        }
        conn.execute(
            "select forebay.report_breakers_v1('w', '{}', %s::jsonb)", [json.dumps([attempt])]
        )
        reader.finish(batch)
        enqueue(conn, queue="crawl", limit_key="a.org")
        assert reader.claim_all() == []
    forebay("thresholds", "set", "breaker_for", "0")
    screens = {
        "list": forebay("keys", "list").out,
        "show": forebay("keys", "show", "crawl", "--limit-key", "a.org").out,
        "status": forebay("status").out,
        "doctor": forebay("doctor", "-v").out,
        "top": forebay("top", "--once").out,
    }
    for name, out in screens.items():
        words = " ".join(out.split())
        assert "breaker" in words, out
        assert "next probe in" in words, out
        if name not in ("list", "top"):
            assert "OSError: refused" in words, out
    assert "1 failure in a row, 1 open it" in " ".join(screens["show"].split())
    assert 'forebay_queue_open_breakers{queue="crawl"} 1' in forebay("metrics").out
    (event,) = forebay("events", "list", "--act", "circuit", "--json").json
    assert (event["queue"], event["new"]["limit_key"]) == ("crawl", "a.org")
    reset = ("keys", "reset", "crawl", "--limit-key", "a.org")
    assert forebay(*reset).out == "queue crawl: limit key 'a.org': breaker closed\n"
    assert forebay(*reset).out == "queue crawl: limit key 'a.org': breaker was closed already\n"
    assert "breaker" not in forebay("keys", "show", "crawl", "--limit-key", "a.org").out
    refused = forebay("keys", "reset", "forebay.deliver", "--limit-key", "a.org")
    assert "reset_endpoint" in refused.err


def test_a_queue_whose_jobs_wait_for_a_probe_does_not_lack_a_worker(forebay, database, conn):
    """Doctor names the breaker first."""
    conn.execute(
        "insert into forebay.breaker (queue, key, failures, threshold, cooldown, cooldown_max,"
        " opened_at, probe_at) values ('crawl', 'a.org', 9, 9, 600, 600, now(), now())"
    )
    enqueue(conn, queue="crawl", limit_key="a.org")
    with Reader(database, "crawl") as reader:
        conn.execute(
            "insert into forebay.heartbeat (lease_id, heartbeat_at, backend_pid)"
            " values (%s, now(), 1)",
            [reader.lease_id],
        )
        words = " ".join(forebay("doctor", "-v").out.split())
    assert "1 limit key with an open breaker" in words
    assert "forebay keys list --queue crawl" in words
