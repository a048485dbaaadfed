"""All settings that hold for a queue, from one call."""

import json

from tests.support.engine import one, sqlstate


def read(conn, queue="mail") -> dict:
    rows = conn.execute("select to_jsonb(s) from forebay.queue_settings(%s) s", [queue])
    return {(row["part"], row["setting"]): row for (row,) in rows}


def test_a_queue_that_nobody_has_set_up_has_what_is_built_in(conn):
    """Every setting is there, also of a queue that is not in use."""
    found = read(conn)
    assert {part for part, _ in found} == {"waiting", "starts", "retries", "retention", "notices"}
    assert {row["source"] for row in found.values()} == {"built in"}
    assert found["starts", "concurrency"]["value"] is None
    assert found["starts", "shards"]["value"] == 1
    assert found["retries", "max_attempts"]["value"] == 20
    assert sqlstate(conn, "select * from forebay.queue_settings('a b')") == "JQ001"
    assert sqlstate(conn, "select * from forebay.queue_settings(null)") == "JQ001"


def test_each_setting_says_where_it_comes_from_and_who_set_it(conn):
    """Limits, pause, attempts, retention, keys, thresholds, groups and kinds."""
    conn.execute("select set_config('forebay.actor', 'ada', false)")
    for call in (
        "limit_queue('mail', max_waiting => 9, concurrency => 4)",
        "set_max_attempts('mail', 3)",
        "shard_queue('mail', 4)",
        "keep_dead('mail', 7)",
        "open_group('mail', 'audit')",
        "pause_queue('mail', 'audit')",
        "pause_key('mail', limit_key => 'k')",
        "limit_key('mail', 'k', concurrency => 1)",
        "set_threshold('oldest_ready', 30, 'mail')",
        "configure('retry_strategy', 'fixed')",
        "record_kinds_v1('w', '{send}', '{mail}')",
    ):
        conn.execute(f"select forebay.{call}")
    found = read(conn)
    for place, value in {
        ("waiting", "max_waiting"): 9,
        ("starts", "concurrency"): 4,
        ("starts", "shards"): 4,
        ("retries", "max_attempts"): 3,
        ("retention", "dead_keep_days"): 7,
        ("keys", "paused_keys"): 1,
        ("keys", "limited_keys"): 1,
        ("alerts", "oldest_ready"): 30,
    }.items():
        row = found[place]
        assert (row["value"], row["source"], row["set_by"]) == (value, "queue", "ada"), place
        assert row["set_at"], place
    assert found["groups", "audit"]["value"]["paused_at"]
    assert ("kinds", "send") in found
    row = found["retries", "retry_strategy"]
    assert (row["value"], row["source"], row["set_by"]) == ("fixed", "database", "ada")


def test_a_setting_that_an_application_declares_names_it(conn):
    """And one that holds for all queues says so."""
    declared = json.dumps([{"queue": "mail", "concurrency": 2}])
    conn.execute("select * from forebay.apply_queues('shop', %s::jsonb)", [declared])
    one(conn, "select forebay.keep_dead(null, 5)")
    one(conn, "select forebay.configure('max_waiting', 100)")
    found = read(conn)
    assert found["starts", "concurrency"]["applied_by"] == "shop"
    assert found["retention", "dead_keep_days"]["source"] == "all queues"
    assert found["waiting", "max_waiting"]["value"] == 100
    assert read(conn, "forebay.deliver")["waiting", "max_waiting"]["value"] is None
