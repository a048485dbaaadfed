"""forebay endpoints: create, change and watch endpoints."""

import json
import threading

import pytest

from forebay.client import Client
from forebay.sending._presets import PRESETS, as_retries
from tests.support.delivering import bury, send
from tests.support.engine import Reader
from tests.support.waiting import wait_for

NEW = ("endpoints", "create", "shop", "--sink", "http", "--set", "url=https://a.example/hook")


def test_an_endpoint_is_created_changed_and_dropped(forebay):
    """Single settings of the sink are changed; "none" removes a limit."""
    secrets = ("--set", 'secrets=["env:KEY"]', "--set", "timeout=20")
    limits = ("--rate", "2.5", "--burst", 4, "--retry", "10,60", "--disable-after", "5d")
    made = forebay(*NEW, *secrets, *limits)
    assert made.out == (
        "created endpoint shop; forebay endpoints test shop sends a message;"
        " retry after 10, 60 s: 3 tries over 1 min 10 s\n"
    )
    found = forebay("endpoints", "show", "shop", "--json").json
    assert found["config"] == {
        "url": "https://a.example/hook",
        "secrets": ["env:KEY"],
        "timeout": 20,
    }
    assert (found["rate"], found["burst"], found["retry"]) == (2.5, 4, [10, 60])
    assert found["disable_after"] == 432_000
    change = (
        "endpoints",
        "alter",
        "shop",
        "--set",
        "timeout=30",
        "--rate",
        "none",
        "--keep-response",
    )
    assert forebay(*change).out == "endpoint shop: changed\n"
    assert forebay(*change).out == "endpoint shop: nothing to change\n"
    found = forebay("endpoints", "show", "shop", "--json").json
    assert (found["config"]["timeout"], found["rate"], found["burst"]) == (30, None, None)
    assert found["config"]["secrets"] == ["env:KEY"]
    assert found["keeps_response"]
    assert forebay("endpoints", "drop", "shop").out == "dropped endpoint shop\n"
    assert forebay("endpoints", "list").out == "No endpoints.\n"
    assert forebay("endpoints", "list", "--json").json == []


@pytest.mark.parametrize(("policy", "total"), [
    ("standard", "standard: 10 tries over 75 h 35 min"),
    ("ulak", "ulak: 10 tries over 25 min 10 s"),
    ("60,60", "after 60, 60 s: 3 tries over 2 min"),
])  # fmt: skip
def test_a_retry_policy_is_shown_with_its_total(forebay, policy, total):
    forebay(*NEW, "--retry", "5")
    changed = forebay("endpoints", "alter", "shop", "--retry", policy)
    assert changed.out == f"endpoint shop: changed; retry {total}\n"
    assert total in forebay("endpoints", "show", "shop").out


def test_a_policy_is_shown_in_the_order_in_which_it_is_read(forebay, monkeypatch):
    """The number and the kind first, whatever the order in the database."""
    monkeypatch.setenv("COLUMNS", "120")
    growth = '"max_delay": 300, "increment": 30, "base_delay": 10, "backoff": "linear"'
    forebay(*NEW, "--retry", f'{{{growth}, "max_retries": 2}}')
    words = "max retries 2, backoff linear, base delay 10, increment 30, max delay 300"
    assert words in " ".join(forebay("endpoints", "show", "shop").out.split())


def test_what_is_refused_names_the_option(forebay):
    """Wrong use has exit code 2, an endpoint that does not exist or exists already 1."""
    forebay(*NEW)
    for options, named in [
        (("--rate", "fast"), "--rate is 'fast', not a number"),
        (("--max-age", "old"), "--max-age is 'old', not a duration"),
        (("--concurrency", 0), "concurrency 0 is outside"),
        (("--retry", "often"), "retry"),
        (("--set", "url"), "--set is 'url', not NAME=VALUE"),
        (("--set", "auth=plain"), "is not a reference to a secret"),
    ]:
        answer = forebay("endpoints", "alter", "shop", *options)
        assert (answer.code, named in answer.err) == (2, True), answer
    assert "'plain'" not in forebay("endpoints", "alter", "shop", "--set", "auth=plain").err
    assert forebay(*NEW).code == 1
    answer = forebay("endpoints", "show", "no")
    assert (answer.code, "endpoint 'no' not found" in answer.err) == (1, True)


def test_an_endpoint_is_disabled_and_enabled(forebay, database, conn):
    """Both calls say whether something changed; the list has the state."""
    forebay(*NEW)
    disable = ("endpoints", "disable", "shop", "--why", "moving [1]")
    assert forebay(*disable).out == "endpoint shop: disabled\n"
    assert forebay(*disable).out == "endpoint shop: was disabled already\n"
    assert "disabled" in forebay("endpoints", "list").out
    assert "moving [1]" in forebay("endpoints", "show", "shop").out
    assert forebay("endpoints", "enable", "shop", "--json").json == {
        "endpoint": "shop",
        "enabled": True,
    }
    assert forebay("endpoints", "enable", "shop").out == "endpoint shop: was enabled already\n"
    acts = [
        event["act"] for event in forebay("events", "list", "--act", "endpoints", "--json").json
    ]
    assert acts == ["endpoints.enable", "endpoints.disable", "endpoints.create"]


def test_the_breaker_is_shown_and_reset(forebay, database, conn):
    """With its failures, its last error, and when the next probe may run."""
    forebay(*NEW, "--breaker-threshold", 2)
    report = [
        {
            "endpoint_id": 1,
            "failed": 2,
            "failures": 2,
            "answered": False,
            "error": "HTTP status 500",
        }
    ]
    conn.execute("select forebay.report_deliveries_v1('w', %s::jsonb)", [json.dumps(report)])
    line = forebay("endpoints", "list").out.splitlines()[1]
    assert line.split() == ["shop", "breaker", "open", "0", "-", "0", "-", "HTTP", "status", "500"]
    out = forebay("endpoints", "show", "shop").out
    assert "next probe in" in out
    assert "failures in a row: 2, opens at 2" in out
    job_id = send(conn, "shop")[0]
    with Reader(database, "forebay.deliver") as reader:
        conn.execute("select forebay.reset_endpoint('shop')")
        (batch,) = reader.claim_all()
        ended = {"offset": 1, "outcome": "retried", "after": 240, "error": {"message": "refused"}}
        reader.settle(batch.claim_no, ended=[ended])
        conn.execute("select forebay.report_deliveries_v1('w', %s::jsonb)", [json.dumps(report)])
    first, hint = forebay("endpoints", "reset", "shop").out.splitlines()
    assert first == "endpoint shop: breaker closed"
    assert forebay("jobs", "show", job_id, "--json").json[0]["state"] == "retrying"
    # What is retrying keeps its time; the hint does what it says.
    command = hint.removeprefix("→ forebay ").partition(" sends")[0].split()
    assert forebay(*command, "--yes").code == 0
    assert forebay("jobs", "show", job_id, "--json").json[0]["state"] == "ready"
    assert (
        forebay("endpoints", "reset", "shop").out == "endpoint shop: breaker was closed already\n"
    )


def test_an_endpoint_that_a_deliverer_refuses_is_not_called_ok(forebay, conn):
    """The breaker knows that nothing is sent, and not that the far side is healthy."""
    forebay(*NEW)
    assert " ok " in forebay("endpoints", "list").out
    (number,) = conn.execute("select endpoint_id from forebay.endpoint").fetchone()
    error = "refused by a deliverer: the setting endpoint_hosts of this deliverer does not list x"
    report = {"endpoint_id": number, "failures": 10, "answered": False, "error": error}
    conn.execute("select forebay.report_deliveries_v1('w', %s::jsonb)", [json.dumps([report])])
    for words in (("endpoints", "list"), ("endpoints", "show", "shop")):
        shown = " ".join(forebay(*words).out.split())
        assert " refused " in shown
        assert "endpoint_hosts" in shown


def test_a_secret_is_rotated(forebay):
    """The answer names the reference and the grace."""
    forebay(*NEW, "--set", 'secrets=["env:KEY"]')
    out = forebay("endpoints", "rotate-secret", "shop", "env:NEW", "--grace", "2h").out
    assert out == "endpoint shop: env:NEW signs; the old secrets sign too for 2h\n"
    assert forebay("endpoints", "show", "shop", "--json").json["config"]["secrets"] == ["env:NEW"]


@pytest.mark.parametrize(
    ("ended", "code", "said"),
    [
        (None, 0, "accepted the test message"),
        ({"outcome": "dead", "reason": "permanent",
            "error": {"type": "Rejected", "message": "HTTP status 404"}},
         1, "HTTP status 404"),
    ],
)  # fmt: skip
def test_a_test_message_is_answered(forebay, database, ended, code, said):
    """The command waits for the end of the delivery."""
    forebay(*NEW)

    def deliver():
        with Reader(database, "forebay.deliver") as reader:
            batch = wait_for(lambda: (found := reader.claim_ready()).jobs and found)
            if ended is None:
                reader.finish(batch)
            else:
                reader.settle(batch.claim_no, ended=[{"offset": 1, "attempt": 1, **ended}])

    thread = threading.Thread(target=deliver)
    thread.start()
    answer = forebay("endpoints", "test", "shop")
    thread.join()
    assert (answer.code, said in answer.out) == (code, True), answer


def test_a_test_message_without_an_answer_says_where_to_look(forebay, database):
    """Nothing delivers."""
    forebay(*NEW)
    answer = forebay("endpoints", "test", "shop", "--wait", 0)
    assert (answer.code, "no answer yet, job 1 is ready" in answer.out) == (1, True)
    answer = forebay("endpoints", "test", "shop", "--wait", 0, "--json")
    assert answer.json == {
        "endpoint": "shop", "job_id": 2, "state": "ready", "error": None, "answer": None,
    }  # fmt: skip
    assert Client(database).job(2)[0].kind == "forebay.test"


def test_an_endpoint_shows_its_policy_with_the_total_and_what_is_the_databases(forebay):
    """A policy is written as JSON; none gives the settings of the database back."""
    policy = '{"max_retries": 4, "backoff": "linear", "base_delay": 10, "jitter": false}'
    forebay(*NEW, "--retry", policy, "--concurrency", "3")
    out = forebay("endpoints", "show", "shop").out
    assert "5 tries over 1 min 40 s; " in out
    assert "jitter off" in out
    assert "breaker_threshold, breaker_cooldown" in out
    changed = forebay("endpoints", "alter", "shop", "--retry", "none", "--concurrency", "none")
    assert changed.code == 0, changed.err
    assert "retry" in forebay("endpoints", "show", "shop", "--json").json["inherits"]
    out = forebay("endpoints", "show", "shop").out
    assert "retry, concurrency, breaker_threshold, breaker_cooldown" in out
    assert "10 tries over 75 h 35 min" in out


def test_a_delivery_is_shown_with_the_name_of_its_endpoint_and_its_own_tries(
    forebay, database, conn
):
    """In lists, the search, one job and where it is: the name, not the number, and how often this
    endpoint's policy tries, before the first attempt too.
    """
    client = Client(database)
    client.create_endpoint("shop", "http", {"url": "https://a.example/h"}, retry=[10, 60])
    job = client.send(conn, "shop", {"order": 42}, kind="order.created")
    call = 'order.created(endpoint="shop", payload={"order": 42})'
    shown = forebay("jobs", "list").out
    assert call in shown
    assert "1 of 3" in shown
    assert call in forebay("jobs", "search").out
    assert call in forebay("where", str(job)).out
    one = forebay("jobs", "show", str(job)).out
    assert '"endpoint": "shop"' in one
    assert "1 of 3" in one
    assert forebay("jobs", "list", "--json").json[0]["endpoint"] == "shop"
    client.alter_endpoint("shop", retry="standard")
    assert client.job(job)[0].max_attempts == 10


@pytest.mark.parametrize("preset", PRESETS)
def test_sql_knows_how_often_each_preset_tries(database, conn, preset):
    client = Client(database)
    client.create_endpoint("shop", "http", {"url": "https://a.example/h"}, retry=preset)
    job = client.send(conn, "shop", {})
    assert client.job(job)[0].max_attempts == as_retries(preset).tries


def test_a_dead_delivery_is_shown_with_the_name_of_its_endpoint(forebay, database, conn):
    client = Client(database)
    client.create_endpoint("shop", "http", {"url": "https://a.example/h"})
    client.send(conn, "shop", {"order": 42}, kind="order.created")
    bury(database)
    shown = forebay("dead", "list").out
    assert "endpoint shop" in shown
    assert "forebay.deliver" not in shown
    dead = forebay("dead", "list", "--json").json[0]
    assert dead["endpoint"] == "shop"
    assert '"endpoint": "shop"' in forebay("dead", "show", str(dead["dead_id"])).out


def test_problems_are_told_before_anything_is_saved(forebay):
    """Exit code 1, with each field and its hint; none is 0. The name may be taken."""
    wrong = ("endpoints", "validate", "shop", "--sink", "http", "--set", "url=ftp://a.example/x")
    answer = forebay(*wrong, "--set", "cloudevents=binary", "--rate", "0")
    assert answer.code == 1
    for line in ("config.url: config: url has the scheme ftp", "config.source: ", "rate: ", "→ "):
        assert line in answer.out
    assert {each["field"] for each in forebay(*wrong, "--json").json} == {"config.url"}
    forebay(*NEW)
    good = forebay("endpoints", "validate", *NEW[2:])
    assert (good.code, "nothing is wrong" in good.out) == (0, True)
    assert forebay("endpoints", "list", "--json").json[0]["config"]["url"].endswith("/hook")


def test_the_bound_and_its_policy_are_settings(forebay):
    forebay(*NEW, "--when-full", "drop", "--max-waiting", "5")
    assert "5 waiting, then events are dropped" in forebay("endpoints", "show", "shop").out
    forebay("endpoints", "alter", "shop", "--max-waiting", "0")
    assert forebay("endpoints", "show", "shop", "--json").json["max_waiting"] is None
    answer = forebay("endpoints", "alter", "shop", "--when-full", "wait")
    assert (answer.code, "when_full must be 'refuse' or 'drop'" in answer.err) == (2, True)
