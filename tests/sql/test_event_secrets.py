"""The event log says that arguments, addresses and headers changed, and not what they are."""

import json

from tests.support.engine import one

SECRET = "k3y-of-the-shop"


def put_schedule(conn, name, secret, headers):
    one(
        conn,
        "select forebay.create_schedule(%s, 'report', args => %s, every => '1 hour',"
        " options => %s)",
        name,
        json.dumps({"n": secret, "m": 1}),
        json.dumps({"headers": headers}),
    )


def test_no_event_has_a_value_of_a_schedule_or_an_endpoint(conn):
    """Created, changed and dropped: names stay, and what changed is marked."""
    put_schedule(conn, "hourly", SECRET, {"x-key": SECRET})
    put_schedule(conn, "hourly", SECRET + "2", {"x-key": SECRET})
    one(conn, "select forebay.drop_schedule('hourly')")
    config = {
        "url": f"https://x.example:8443/services/{SECRET}?token={SECRET}",
        "headers": {"X-K": SECRET},
        "timeout": 20,
    }
    one(conn, "select forebay.create_endpoint('shop', 'http', %s)", json.dumps(config))
    changed = config | {"url": f"https://x.example:8443/{SECRET}", "headers": {"X-K": "2"}}
    one(conn, "select forebay.alter_endpoint('shop', config => %s)", json.dumps(changed))
    one(conn, "select forebay.drop_endpoint('shop')")
    rows = conn.execute(
        "select act, old, new, detail from forebay.event order by event_id"
    ).fetchall()
    assert SECRET not in json.dumps(rows)
    events = {act: (old, new) for act, old, new, _ in rows}
    old, new = events["schedules.change"]
    assert old["args"] == {"n": "***", "m": "***"}
    assert new["args"] == {"n": "*** (changed)", "m": "***"}
    assert new["options"]["headers"] == {"x-key": "***"}
    old, new = events["endpoints.alter"]
    assert old["config"] == {
        "url": "https://x.example:8443/***", "headers": {"X-K": "***"}, "timeout": 20,
    }  # fmt: skip
    assert new["config"]["url"] == "https://x.example:8443/*** (changed)"
    assert new["config"]["headers"] == {"X-K": "*** (changed)"}
    assert {"schedules.drop", "endpoints.create", "endpoints.drop"} <= events.keys()
