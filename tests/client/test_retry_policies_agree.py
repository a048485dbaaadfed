"""A retry policy means the same in SQL and in Python, and both refuse the same."""

import json
import random

import psycopg
import pytest
from psycopg.types.json import Jsonb

import forebay
from forebay import RetryPolicy
from forebay.errors import ConfigError
from forebay.sending import PRESETS, as_retries
from tests.support.engine import one

HTTP = {"url": "https://example.com/hook", "secrets": ["env:KEY"]}

VALUES = {
    "max_retries": [0, 1, 7, 7.0, 120, 9999, 10_000, -1, 1.5, True, "7", None],
    "backoff": ["fixed", "linear", "exponential", "polynomial", "cubic", 1, None],
    "base_delay": [0.001, 0.3, 5, 4000, 2_592_000, 0, 2_592_001, -1, False, "5", None],
    "increment": [0, 0.7, 30, 2_592_000, -1, 2_592_001, "x", None],
    "max_delay": [0.001, 4, 300, 86_400, 2_592_000, 0, 2_592_001, [], None],
    "jitter": [True, False, 0, "off", None],
    "delays": [[], [10, 60.5], [0] * 100, [0] * 101, [-1], [True], 5, None],
    "cap": [1],
}


def drawn(chance: random.Random) -> dict:
    """Return a policy: most have a few members, and most members are right."""
    rare = {"delays": 0.1, "cap": 0.02}
    names = [name for name in VALUES if chance.random() < rare.get(name, 0.5)]
    return {
        name: chance.choice(VALUES[name][:4] if chance.random() < 0.8 else VALUES[name])
        for name in names
    }


def in_sql(conn, policy) -> tuple | None:
    try:
        return conn.execute("select * from forebay.retry_plan(%s)", [Jsonb(policy)]).fetchone()
    except psycopg.Error as error:
        if error.sqlstate == "JQ001" and error.diag.message_hint:
            return None
        raise


def in_python(policy):
    try:
        return as_retries(policy)
    except ConfigError:
        return None


def test_a_thousand_random_policies_mean_the_same(conn, seed):
    """Whether it is one, how many tries, each delay to the last bit, the total, the jitter."""
    chance = random.Random(seed)
    taken = 0
    for _ in range(1000):
        policy = drawn(chance)
        sql, python = in_sql(conn, policy), in_python(policy)
        assert (sql is None) == (python is None), (policy, sql, python)
        if sql is None:
            continue
        taken += 1
        tries, delays, total, jitter = sql
        assert (tries, tuple(delays)) == (python.tries, python.delays), policy
        assert total == pytest.approx(python.total, rel=1e-12), policy
        assert jitter == (python.jitter != "none"), policy
    assert 100 < taken < 900


@pytest.mark.parametrize("name", PRESETS)
def test_presets_mean_the_same(conn, name):
    assert tuple(in_sql(conn, name)[1]) == PRESETS[name]


@pytest.mark.parametrize("value", ["fast", 5, None, [1, "x"], [2_592_001], {"a": 1}])
def test_what_is_no_policy_is_refused_by_both(conn, value):
    assert in_sql(conn, value) is None
    assert in_python(value) is None


def test_a_kind_takes_the_same_object(app):
    """With the same delays, and a text that says for how long."""
    policy = {"max_retries": 4, "backoff": "linear", "base_delay": 10, "jitter": False}

    @app.job(retry=policy)
    def resize() -> None: ...

    @app.job(retry=policy, max_attempts=2)
    def crop() -> None: ...

    kinds = app._internals.kinds
    assert tuple(kinds.get("resize").retry.delays()) == as_retries(policy).delays
    assert str(kinds.get("resize").retry.lifetime()) == "up to 5 attempts over about 1.7 min"
    assert kinds.get("crop").retry.max_attempts == 2
    with pytest.raises(ConfigError, match="base"):
        app.job(retry={"base": 1})(lambda: None)


def test_an_endpoint_takes_a_policy_in_each_form(database, conn):
    """It is kept as JSON, and shown as it was written."""
    policy = RetryPolicy(max_attempts=3, strategy="fixed", base_seconds=60, jitter=False)
    client = forebay.Client(database)
    client.create_endpoint("shop", "http", HTTP, retry=policy)
    assert as_retries(client.endpoint("shop").retry).delays == (60.0, 60.0)
    written = {"max_retries": 2, "backoff": "linear", "increment": 1}
    client.alter_endpoint("shop", retry=written)
    assert client.endpoint("shop").retry == written
    assert one(conn, "select retry from forebay.endpoint") == written
    client.alter_endpoint("shop", retry=None)
    assert client.endpoint("shop").retry == "standard"
    with pytest.raises(ConfigError, match="no JSON form"):
        client.alter_endpoint("shop", retry=RetryPolicy(permanent_on=(KeyError,)))


def test_the_random_part_can_be_switched_off(conn):
    """Of a policy and of a list; a time that the endpoint asked for is never shortened."""
    for value, lowest, highest in [
        ([10], 10.0, 11.0),
        ({"delays": [10]}, 10.0, 11.0),
        ({"delays": [10], "jitter": False}, 10.0, 10.0),
        ({"max_retries": 1, "base_delay": 10}, 5.0, 10.0),
        ({"max_retries": 1, "base_delay": 10, "jitter": False}, 10.0, 10.0),
    ]:
        retries = as_retries(json.loads(json.dumps(value)))
        assert retries.delay_seconds(1, 0.0) == lowest
        assert retries.delay_seconds(1, 1.0) == pytest.approx(highest)
        assert retries.delay_seconds(1, 0.0, after=7.0) == 7.0
        assert retries.delay_seconds(2, 0.0) is None
