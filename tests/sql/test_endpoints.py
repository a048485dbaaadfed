"""Endpoints: their settings, messages to one of them, the breaker over all processes, and their
health.
"""

import json
import threading
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest
from psycopg.rows import dict_row

from forebay.sinks import row_settings
from forebay.sinks._registry import _OWN
from tests.sql.test_roles import acting_as
from tests.support.engine import Reader, connect, one, shift_clock, sqlstate, trim
from tests.support.mutant import break_function, violation

HTTP = {"url": "https://example.com/hook", "secrets": ["env:KEY"]}


@pytest.fixture
def conn(database):
    with connect(database) as conn:
        conn.execute("delete from forebay.event")
        yield conn


def create(conn, name="shop", config=HTTP, sink="http", **options) -> int:
    names = "".join(f", {option} => %s" for option in options)
    return one(
        conn,
        f"select forebay.create_endpoint(%s, %s, %s::jsonb{names})",
        name,
        sink,
        json.dumps(config),
        *options.values(),
    )


def shown(conn, name="shop") -> dict:
    with conn.cursor(row_factory=dict_row) as cursor:
        return cursor.execute("select * from forebay.endpoints(%s)", [name]).fetchone()


def problem(conn, call, *params) -> tuple[str, str | None, str]:
    """Return SQLSTATE, COLUMN and message of a call that is refused."""
    with pytest.raises(psycopg.Error) as caught:
        conn.execute(call, params)
    diag = caught.value.diag
    return diag.sqlstate, diag.column_name, diag.message_primary


def acts(conn) -> list[str]:
    return [act for (act,) in conn.execute("select act from forebay.event order by event_id")]


def limits(conn, name="shop"):
    """Return rate, burst, concurrency of the endpoint's key, and whether it has to wait for the
    next token.
    """
    return conn.execute(
        "select coalesce(1 / probe_seconds, rate),"
        " case when probe_seconds is null then burst else 1 end,"
        " case when probe_seconds is null then concurrency else 1 end,"
        " empty_until > forebay._now() from forebay.key_limits"
        " where queue = 'forebay.deliver' and key = %s",
        [name],
    ).fetchone()


def report(conn, endpoint_id, **facts):
    """Report about one endpoint; return its row."""
    return conn.execute(
        "select * from forebay.report_deliveries_v1('w', %s::jsonb)",
        [json.dumps([{"endpoint_id": endpoint_id, **facts}])],
    ).fetchone()


def fail(conn, endpoint_id, times=1, error="HTTP status 500"):
    return report(conn, endpoint_id, failed=times, failures=times, answered=False, error=error)


def accept(conn, endpoint_id, times=1):
    return report(
        conn, endpoint_id, accepted=times, failures=0, answered=True, latencies=[0, 0, times]
    )


def settings(conn, since=0):
    version, ids, endpoints = conn.execute(
        "select * from forebay.endpoint_settings_v1(%s)", [since]
    ).fetchone()
    return version, ids, {one["name"]: one for one in endpoints}


def version_of(conn, endpoint_id):
    return one(
        conn, "select xmin::text from forebay.endpoint_state where endpoint_id = %s", endpoint_id
    )


# Settings


def test_the_types_of_sinks_in_the_database_are_those_of_the_library(conn):
    """SQL accepts the settings that the rules of the classes allow to rows."""
    recorded = {
        name: (settings, required)
        for name, settings, required in conn.execute(
            "select name, settings, required from forebay.sink_type where is_ours"
        )
    }
    wanted = {name: row_settings(name) for name in _OWN}
    rows = [
        f"    ('{name}', '{{{','.join(settings)}}}', '{{{','.join(required)}}}', true),"
        for name, (settings, required) in sorted(wanted.items())
        if recorded.get(name) != (settings, required)
    ]
    assert recorded == wanted, "\n".join(["sql/schema/first_rows.sql needs the rows:", *rows])


def test_an_endpoint_has_what_it_was_created_with(conn):
    endpoint_id = create(conn, rate=5, burst=10, retry="[1, 2.5]", max_age="1 day")
    row = shown(conn)
    assert row["endpoint_id"] == endpoint_id
    assert (row["rate"], row["burst"], row["concurrency"], row["retry"]) == (5, 10, 50, [1, 2.5])
    assert (row["breaker"], row["failures"], row["waiting"], row["p99_seconds"]) == (
        "closed",
        0,
        0,
        None,
    )
    assert row["config"] == HTTP
    assert limits(conn) == (5, 10, 50, None)
    assert acts(conn) == ["endpoints.create"]


BAD = [
    (
        "name",
        {"name": ("a b")},
        ("name 'a b' of an endpoint must have 1 to 100 characters: letters, digits and _ . - only"),
    ),
    ("name", {"name": ""}, None),
    ("name", {"name": "x" * 101}, None),
    ("sink", {"sink": "smtp"}, "sink 'smtp' is an unknown type"),
    ("config", {"config": []}, "config is array, not a JSON object"),
    (
        "config",
        {"config": {"url": "u", "ulr": 1}},
        ("config has 'ulr', which is not a setting of the sink http"),
    ),
    ("config", {"config": {}}, "config lacks 'url', which the sink http needs"),
    ("config", {"config": {"url": "u", "secrets": ["whsec_abc"]}}, None),
    (
        "config",
        {"config": {"url": "u", "secrets": "env:KEY"}},
        ("config: secrets is not a list of references"),
    ),
    ("config", {"config": {"url": "u", "secrets": ["env:"]}}, None),
    ("config", {"config": {"url": "u", "secrets": [1]}}, None),
    (
        "config",
        {"config": {"url": "u", "secrets": ["env:A"] * 11}},
        ("config: secrets has more than 10 entries"),
    ),
    (
        "config",
        {"config": {"url": "u", "auth": ("bearer abc")}},
        'config: auth is not a reference to a secret, such as "bearer env:NAME"',
    ),
    ("config", {"config": {"url": "u", "auth": {"a": 1}}}, None),
    ("retry", {"retry": '"often"'}, None),
    (
        "retry",
        {"retry": ("[1, -1]")},
        "retry has the delay -1, not a number of seconds from 0 to 2592000",
    ),
    ("retry", {"retry": '["1"]'}, None),
    ("retry", {"retry": json.dumps([1] * 101)}, "retry has 101 delays, the limit is 100"),
    ("rate", {"rate": 0}, "rate 0 is outside 0.000001 to 1000000 per second"),
    ("burst", {"burst": 2}, "burst 2 without a rate"),
    ("concurrency", {"concurrency": 0}, "concurrency 0 is outside 1 to 1000000"),
    ("keeps_response", {"keeps_response": None}, "keeps_response is null"),
    (
        "breaker_threshold",
        {"breaker_threshold": 1001},
        ("breaker_threshold 1001 is outside 1 to 1000"),
    ),
    (
        "breaker_cooldown",
        {"breaker_cooldown": 4},
        ("breaker_cooldown 4 is outside 5 to 3600 seconds"),
    ),
    (
        "disable_after",
        {"disable_after": ("1 hour")},
        "disable_after 01:00:00 is outside 12 hours to 365 days",
    ),
    ("max_waiting", {"max_waiting": -1}, "max_waiting -1 is outside 1 to 10^12"),
    ("when_full", {"when_full": "wait"}, "when_full 'wait' is neither refuse nor drop"),
    ("max_age", {"max_age": "0"}, "max_age 00:00:00 is outside 1 second to 10 years"),
]


def test_a_bad_setting_is_refused_and_named(conn):
    for field, options, message in BAD:
        with pytest.raises(psycopg.Error) as caught:
            create(conn, **options)
        diag = caught.value.diag
        assert (diag.sqlstate, diag.column_name) == ("JQ001", field), options
        assert message in (None, diag.message_primary)
        assert "whsec" not in str(caught.value)
        assert "abc" not in str(caught.value)
        assert one(conn, "select count(*) from forebay.endpoint") == 0, options
        assert acts(conn) == []


@pytest.mark.parametrize("auth", ["env:A", "bearer env:A", "Basic file:/a", None])
def test_a_reference_to_a_secret_is_accepted(conn, auth):
    create(conn, config={"url": "https://a.example", "auth": auth})


def test_two_endpoints_have_no_name_in_common(conn):
    create(conn)
    call = "select forebay.create_endpoint('shop', 'http', '{\"url\": \"https://a.example\"}')"
    assert problem(conn, call) == ("JQ051", None, "endpoint 'shop' exists already")


UNKNOWN = [
    "alter_endpoint('no')",
    "drop_endpoint('no')",
    "enable_endpoint('no')",
    "disable_endpoint('no')",
    "reset_endpoint('no')",
    "rotate_secret('no', 'env:A')",
    "send('no', '{}')",
    "test_endpoint('no')",
    "send(null, '{}')",
]


@pytest.mark.parametrize("call", UNKNOWN)
def test_an_unknown_endpoint_is_named(conn, call):
    code, _, message = problem(conn, f"select forebay.{call}")
    assert (code, message.endswith("not found")) == ("JQ050", True)


def test_alter_changes_what_is_given_and_nothing_else(conn):
    create(conn, rate=5, burst=10, max_waiting=100)
    before = shown(conn)
    assert one(
        conn, "select forebay.alter_endpoint('shop', concurrency => 3, remove => '{max_waiting}')"
    )
    after = shown(conn)
    assert {k for k in after if after[k] != before[k]} == {
        "concurrency",
        "max_waiting",
        "changed_at",
        "inherits",
    }
    assert limits(conn) == (5, 10, 3, None)
    assert not one(conn, "select forebay.alter_endpoint('shop', concurrency => 3)")
    old, new = conn.execute(
        "select old, new from forebay.event where act = 'endpoints.alter'"
    ).fetchone()
    assert old == {"name": "shop", "concurrency": 50, "max_waiting": 100}
    assert new == {"name": "shop", "concurrency": 3}
    one(conn, "select forebay.alter_endpoint('shop', remove => '{rate}')")
    assert limits(conn) == (None, None, 3, None)


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ("sink => 'kafka'", "config"),
        ("config => '{}'", "config"),
        ("burst => 2", "burst"),
        ("remove => '{keeps_response}'", "remove"),
        ("remove => array[null]", "remove"),
    ],
)
def test_alter_refuses_what_create_refuses(conn, options, field):
    create(conn)
    before = shown(conn)
    assert problem(conn, f"select forebay.alter_endpoint('shop', {options})")[:2] == (
        "JQ001",
        field,
    )
    assert shown(conn) == before


def test_a_change_is_returned_to_deliverers_that_read_before_its_commit(database, conn):
    """A reader that misses a change, because its transaction is open, gets it with the next
    call.
    """
    create(conn)
    create(conn, "other")
    with connect(database) as slow, slow.transaction():
        one(slow, "select forebay.alter_endpoint('other', concurrency => 7)")
        one(conn, "select forebay.alter_endpoint('shop', concurrency => 3)")
        version, ids, found = settings(conn)
        assert (found["shop"]["concurrency"], found["other"]["concurrency"]) == (3, 50)
        assert len(ids) == 2
    version, _, found = settings(conn, version)
    assert found["other"]["concurrency"] == 7
    version, _, _ = settings(conn, version)
    assert settings(conn, version)[2] == {}


def test_a_change_is_missed_if_versions_are_taken_before_the_commit(database, conn):
    break_function(
        database,
        "endpoint_settings_v1",
        ("pg_snapshot_xmin(pg_current_snapshot())", "pg_snapshot_xmax(pg_current_snapshot())"),
    )
    with violation(KeyError):
        test_a_change_is_returned_to_deliverers_that_read_before_its_commit(database, conn)


def test_sinks_of_other_packages_are_recorded(conn):
    mine = {"name": "mine", "settings": ["a", "b"], "required": ["a"]}
    ours = {"name": "http", "settings": [], "required": []}
    call = "select forebay.record_sink_types_v1(%s::jsonb)"
    assert one(conn, call, json.dumps([mine, ours])) == 1
    assert one(conn, call, json.dumps([mine, ours])) == 0
    create(conn, sink="mine", config={"a": 1})
    assert one(conn, "select cardinality(settings) > 5 from forebay.sink_type where name = 'http'")
    for bad in (
        {},
        [1],
        [{"name": "x"}],
        [{**mine, "name": "a b"}],
        [{**mine, "settings": 1}],
        None,
    ):
        assert sqlstate(conn, call, None if bad is None else json.dumps(bad)) == "JQ001"


# Enabling and disabling


def test_a_disabled_endpoint_is_paused_and_takes_no_messages(conn):
    create(conn)
    assert one(conn, "select forebay.disable_endpoint('shop', 'moving')")
    assert not one(conn, "select forebay.disable_endpoint('shop', 'again')")
    row = shown(conn)
    assert row["disabled_why"] == "moving"
    assert row["disabled_at"] is not None
    for call in ("send('shop', '{}')", "test_endpoint('shop')"):
        assert problem(conn, f"select forebay.{call}") == (
            "JQ052",
            None,
            "endpoint 'shop' is disabled",
        )
    paused = "select count(*) from forebay.key_pause where key = 'shop'"
    assert one(conn, paused) == 1
    assert one(conn, "select forebay.enable_endpoint('shop')")
    assert not one(conn, "select forebay.enable_endpoint('shop')")
    assert one(conn, paused) == 0
    assert one(conn, "select forebay.send('shop', '{}')") > 0


def test_deliveries_of_a_disabled_endpoint_wait(database, conn):
    create(conn)
    with Reader(database, "forebay.deliver") as reader:
        first = one(conn, "select forebay.send('shop', '{}')")
        one(conn, "select forebay.disable_endpoint('shop')")
        assert reader.claim_all() == []
        assert shown(conn)["waiting"] == 1
        assert shown(conn)["waiting_since"] is not None
        one(conn, "select forebay.enable_endpoint('shop')")
        (batch,) = reader.claim_all()
        assert [job["job_id"] for job in batch.jobs] == [first]


def test_an_endpoint_with_waiting_deliveries_is_dropped_only_if_asked(database, conn):
    create(conn, rate=5)
    with Reader(database, "forebay.deliver") as reader:
        one(conn, "select forebay.disable_endpoint('shop')")
        conn.execute(
            "select forebay.enqueue('k', '{\"endpoint\": 1, \"payload\": {}}', "
            "'forebay.deliver', limit_key => 'shop')"
        )
        reader.claim_all()
        code, _, message = problem(conn, "select forebay.drop_endpoint('shop')")
        assert (code, message) == ("JQ053", "endpoint 'shop' has 1 waiting deliveries")
        one(conn, "select forebay.drop_endpoint('shop', discard => true)")
        assert len(reader.claim_all()) == 1  # A deliverer ends it.
    assert shown(conn) is None
    assert limits(conn) is None
    assert settings(conn)[1] == []
    assert acts(conn)[-1] == "endpoints.drop"


# Secrets


def test_an_old_secret_signs_until_the_grace_has_passed(conn):
    create(conn)
    one(conn, "select forebay.rotate_secret('shop', 'env:NEW')")
    found = settings(conn)[2]["shop"]
    assert found["config"]["secrets"] == ["env:NEW"]
    assert [old["secret"] for old in found["retired_secrets"]] == ["env:KEY"]
    shift_clock(conn, 90_000)
    one(conn, "select forebay.rotate_secret('shop', 'env:NEWER', '1 hour')")
    found = settings(conn)[2]["shop"]
    assert [old["secret"] for old in found["retired_secrets"]] == ["env:NEW"]
    one(conn, "select forebay.rotate_secret('shop', 'env:LAST', '0')")
    assert settings(conn)[2]["shop"]["config"]["secrets"] == ["env:LAST"]


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ("'whsec_plain'", "secret"),
        ("null", "secret"),
        ("'env:KEY'", "secret"),
        ("'env:A', '-1 s'", "grace"),
        ("'env:A', null", "grace"),
        ("'env:A', '31 days'", "grace"),
    ],
)
def test_a_rotation_that_is_refused_changes_nothing(conn, arguments, field):
    create(conn)
    before = shown(conn)
    code, column, message = problem(conn, f"select forebay.rotate_secret('shop', {arguments})")
    assert (code, column) == ("JQ001", field)
    assert "whsec" not in message
    assert shown(conn) == before


def test_a_sink_that_does_not_sign_has_no_secret_to_rotate(conn):
    create(conn, sink="redis-list", config={"url": "redis://a", "key": "k"})
    assert problem(conn, "select forebay.rotate_secret('shop', 'env:A')")[0] == "JQ001"


# Messages


def test_a_message_is_a_delivery_of_the_transaction(database, conn):
    endpoint_id = create(conn, max_age="1 hour")
    with conn.transaction(force_rollback=True):
        one(conn, "select forebay.send('shop', '{}')")
    one(
        conn,
        "select forebay.send('shop', '{\"a\": 1}', 'order.paid', ordering_key => 'o-1', tag => 't',"
        " headers => '{\"h\": \"v\"}', correlation_id => 'c')",
    )
    with Reader(database, "forebay.deliver") as reader:
        (batch,) = reader.claim_all()
        (job,) = batch.jobs
    assert job["kind"] == "order.paid"
    assert job["args"] == {"payload": {"a": 1}, "endpoint": endpoint_id}
    assert (job["tag"], job["headers"], job["correlation_id"]) == ("t", {"h": "v"}, "c")
    found = conn.execute(
        "select ordering_key, limit_key, expires_at - enqueued_at <= interval '1 hour' "
        "from forebay.log where kind = 'order.paid'"
    ).fetchone()
    assert found == ("shop/o-1", "shop", True)


def test_a_long_ordering_key_is_hashed_and_a_bad_one_is_refused(conn):
    create(conn, "x" * 100)
    for key in ("a" * 100, "a" * 200):
        one(conn, "select forebay.send(%s, '{}', ordering_key => %s)", "x" * 100, key)
    keys = [
        key
        for (key,) in conn.execute(
            "select distinct ordering_key from forebay.log where kind = 'message'"
        )
    ]
    assert len(keys) == 2
    assert all(len(key) <= 200 for key in keys)
    assert (
        sqlstate(conn, "select forebay.send(%s, '{}', ordering_key => E'a\\nb')", "x" * 100)
        == "JQ001"
    )


def test_a_test_message_comes_first(conn):
    create(conn)
    one(conn, "select forebay.send('shop', '{}')")
    job_id = one(conn, "select forebay.test_endpoint('shop')")
    found = conn.execute(
        "select j.job_id, l.priority from forebay.log g join forebay.lane l on l.lane = g.lane"
        " cross join lateral forebay.job(g.seq) j where g.kind = 'forebay.test'"
    ).fetchone()
    assert found == (job_id, -32768)


# The breaker


def test_the_breaker_opens_at_the_threshold_and_an_answer_closes_it(conn):
    endpoint_id = create(conn, rate=7, breaker_threshold=3)
    for _ in range(2):
        assert fail(conn, endpoint_id)[1] is None
    assert fail(conn, endpoint_id)[1] is not None
    row = shown(conn)
    assert (row["breaker"], row["failures"], row["last_error"]) == ("open", 3, "HTTP status 500")
    assert limits(conn) == (pytest.approx(1 / 30), 1, 1, True)
    shift_clock(conn, 31)
    assert shown(conn)["breaker"] == "half-open"
    fail(conn, endpoint_id)  # The probe.
    assert shown(conn)["breaker"] == "open"
    shift_clock(conn, 62)
    assert shown(conn)["breaker"] == "half-open"
    assert accept(conn, endpoint_id)[1] is None
    row = shown(conn)
    assert (row["breaker"], row["failures"], row["failing_since"]) == ("closed", 0, None)
    assert limits(conn) == (7, None, 50, None)
    assert acts(conn) == ["endpoints.create", "circuit.opened", "circuit.closed"]


def test_an_answer_that_rejects_ends_the_row_of_failures(conn):
    endpoint_id = create(conn, breaker_threshold=3)
    fail(conn, endpoint_id, 2)
    report(conn, endpoint_id, rejected=1, failures=0, answered=True, error="HTTP status 404")
    fail(conn, endpoint_id, 2)
    assert shown(conn)["breaker"] == "closed"
    report(conn, endpoint_id, rejected=1, failed=2, failures=2, answered=True)
    assert shown(conn)["failures"] == 2


def test_processes_that_report_at_once_open_it_once(database, conn):
    """No failure is lost, and one report opens."""
    endpoint_id = create(conn, breaker_threshold=40)
    start = threading.Barrier(8)

    def work(_):
        with connect(database) as mine:
            start.wait()
            for _ in range(6):
                fail(mine, endpoint_id)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))
    assert shown(conn)["failures"] == 48
    assert acts(conn).count("circuit.opened") == 1


def test_failures_are_lost_without_the_lock(database, conn):
    break_function(
        database,
        "_report_endpoint",
        (
            "where i.endpoint_id = r.endpoint_id for update;",
            "where i.endpoint_id = r.endpoint_id; perform pg_sleep(0.005);",
        ),
    )
    # The breaker's own lock would do.
    break_function(database, "_step_breaker", ("b.key = r.key for update;", "b.key = r.key;"))
    with violation():
        test_processes_that_report_at_once_open_it_once(database, conn)


def test_late_failures_open_it_again_only_at_the_threshold(conn):
    endpoint_id = create(conn, breaker_threshold=3)
    fail(conn, endpoint_id, 5)
    accept(conn, endpoint_id)
    assert fail(conn, endpoint_id, 2)[1] is None
    assert fail(conn, endpoint_id, 1)[1] is not None


def test_one_probe_per_cooldown_runs_over_all_workers(database, conn):
    endpoint_id = create(conn, breaker_threshold=1)
    with (
        Reader(database, "forebay.deliver") as one_reader,
        Reader(database, "forebay.deliver") as other,
    ):
        fail(conn, endpoint_id)
        conn.execute("select forebay.send('shop', '{}') from generate_series(1, 20)")
        readers = (one_reader, other)

        def claimed():
            while one(conn, "select forebay.promote_v1()"):
                pass
            return [(reader, batch) for reader in readers for batch in reader.claim_all()]

        assert claimed() == []
        shift_clock(conn, 31)
        ((reader, batch),) = claimed()
        assert len(batch.jobs) == 1
        fail(conn, endpoint_id)
        reader.finish(batch)
        assert claimed() == []
        shift_clock(conn, 62)
        ((reader, batch),) = claimed()
        accept(conn, endpoint_id)
        reader.finish(batch)
        assert sum(len(batch.jobs) for _, batch in claimed()) == 18


def test_a_reset_closes_it(conn):
    endpoint_id = create(conn, breaker_threshold=1)
    assert not one(conn, "select forebay.reset_endpoint('shop')")
    fail(conn, endpoint_id)
    assert one(conn, "select forebay.reset_endpoint('shop')")
    assert (shown(conn)["breaker"], shown(conn)["failures"]) == ("closed", 0)
    assert limits(conn) == (None, None, 50, None)
    assert acts(conn)[-1] == "circuit.reset"


def test_limits_that_change_while_it_is_open_hold_when_it_closes(conn):
    endpoint_id = create(conn, breaker_threshold=1)
    fail(conn, endpoint_id)
    one(conn, "select forebay.alter_endpoint('shop', concurrency => 2, rate => 9)")
    assert limits(conn) == (pytest.approx(1 / 30), 1, 1, True)
    one(conn, "select forebay.alter_endpoint('shop', breaker_cooldown => 10)")
    assert limits(conn) == (pytest.approx(1 / 10), 1, 1, True)
    accept(conn, endpoint_id)
    assert limits(conn) == (9, None, 2, None)


def test_deliverers_see_that_it_opened(conn):
    endpoint_id = create(conn, breaker_threshold=1)
    version, _, _ = settings(conn)
    fail(conn, endpoint_id)
    assert settings(conn, version)[2]["shop"]["opened_at"] is not None


def test_reports_without_news_update_no_row(conn):
    endpoint_id = create(conn)
    accept(conn, endpoint_id)
    before = version_of(conn, endpoint_id)
    for _ in range(5):
        accept(conn, endpoint_id)
    assert version_of(conn, endpoint_id) == before
    shift_clock(conn, 6)
    accept(conn, endpoint_id)
    assert version_of(conn, endpoint_id) != before


def test_a_report_waits_for_no_lock_of_another_endpoint(database, conn):
    """Reports lock in the order of the ids: two that name the same endpoints in opposite orders
    both end.
    """
    ids = [create(conn, name, breaker_threshold=1000) for name in ("a", "b", "c")]
    start = threading.Barrier(2)

    def work(order):
        with connect(database) as mine:
            facts = json.dumps(
                [
                    {"endpoint_id": one, "failed": 1, "failures": 1, "answered": False}
                    for one in order
                ]
            )
            start.wait()
            for _ in range(50):
                mine.execute("select forebay.report_deliveries_v1('w', %s::jsonb)", [facts])

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(work, [ids, ids[::-1]]))
    assert {shown(conn, name)["failures"] for name in "abc"} == {100}


def test_a_report_about_an_endpoint_that_was_dropped_counts_nothing(conn):
    endpoint_id = create(conn)
    one(conn, "select forebay.drop_endpoint('shop')")
    assert fail(conn, endpoint_id) is None
    assert one(conn, "select count(*) from forebay.endpoint_activity") == 0
    assert sqlstate(conn, "select forebay.report_deliveries_v1('w', '{}')") == "JQ001"


# Disabled by rule, pauses


def test_an_endpoint_that_is_gone_is_disabled(conn):
    endpoint_id = create(conn)
    row = report(
        conn, endpoint_id, rejected=1, failures=0, answered=True, gone=True, error="HTTP status 410"
    )
    assert row[2] is not None
    assert shown(conn)["disabled_why"] == "gone: HTTP status 410"


def test_an_endpoint_without_a_success_for_long_is_disabled_after_warnings(conn):
    """Each part is published once, and a success begins anew."""
    endpoint_id = create(conn, disable_after="10 days", breaker_threshold=1000)
    day = 86_400

    def percents():
        return [
            percent
            for (percent,) in conn.execute(
                "select (args ->> 'percent')::int from forebay.log where kind = "
                "'forebay.endpoint_failing' order by seq"
            )
        ]

    fail(conn, endpoint_id)
    for days, expected in [(4, []), (5.1, [50]), (5.2, [50]), (9.5, [50, 90])]:
        shift_clock(conn, days * day)
        fail(conn, endpoint_id)
        assert percents() == expected
    accept(conn, endpoint_id)
    shift_clock(conn, 10 * day)
    fail(conn, endpoint_id)
    assert shown(conn)["disabled_at"] is None
    shift_clock(conn, 30 * day)
    accept_row = report(
        conn, endpoint_id, rejected=1, failures=0, answered=True, error="HTTP status 401"
    )
    assert accept_row[2] is not None
    assert percents() == [50, 90, 100]
    one(conn, "select forebay.enable_endpoint('shop')")
    fail(conn, endpoint_id)
    assert shown(conn)["disabled_at"] is None


def test_a_report_counts_although_its_event_cannot_be_published(conn):
    """The event type was dropped."""
    conn.execute("delete from forebay.event_type")
    endpoint_id = create(conn, disable_after="1 day")
    fail(conn, endpoint_id)
    shift_clock(conn, 90_000)
    assert fail(conn, endpoint_id)[2] is not None


def test_an_endpoint_that_asks_for_a_pause_has_it_for_at_most_an_hour(conn):
    endpoint_id = create(conn)
    throttled = {"failed": 1, "failures": 0, "answered": True, "error": "HTTP status 429"}
    report(conn, endpoint_id, **throttled, pause_seconds=60)
    until = shown(conn)["paused_until"]
    report(conn, endpoint_id, **throttled, pause_seconds=10)
    assert shown(conn)["paused_until"] == until
    report(conn, endpoint_id, **throttled, pause_seconds=99_999)
    seconds = one(
        conn,
        "select extract(epoch from paused_until - forebay._now()) from forebay.endpoints('shop')",
    )
    assert 3500 < seconds <= 3600
    one(conn, "select forebay.pause_key('forebay.deliver', limit_key => 'shop')")
    report(conn, endpoint_id, **throttled, pause_seconds=60)
    assert one(conn, "select paused_until = 'infinity' from forebay.endpoints('shop')")


# Health


def test_rates_and_latencies_are_those_of_the_last_minutes(conn):
    endpoint_id = create(conn)
    report(
        conn,
        endpoint_id,
        accepted=100,
        failures=0,
        answered=True,
        latencies=[0, 0, 0, 95, 4, 0, 0, 1],
    )
    report(
        conn,
        endpoint_id,
        accepted=20,
        failed=12,
        rejected=6,
        failures=0,
        answered=True,
        latencies=[20],
    )
    row = shown(conn)
    assert row["accepted_per_second"] == pytest.approx(1)
    assert (row["failed_per_second"], row["rejected_per_second"]) == pytest.approx((0.1, 0.05))
    assert row["p99_seconds"] == pytest.approx(0.016)
    shift_clock(conn, 200)
    assert (shown(conn)["accepted_per_second"], shown(conn)["p99_seconds"]) == (0, None)
    assert trim(conn, "endpoint_activities") == 0
    shift_clock(conn, 4000)
    assert trim(conn, "endpoint_activities") == 2


# Roles


def test_each_role_may_do_its_part(database, conn):
    create(conn)
    change = "select forebay.alter_endpoint('shop', concurrency => 1)"
    send = "select forebay.send('shop', '{}')"
    see = "select count(*) from forebay.endpoints()"
    work = "select forebay.endpoint_settings_v1(0)::text"
    may = {
        "producer": [send],
        "worker": [send, work],
        "operator": [change, see],
        "reader": [see],
    }
    for role, allowed in may.items():
        with acting_as(database, f"forebay_{role}") as login:
            for call in (change, send, see, work):
                expected = None if call in allowed else "42501"
                assert sqlstate(login, call) == expected, (role, call)
