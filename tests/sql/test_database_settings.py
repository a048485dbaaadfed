"""Settings of the database: what each may be, who may set it, and that it holds where nobody else
has set it.
"""

import json

import psycopg
import pytest

from tests.sql.test_roles import acting_as
from tests.support.engine import connect, enqueue, one, sqlstate
from tests.support.mutant import break_function, violation

HTTP = {"url": "https://example.com/hook", "secrets": ["env:KEY"]}


def configure(conn, name, value, **more):
    names = "".join(f", {option} => %s" for option in more)
    return one(conn, f"select forebay.configure(%s, %s{names})", name, value, *more.values())


def setting(conn, name) -> dict:
    return one(conn, "select to_jsonb(s) from forebay.settings() s where s.name = %s", name)


def refused(conn, name, value) -> tuple[str, str, str]:
    with pytest.raises(psycopg.Error) as caught:
        configure(conn, name, value)
    diag = caught.value.diag
    return diag.sqlstate, diag.message_primary, diag.message_hint


def test_every_setting_says_what_it_may_be_and_nobody_has_set_it(conn):
    """A new database has the built-in value of each, with its range and what it does."""
    rows = one(conn, "select jsonb_agg(to_jsonb(s)) from forebay.settings() s")
    assert len(rows) == 21
    for row in rows:
        if row["name"] == "reserve_rows":
            continue  # databases of tests have few segments
        assert row["value"] == row["built_in"], row
        assert all((row["range"], row["meaning"])), row
        assert (row["set_by"], row["set_at"]) == (None, None)


@pytest.mark.parametrize(
    ("name", "value", "held"),
    [
        ("max_attempts", 7, 7),
        ("max_attempts", " 7 ", 7),
        ("max_attempts", 7.0, 7),
        ("retry_base_seconds", 0.5, 0.5),
        ("retry_base_seconds", "5e-1", 0.5),
        ("retry_strategy", "linear", "linear"),
        ("retry_jitter", False, False),
        ("retry_jitter", "off", False),
        ("endpoint_retry", "ulak", "ulak"),
        ("endpoint_retry", "[1, 2.5]", [1, 2.5]),
        ("max_waiting", 10**12, 10**12),
    ],
)
def test_a_value_is_set_shown_and_reset(conn, name, value, held):
    """Numbers, words and truth values may come as text; the event log has who set what."""
    before = setting(conn, name)["value"]
    conn.execute("select set_config('forebay.actor', 'ada', false)")
    assert configure(conn, name, value) == before
    row = setting(conn, name)
    assert (row["value"], row["set_by"], row["set_at"] is not None) == (held, "ada", True)
    assert configure(conn, name, None) == held
    row = setting(conn, name)
    assert (row["value"], row["set_by"], row["set_at"]) == (before, None, None)
    acts = conn.execute(
        "select old, new, actor, detail from forebay.event"
        " where act = 'configure' and actor = 'ada'"
    ).fetchall()
    assert sorted(acts, key=lambda row: row[3] or "") == [
        ({name: before}, {name: held}, "ada", None),
        ({name: held}, {name: before}, "ada", "reset"),
    ]


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("max_attempts", 0, "max_attempts: value 0 is not an integer within 1 to 10000 attempts"),
        (
            "max_attempts",
            2.5,
            "max_attempts: value 2.5 is not an integer within 1 to 10000 attempts",
        ),
        ("max_attempts", "many", "is not an integer within 1 to 10000 attempts"),
        ("max_attempts", True, "is not an integer within 1 to 10000 attempts"),
        ("max_attempts", "1e99", "is not an integer within 1 to 10000 attempts"),
        ("max_attempts", "9" * 5000, "is not an integer within 1 to 10000 attempts"),
        ("retry_base_seconds", float("nan"), "is not a number within 0.001 to 3153600000 seconds"),
        ("retry_base_seconds", float("inf"), "is not a number within 0.001 to 3153600000 seconds"),
        ("retry_strategy", "cubic", "is not one of fixed, linear, exponential, polynomial"),
        ("retry_jitter", "perhaps", "is not true or false"),
        ("endpoint_retry", "fast", "endpoint_retry: value: retry"),
        ("endpoint_retry", "[-1]", "endpoint_retry: value: retry has the delay -1"),
        ("endpoint_retry", "[", "endpoint_retry: value: retry"),
        ("lease_seconds", 9, "lease_seconds: value 9 is not an integer within 10 to 3600 seconds"),
        ("retry_base_seconds", 3601, "would be above retry_cap_seconds 3600"),
        ("retry_cap_seconds", 4, "retry_base_seconds 5 would be above retry_cap_seconds 4"),
        ("bogus", 1, "unknown setting 'bogus'"),
        (None, 1, "unknown setting null"),
    ],
)
def test_a_value_out_of_range_is_refused_with_range_and_unit(conn, name, value, message):
    """Nothing is written, and the hint can be followed."""
    conn.execute("delete from forebay.event")
    state, found, hint = refused(conn, name, value)
    assert (state, message in found) == ("JQ001", True), found
    assert hint
    assert one(conn, "select count(*) from forebay.event") == 0
    assert one(conn, "select count(*) from forebay.setting where set_at is not null") == 1


def test_a_dry_run_checks_and_writes_nothing(conn):
    """It refuses what the act refuses, and returns the present value."""
    assert configure(conn, "max_attempts", 3, dry_run=True) == 20
    assert setting(conn, "max_attempts")["set_at"] is None
    query = "select forebay.configure('max_attempts', 0, dry_run => true)"
    assert sqlstate(conn, query) == "JQ001"


def test_an_operator_sets_and_a_reader_reads(database, conn):
    """The layout of the log is for the owner; workers and producers may do neither."""
    with acting_as(database, "forebay_operator") as operator:
        assert configure(operator, "max_attempts", 3) == 20
        for name in ("segment_rows", "reserve_rows"):
            assert refused(operator, name, 2_000_000)[0] == "42501"
        assert setting(operator, "max_attempts")["value"] == 3
    assert configure(conn, "segment_rows", 2_000_000) == 1_000_000
    with acting_as(database, "forebay_reader") as reader:
        assert setting(reader, "max_attempts")["value"] == 3
        assert sqlstate(reader, "select forebay.configure('max_attempts', 4)") == "42501"
    for role in ("forebay_worker", "forebay_producer"):
        with acting_as(database, role) as other:
            assert sqlstate(other, "select forebay.configure('max_attempts', 4)") == "42501"
            assert sqlstate(other, "select * from forebay.settings()") == "42501"


def bounded(database: str) -> None:
    with connect(database) as conn:
        configure(conn, "max_waiting", 2)
        for _ in range(2):
            enqueue(conn)
        assert sqlstate(conn, "select forebay.enqueue('work', '{}')") == "53400"
        many = "select forebay.enqueue_many('work', array_fill('{}'::jsonb, '{3}'), 'other')"
        assert sqlstate(conn, many) == "53400"
        # A queue's own limit comes first, in both directions.
        one(conn, "select forebay.limit_queue('default', max_waiting => 3)")
        enqueue(conn)
        assert sqlstate(conn, "select forebay.enqueue('work', '{}')") == "53400"
        one(conn, "select forebay.limit_queue('other', max_waiting => 1)")
        enqueue(conn, queue="other")
        assert sqlstate(conn, "select forebay.enqueue('work', '{}', 'other')") == "53400"
        # The queues of events and deliveries have only their own.
        for _ in range(4):
            one(conn, "select forebay.publish('forebay.alert', '{}')")
        configure(conn, "max_waiting", None)
        one(conn, "select forebay.limit_queue('default', remove => '{all}')")
        enqueue(conn)


def test_a_bound_on_waiting_jobs_holds_for_every_queue(database):
    """From the commit on, in sessions that have enqueued before too."""
    bounded(database)


def test_without_the_look_at_the_database_the_bound_does_not_hold(database):
    """The enqueue is the place that holds for every producer."""
    look = "v_max := forebay._setting_value('max_waiting');"
    break_function(database, "_require_below_max_waiting", (look, ""))
    with violation():
        bounded(database)


def endpoint(conn, name="shop") -> dict:
    return one(conn, "select to_jsonb(e) from forebay.endpoints(%s) e", name)


def test_endpoints_have_the_settings_of_the_database_until_they_have_their_own(conn):
    """A change is seen by deliverers with the next read, and by the limits of the key at once."""
    create = "select forebay.create_endpoint(%s, 'http', %s::jsonb"
    one(conn, f"{create})", "shop", json.dumps(HTTP))
    own = "retry => '[1]', concurrency => 3, breaker_threshold => 4, breaker_cooldown => 9"
    one(conn, f"{create}, {own})", "own", json.dumps(HTTP))
    names = ("retry", "concurrency", "breaker_threshold", "breaker_cooldown")
    assert tuple(endpoint(conn)[name] for name in names) == ("standard", 50, 10, 30)
    assert endpoint(conn)["inherits"] == list(names)
    version, _, _ = conn.execute("select * from forebay.endpoint_settings_v1(0)").fetchone()
    configure(conn, "endpoint_retry", "[7, 8]")
    configure(conn, "endpoint_concurrency", 2)
    configure(conn, "breaker_failures", 5)
    configure(conn, "breaker_cooldown_seconds", 60)
    assert tuple(endpoint(conn)[name] for name in names) == ([7, 8], 2, 5, 60)
    assert tuple(endpoint(conn, "own")[name] for name in names) == ([1], 3, 4, 9)
    assert endpoint(conn, "own")["inherits"] == []
    changed = one(conn, "select endpoints from forebay.endpoint_settings_v1(%s)", version)
    assert [(e["name"], e["retry"], e["breaker_threshold"]) for e in changed] == [
        ("shop", [7, 8], 5)
    ]
    key = "select concurrency from forebay.key_limits where queue = 'forebay.deliver' and key = %s"
    assert (one(conn, key, "shop"), one(conn, key, "own")) == (2, 3)
    # Its own value is removed: the database decides again.
    assert one(conn, "select forebay.alter_endpoint('own', remove => '{retry,concurrency}')")
    assert tuple(endpoint(conn, "own")[name] for name in names) == ([7, 8], 2, 4, 9)
    assert one(conn, key, "own") == 2


def test_a_breaker_of_a_database_opens_an_endpoint(conn):
    """The threshold counts from the commit on."""
    one(conn, "select forebay.create_endpoint('shop', 'http', %s::jsonb)", json.dumps(HTTP))
    configure(conn, "breaker_failures", 2)
    report = [{"endpoint_id": endpoint(conn)["endpoint_id"], "failures": 2, "failed": 2}]
    one(conn, "select opened_at from forebay.report_deliveries_v1('w', %s)", json.dumps(report))
    assert endpoint(conn)["breaker"] == "open"


def test_workers_are_told_what_somebody_has_set(conn):
    """What is as built in is not told: their own defaults hold."""
    assert one(conn, "select forebay.followed_settings_v1()") == {}
    configure(conn, "max_attempts", 3)
    configure(conn, "retention_days", 3)
    assert one(conn, "select forebay.followed_settings_v1()") == {"max_attempts": 3}
    assert one(conn, "select settings from forebay.heartbeat_v1('{}')") == {"max_attempts": 3}


def test_two_calls_at_once_take_turns(database, conn):
    """The second waits for the first, so that a base is never left above its cap."""
    with connect(database) as other, conn.transaction():
        configure(conn, "retry_base_seconds", 100)
        other.execute("set lock_timeout = '100ms'")
        assert sqlstate(other, "select forebay.configure('retry_cap_seconds', 50)") == "55P03"
        assert one(other, "select value from forebay.setting where name = 'max_attempts'") == 20
