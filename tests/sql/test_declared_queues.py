"""Declared queues: code, database and what was applied last are compared, and what somebody
changed by hand is kept.
"""

import json

import psycopg
import pytest

from tests.support.engine import Reader, connect, enqueue, one, sqlstate
from tests.support.mutant import break_function
from tests.support.waiting import wait_for


@pytest.fixture
def conn(database):
    with connect(database) as conn:
        yield conn


def apply(conn, *queues, app="shop", overwrite=False, function="apply_queues"):
    """Apply declarations; return the differences as {(queue, setting): action}."""
    rows = conn.execute(
        f"select queue, setting, action from forebay.{function}(%s, %s::jsonb, %s)",
        [app, json.dumps(queues), overwrite],
    )
    return {(queue, setting): action for queue, setting, action in rows}


def compare(conn, *queues, **options):
    return apply(conn, *queues, function="compare_queues", **options)


def settings(conn, queue="q"):
    return dict(
        conn.execute("select setting, value from forebay._queue_settings(%s)", [queue]).fetchall()
    )


def limit(conn, **changes):
    named = ", ".join(f"{name} => %s" for name in changes)
    conn.execute(f"select forebay.limit_queue('q', {named})", list(changes.values()))


EVERYTHING = {
    "queue": "q", "max_waiting": 1000, "rate": 0.1 + 0.2, "burst": 5, "concurrency": 20,
    "key_rate": 2,
    "key_concurrency": 3, "shards": 4, "dead_keep_days": 90, "groups": ["default", "audit"],
}  # fmt: skip


def test_every_declared_setting_is_applied_once(conn):
    """A second call finds no difference, also under other settings of the session."""
    found = apply(conn, EVERYTHING)
    assert set(found.values()) == {"set"}
    assert len(found) == 9
    assert settings(conn) == {
        "max_waiting": 1000,
        "rate": {"rate": 0.1 + 0.2, "burst": 5},
        "concurrency": 20,
        "key_rate": {"rate": 2},
        "key_concurrency": 3,
        "shards": 4,
        "dead_keep_days": 90,
        ("group default"): "open",
        "group audit": "open",
    }
    conn.execute("set extra_float_digits = -5")
    before = conn.execute("select * from forebay.applied_setting order by 1, 2").fetchall()
    assert apply(conn, EVERYTHING) == {} == compare(conn, EVERYTHING)
    assert conn.execute("select * from forebay.applied_setting order by 1, 2").fetchall() == before


def test_a_maximum_of_waiting_jobs_and_its_group_are_one_setting(conn):
    declared = {"queue": "q", "max_waiting": 10, "max_waiting_group": "audit"}
    assert apply(conn, declared) == {("q", "max_waiting"): "set"}
    assert settings(conn) == {"max_waiting": {"max_waiting": 10, "max_waiting_group": "audit"}}
    assert apply(conn, declared) == {}
    assert apply(conn, declared | {"max_waiting_group": "other"}) == {
        ("q", "max_waiting"): "change"
    }
    assert apply(conn, {"queue": "q", "max_waiting": 10}) == {("q", "max_waiting"): "change"}
    assert settings(conn) == {"max_waiting": 10}
    conn.execute("select forebay.limit_queue('q', max_waiting_group => 'audit')")
    assert apply(conn, {"queue": "q", "max_waiting": 10}) == {("q", "max_waiting"): "kept"}
    conn.execute("select forebay.limit_queue('q', remove => '{max_waiting_group}')")
    assert apply(conn, {"queue": "q"}) == {("q", "max_waiting"): "remove"}
    assert settings(conn) == {}


def test_a_comparison_changes_nothing(conn):
    assert set(compare(conn, EVERYTHING).values()) == {"set"}
    assert settings(conn) == {}
    assert one(conn, "select count(*) from forebay.applied_setting") == 0


def test_changed_code_is_applied_and_what_it_no_longer_declares_is_removed(conn):
    apply(conn, EVERYTHING)
    found = apply(conn, {"queue": "q", "concurrency": 7, "rate": 1, "groups": ["default"]})
    assert found == {
        ("q", "concurrency"): "change", ("q", "rate"): "change", ("q", "max_waiting"): "remove",
        ("q", "key_rate"): "remove", ("q", "key_concurrency"): "remove", ("q", "shards"): "remove",
        ("q", "dead_keep_days"): "remove", ("q", "group audit"): "forget",
    }  # fmt: skip
    assert settings(conn) == {
        "concurrency": 7, "rate": {"rate": 1}, "group default": "open", "group audit": "open"
    }  # fmt: skip
    assert apply(conn, {"queue": "q", "concurrency": 7, "rate": 1, "groups": ["default"]}) == {}
    assert apply(conn) == {
        ("q", "concurrency"): "remove",
        ("q", "rate"): "remove",
        ("q", "group default"): "forget",
    }
    assert settings(conn) == {"group default": "open", "group audit": "open"}
    assert one(conn, "select count(*) from forebay.applied_setting") == 0


@pytest.mark.parametrize(
    ("setting", "by_hand"),
    [
        ("concurrency", "select forebay.limit_queue('q', concurrency => 1)"),
        ("concurrency", "select forebay.limit_queue('q', remove => '{concurrency}')"),
        ("rate", "select forebay.limit_queue('q', burst => 9)"),
        ("rate", "select forebay.limit_queue('q', remove => '{rate}')"),
        ("shards", "select forebay.shard_queue('q', 1)"),
        ("dead_keep_days", "select forebay.keep_dead('q')"),
        ("dead_keep_days", "select forebay.keep_dead('q', inherit => true)"),
        ("group audit", "select forebay.close_group('q', 'audit')"),
    ],
)
def test_what_is_changed_by_hand_is_kept(conn, setting, by_hand):
    apply(conn, EVERYTHING)
    conn.execute(by_hand)
    changed = settings(conn)
    for _ in range(2):
        assert apply(conn, EVERYTHING) == {("q", setting): "kept"}
        assert settings(conn) == changed


def test_what_both_changed_is_a_conflict_until_somebody_decides(conn):
    apply(conn, {"queue": "q", "concurrency": 20})
    limit(conn, concurrency=1)
    new = {"queue": "q", "concurrency": 30}
    assert apply(conn, new) == {("q", "concurrency"): "conflict"} == apply(conn, new)
    assert settings(conn) == {"concurrency": 1}
    assert compare(conn, new, overwrite=True) == {("q", "concurrency"): "change"}
    assert apply(conn, new, overwrite=True) == {("q", "concurrency"): "change"}
    assert settings(conn) == {"concurrency": 30}
    assert apply(conn, new) == {}


def test_a_conflict_ends_when_the_hand_takes_its_change_back(conn):
    apply(conn, {"queue": "q", "concurrency": 20})
    limit(conn, concurrency=1)
    apply(conn, {"queue": "q", "concurrency": 30})
    limit(conn, concurrency=20)
    assert apply(conn, {"queue": "q", "concurrency": 30}) == {("q", "concurrency"): "change"}


def test_what_was_set_by_hand_before_it_was_declared_is_kept(conn):
    limit(conn, concurrency=5, max_waiting=10)
    both = {"queue": "q", "concurrency": 20, "max_waiting": 10}
    assert apply(conn, both) == {("q", "concurrency"): "conflict"}
    # The equal one belongs to the code from now on.
    assert apply(conn, {"queue": "q"}) == {("q", "max_waiting"): "remove"}
    assert settings(conn) == {"concurrency": 5}


def test_what_is_no_longer_declared_stays_if_it_was_changed_by_hand(conn):
    apply(conn, {"queue": "q", "concurrency": 20, "max_waiting": 10, "rate": 2})
    limit(conn, concurrency=1, burst=7)
    found = apply(conn, {"queue": "q"}, overwrite=True)
    assert found == {
        ("q", "concurrency"): "forget",
        ("q", "rate"): "forget",
        ("q", "max_waiting"): "remove",
    }
    assert settings(conn) == {"concurrency": 1, "rate": {"rate": 2, "burst": 7}}
    assert apply(conn, {"queue": "q"}) == {}


def test_an_application_removes_only_what_it_applied(conn):
    apply(conn, {"queue": "q", "concurrency": 20}, app="shop")
    assert apply(conn, {"queue": "mail", "rate": 2}, app="billing") == {("mail", "rate"): "set"}
    assert settings(conn) == {"concurrency": 20}


def test_a_setting_of_another_application_is_a_conflict(conn):
    apply(conn, {"queue": "q", "concurrency": 20}, app="shop")
    other = {"queue": "q", "concurrency": 30}
    assert apply(conn, other, app="billing") == {("q", "concurrency"): "conflict"}
    assert apply(conn, other, app="billing", overwrite=True) == {("q", "concurrency"): "change"}
    # Now the first application is the other one, and removes nothing.
    assert apply(conn, app="shop") == {}
    assert apply(conn, app="billing") == {("q", "concurrency"): "remove"}


def test_groups_that_are_declared_together_miss_no_job(database, conn):
    """Jobs that were enqueued before the first apply reach every declared group, the first and
    the others.
    """
    enqueue(conn, queue="q")
    apply(conn, {"queue": "q", "groups": ["default", "audit"]})
    for group in ("default", "audit"):
        with Reader(database, "q", group=group) as reader:
            assert [len(batch.jobs) for batch in reader.claim_all()] == [1], group


def test_a_group_that_is_declared_later_gets_later_jobs(database, conn):
    apply(conn, {"queue": "q", "groups": ["default"]})
    enqueue(conn, queue="q")
    apply(conn, {"queue": "q", "groups": ["default", "audit"]})
    with Reader(database, "q", group="audit") as reader:
        assert list(reader.claim_all()) == []


@pytest.mark.parametrize(
    ("queues", "problem"),
    [
        ("null", "not a JSON array"),
        ('{"queue": "q"}', "not a JSON array"),
        ("[1]", "is not a name"),
        ('[{"concurrency": 1}]', "is not a name"),
        ('[{"queue": "a b"}]', "queue a b is not a name"),
        ('[{"queue": "q"}, {"queue": "q", "rate": 1}]', "queue q is declared twice"),
        ('[{"queue": "q", "speed": 1}]', "queue q: speed is not a setting"),
        ('[{"queue": "q", "rate": "fast"}]', 'queue q: rate is "fast", not a number'),
        ('[{"queue": "q", "rate": 0}]', "queue q: rate is 0, not within 0.000001 to 1000000"),
        (
            '[{"queue": "q", "concurrency": 1.5}]',
            "concurrency is 1.5, not an integer of 1 to 1000000",
        ),
        ('[{"queue": "q", "max_waiting": 1e30}]', "max_waiting is 1000000"),
        ('[{"queue": "q", "burst": 2}]', "burst is given without rate"),
        (
            ('[{"queue": "q", "key_burst": 2, "key_rate": null}]'),
            "key_burst is given without key_rate",
        ),
        (
            ('[{"queue": "q", "max_waiting_group": "a"}]'),
            "max_waiting_group is given without max_waiting",
        ),
        ('[{"queue": "q", "max_waiting": 1, "max_waiting_group": "a b"}]', "max_waiting_group"),
        ('[{"queue": "q", "shards": 65}]', "shards is 65"),
        ('[{"queue": "q", "dead_keep_days": "always"}]', "dead_keep_days"),
        ('[{"queue": "q", "groups": "default"}]', "groups is not an array"),
        ('[{"queue": "q", "groups": ["a", "a"]}]', "group a is not a name, or is named twice"),
        ('[{"queue": "q", "groups": ["a b"]}]', "group a b is not a name"),
        ('[{"queue": "q", "groups": [1]}]', "group 1 is not a name"),
    ],
)
def test_a_wrong_declaration_is_refused_and_nothing_is_changed(conn, queues, problem):
    good = '[{"queue": "a", "concurrency": 1}'
    for text in {queues, queues.replace("[", good + ", ", 1) if queues[0] == "[" else queues}:
        for function in ("apply_queues", "compare_queues"):
            with pytest.raises(psycopg.Error) as error:
                conn.execute(f"select forebay.{function}('shop', %s::jsonb)", [text])
            assert error.value.sqlstate == "JQ001"
            assert problem in str(error.value)
    assert settings(conn, "a") == {}


@pytest.mark.parametrize("app", [None, "", "x" * 201, "a\nb"])
def test_a_wrong_name_of_an_application_is_refused(conn, app):
    assert sqlstate(conn, "select forebay.apply_queues(%s, '[]')", app) == "JQ001"


def apply_at_the_same_time(database):
    """Begin to apply version 1, start version 2 meanwhile, commit the first.

    Return what was recorded and what is set.
    """
    from concurrent.futures import ThreadPoolExecutor

    with connect(database) as first, connect(database) as second, ThreadPoolExecutor(1) as pool:
        first.execute("begin")
        apply(first, {"queue": "q", "concurrency": 1})
        pid = second.info.backend_pid
        later = pool.submit(apply, second, {"queue": "q", "concurrency": 2, "max_waiting": 9})

        def is_waiting():
            state = one(first, "select wait_event_type from pg_stat_activity where pid = %s", pid)
            return state == "Lock"

        wait_for(is_waiting)
        first.execute("commit")
        return later.result(30), settings(second)


def test_two_versions_that_are_deployed_at_once_are_applied_one_after_the_other(database):
    """The second one compares with what the first one left, so it is what both the database and
    the record have.
    """
    found, left = apply_at_the_same_time(database)
    assert found == {("q", "concurrency"): "change", ("q", "max_waiting"): "set"}
    assert left == {"concurrency": 2, "max_waiting": 9}


def test_without_the_lock_the_second_version_compares_with_what_is_gone(database):
    lock = (
        "lock table forebay.applied_setting, forebay.queue_limits, forebay.queue_shards, "
        "forebay.dead_retention, forebay.queue_notices in share row exclusive mode;"
    )
    break_function(database, "apply_queues", (lock, ""), ("perform forebay._lock_settings();", ""))
    found, _ = apply_at_the_same_time(database)
    assert found == {
        ("q", "concurrency"): "set",
        ("q", "max_waiting"): "set",
    }  # compared with what was there before the first


def test_a_change_by_hand_waits_for_an_apply_that_is_open(database, conn):
    """So no change by hand comes between the comparison and the write."""
    with connect(database) as other:
        conn.execute("begin")
        apply(conn, {"queue": "q", "concurrency": 20})
        other.execute("set lock_timeout = '100ms'")
        for statement in (
            "select forebay.limit_queue('q', rate => 1)",
            "select forebay.shard_queue('q', 2)",
            "select forebay.keep_dead('q', 2)",
        ):
            assert sqlstate(other, statement) == "55P03"
        # Producers and workers do not wait.
        enqueue(other, queue="q")
        with Reader(database, "q") as reader:
            assert len(reader.claim_ready(1).jobs) == 1
        conn.execute("rollback")


def test_a_rolled_back_apply_leaves_nothing(conn):
    conn.execute("begin")
    apply(conn, EVERYTHING)
    conn.execute("rollback")
    assert settings(conn) == {}
    assert set(apply(conn, EVERYTHING).values()) == {"set"}


def test_what_follows_an_apply_in_its_transaction_is_an_act_of_its_caller(conn):
    conn.execute("set forebay.actor = 'alice'")
    with conn.transaction():
        apply(conn, EVERYTHING)
        one(conn, "select forebay.shard_queue('other', 2)")
    found = "select distinct actor from forebay.events(only_queue => %s)"
    assert conn.execute(found, ["other"]).fetchall() == [("alice",)]
    assert conn.execute(found, ["q"]).fetchall() == [("apply shop by alice",)]


def test_each_change_is_an_event_of_apply_and_a_kept_one_names_who_changed_it(conn):
    conn.execute("delete from forebay.event")  # The fixture of the database configures it.
    conn.execute("set forebay.actor = 'deploy bot'")
    apply(conn, EVERYTHING)
    apply(conn, EVERYTHING)
    rows = conn.execute("select act, actor from forebay.events() order by event_id").fetchall()
    assert rows == [
        (act, "apply shop by deploy bot")
        for act in ("queues.limit", "queues.shard", "dead.keep", "groups.open", "groups.open")
    ]
    assert one(conn, "show forebay.actor") == "deploy bot"

    conn.execute("set forebay.actor = 'alice'")
    limit(conn, concurrency=1)
    conn.execute("set forebay.actor = ''")
    limit(conn, burst=9)
    one(conn, "select forebay.shard_queue('q', 2)")
    one(conn, "select forebay.close_group('q', 'audit')")
    rows = conn.execute(
        "select setting, changed_by, changed_at is null from forebay.apply_queues('shop', %s)",
        [json.dumps([EVERYTHING])],
    )
    role = one(conn, "select session_user::text")
    assert rows.fetchall() == [
        ("rate", role, False),
        ("concurrency", "alice", False),
        ("shards", role, False),
        ("group audit", role, False),
    ]
