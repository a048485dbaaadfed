"""forebay status: one verdict, and the same list on all screens, by the same code."""

import json

import pytest

from forebay.doctor import examine
from forebay.watch.metrics import _check
from tests.support.delivering import create_endpoint, send
from tests.support.engine import Reader, enqueue, one, shift_clock
from tests.support.mutant import alter_function
from tests.support.waiting import wait_for


@pytest.fixture
def stuck(conn):
    """An installation in use, whose workers went away minutes ago."""
    enqueue(conn, queue="mail")
    with Reader(conn.info.dsn, "mail") as reader:
        reader.finish(reader.claim(1))
    enqueue(conn, queue="mail")
    shift_clock(conn, 300)


def test_nothing_to_do(forebay):
    answer = forebay("status")
    assert (answer.code, answer.out) == (0, "✓ nothing to do\n"), answer
    assert forebay("status", "--json").json == {"verdict": "fine", "problems": []}


def test_a_queue_without_a_worker_is_named_at_the_first_look(forebay, conn, stuck):
    """Nobody has checked before: no worker is alive, and none needs to be."""
    assert one(conn, "select count(*) from forebay.alert_check") == 0
    answer = forebay("status")
    assert answer.code == 1
    lines = answer.out.splitlines()
    assert lines[0].startswith("✗ 1 error")
    assert lines[1].startswith("✗ unserved mail, "), answer.out
    assert "1 job ready, and no worker serves the queue" in lines[2]
    assert "→ forebay worker MODULE:APP --queue mail" in lines[3]


def said_of_workers(conn, app, group="default"):
    """What the workers that came have said of themselves."""
    conn.execute(
        "update forebay.lease set details = jsonb_build_object('app', %s::text, 'group', %s::text,"
        " 'queues', array['mail'])",
        [app, group],
    )


def test_the_command_that_mends_it_names_the_application_that_served_the_queue(
    forebay, conn, stuck, left
):
    """What cannot be an address is left out: a person copies the command into a shell."""
    said_of_workers(conn, "shop.jobs:app")
    out = forebay("status").out
    assert "→ forebay worker shop.jobs:app --queue mail" in out
    assert "→ forebay worker shop.jobs:app\n" in out
    said_of_workers(conn, "shop:app; reboot")
    out = forebay("status").out
    assert "→ forebay worker MODULE:APP --queue mail" in out
    assert "reboot" not in out


def test_all_screens_have_the_same_list(forebay, conn, stuck):
    conn.execute("select forebay.configure('reserve_rows', 1000000000)")
    names = [one["name"] for one in forebay("status", "--json").json["problems"]]
    assert "reserve" in names
    assert "unserved mail" in names
    assert [one["name"] for one in forebay("alerts", "--json").json["alerts"]] == names
    top = forebay("top", "--json", "--every", "0.1").json
    assert [one["name"] for one in top["problems"]] == names
    screen = forebay("top", "--once", "--every", "0.1").out
    assert "✗ unserved mail" in screen
    assert "nothing to do" not in screen
    metrics = forebay("metrics").out
    for labels in ('code="unserved",subject="mail",group="default"',
                   'code="reserve",subject="",group=""'):  # fmt: skip
        assert f'forebay_alert{{{labels},severity="error"}} 1' in metrics


def test_a_queue_without_a_worker_has_one_word_in_every_command(forebay, conn, stuck):
    """What status, top and the alerts name `unserved`, the doctor does too."""
    conn.execute("update forebay.batch set claimed_at = claimed_at - interval '5 minutes'")
    lists = {
        "status": forebay("status", "--json").json["problems"],
        "alerts": forebay("alerts", "--json").json["alerts"],
        "top": forebay("top", "--json", "--every", "0.1").json["problems"],
    }
    for screen, found in lists.items():
        assert [one["code"] for one in found if one["subject"] == "mail"] == ["unserved"], screen
    found = [
        one["check"]
        for one in forebay("doctor", "--json").json["findings"]
        if "queue mail" in one["what"]
    ]
    assert found == ["unserved"]


@pytest.fixture
def left(conn):
    """An installation in use, whose workers went away before a job was due."""
    enqueue(conn, queue="mail")
    with Reader(conn.info.dsn, "mail") as reader:
        reader.finish(reader.claim(1))
    enqueue(conn, queue="mail", delay="1 minute")
    cancelled = enqueue(conn, queue="crawl", delay="1 minute")
    conn.execute("select forebay.cancel(%s)", [cancelled])
    shift_clock(conn, 420)


def test_due_jobs_that_no_worker_makes_ready_are_on_all_screens(forebay, conn, left):
    """
    A scheduled job, a retry or a parked flow whose time has come is not ready before a worker has
    seen it; without workers none of them is counted as ready. A cancelled job is not one of them.
    """
    answer = forebay("status")
    assert answer.code == 1, answer
    assert "✗ overdue, " in answer.out
    assert "1 job of queue mail is due and not ready yet, the oldest for 6 min" in answer.out
    assert "→ forebay worker MODULE:APP" in answer.out
    lists = {
        "status": forebay("status", "--json").json["problems"],
        "alerts": forebay("alerts", "--json").json["alerts"],
        "top": forebay("top", "--json", "--every", "0.1").json["problems"],
    }
    for screen, found in lists.items():
        assert "overdue" in [one["code"] for one in found], screen
    assert (
        'forebay_alert{code="overdue",subject="",group="",severity="error"} 1'
        in forebay("metrics").out
    )
    found = forebay("doctor", "--json").json["findings"]
    (overdue,) = [one for one in found if one["check"] == "overdue"]
    assert overdue["what"].startswith("1 job of queue mail is due")

    conn.execute("select forebay.promote_v1()")
    found = forebay("status", "--json").json["problems"]
    assert [one["state"] for one in found if one["code"] == "overdue"] == ["ending"]


def test_a_flow_whose_signal_has_come_is_overdue_without_a_worker(forebay, conn, left):
    """What wakes a parked flow is in no queue, and waits for any worker, too."""
    conn.execute("select forebay.promote_v1()")
    shift_clock(conn, 300)
    assert forebay("status", "--json").json["verdict"] == "problem"
    conn.execute(
        "insert into forebay.deferred (run_at, lane, enqueued_at, job_id, kind, args)"
        " values (forebay._now(), 0, forebay._now(), forebay._flow_mark(), '', '{}')"
    )
    shift_clock(conn, 1020)
    found = forebay("status", "--json").json["problems"]
    (cause,) = [one["cause"] for one in found if one["code"] == "overdue"]
    assert cause == "1 job is due and not ready yet, the oldest for 12 min"


def test_a_setting_that_stops_all_jobs_is_named(forebay, conn):
    """The doctor calls it an error; so it is a problem of status, too."""
    (name,) = conn.execute("select current_database()").fetchone()
    conn.execute(f'alter database "{name}" set default_transaction_read_only = on')
    answer = forebay("status")
    assert answer.code == 1
    assert "✗ timeouts" in answer.out
    assert "nothing can be enqueued" in answer.out


def test_a_paused_queue_with_ready_jobs_is_named_and_is_no_problem(forebay, conn, stuck):
    """Somebody wants it so; whoever wonders why nothing starts finds it, and what ends it."""
    conn.execute("select forebay.pause_queue('empty'), forebay.pause_queue('mail')")
    answer = forebay("status")
    assert answer.code == 0
    verdict, line = answer.out.splitlines()
    assert verdict == "✓ nothing to do"
    assert line == "‖ paused mail: 1 job ready, and none starts; forebay queues resume mail"
    found = forebay("status", "--json").json
    assert found["verdict"] == "fine"
    assert [(one["name"], one["state"]) for one in found["problems"]] == [("paused mail", "noted")]
    assert "queue mail: 1 job ready, paused for" in forebay("doctor").out


def test_a_problem_that_is_over_is_not_one_any_more(forebay, conn, stuck):
    """The alert clears after two minutes; that it is over is told at once."""
    assert forebay("status").code == 1
    with Reader(conn.info.dsn, "mail") as reader:
        reader.finish(reader.claim(1))
    answer = forebay("status")
    assert (answer.code, answer.out) == (0, "✓ nothing to do\n✓ unserved mail: over\n"), answer
    assert "over" in forebay("alerts").out


@pytest.mark.slow
def test_a_backlog_that_no_worker_has_counted_is_counted_once(forebay, conn):
    """The next look continues from the count, and does not visit the jobs again."""
    conn.execute("select forebay.enqueue('work', '{}') from generate_series(1, 12000)")
    assert one(conn, "select count(*) from forebay.counter_waiting") == 0
    (found,) = forebay("status", "--json").json["problems"]
    assert found["cause"].startswith("12,000 jobs")
    counts = one(conn, "select sum(waiting) from forebay.counter_waiting")
    assert counts == 12_000
    forebay("status")
    assert one(conn, "select count(*) from forebay.counter_waiting") == 1


@pytest.mark.slow
@pytest.mark.parametrize("name", ["status", "alerts", "metrics"])
def test_a_first_count_that_takes_long_is_made_for_each_queue(forebay, conn, monkeypatch, name):
    """
    Ten million jobs that nothing has counted take longer than a check may: the count of each queue
    stays, so that the check, or for metrics the next one, can tell.
    """
    jobs = "select forebay.enqueue('work', '{}', queue => %s) from generate_series(1, 10500)"
    for queue in ("mail", "crawl"):
        conn.execute(jobs, [queue])
    for settings in (examine._SETTINGS, _check._SETTINGS):
        monkeypatch.setitem(settings, "statement_timeout", "3s")
    slow = "if p_queues is null then perform pg_sleep(60); end if; perform forebay._require"
    alter_function(conn.info.dsn, "renew_counters_v1", ("perform forebay._require", slow))
    if name == "metrics":
        alter_function(
            conn.info.dsn, "measurements", ("return jsonb", "perform pg_sleep(60); return jsonb")
        )
    answer = forebay(name)
    wait_for(lambda: one(conn, "select count(*) from forebay.counter_waiting") == 2, 20)
    if name == "status":
        assert answer.out.count("10,500 jobs are due") == 2


def test_an_open_breaker_is_named_with_its_command(forebay, conn):
    endpoint = create_endpoint(conn, "shop", "http", {"url": "https://example.com/"})
    send(conn, "shop", 2)
    report = {"endpoint_id": endpoint, "failures": 10, "answered": False, "error": "HTTP 500"}
    conn.execute("select forebay.report_deliveries_v1('w', %s::jsonb)", [json.dumps([report])])
    forebay("thresholds", "set", "breaker_for", "0")
    answer = forebay("status")
    assert answer.code == 1
    assert answer.out.splitlines()[:1] == ["! 1 warning"], "an error has another mark"
    assert "! breaker shop" in answer.out
    assert "HTTP 500" in answer.out
    assert "→ forebay endpoints show shop" in answer.out


def test_a_breaker_that_opened_just_now_is_named_as_pending(forebay, conn):
    """
    The lists of endpoints say at once that it is open, and so do status and top: as what has not
    lasted long enough, which is no problem yet.
    """
    endpoint = create_endpoint(conn, "shop", "http", {"url": "https://example.com/"})
    send(conn, "shop", 2)
    report = {"endpoint_id": endpoint, "failures": 10, "answered": False, "error": "HTTP 500"}
    conn.execute("select forebay.report_deliveries_v1('w', %s::jsonb)", [json.dumps([report])])
    answer = forebay("status")
    assert answer.code == 0
    for out in (answer.out, forebay("top", "--once", "--every", "0.1").out):
        words = " ".join(out.split())
        assert "… breaker shop: seen for " in words
        assert "becomes a problem after 1 min" in words
    for command in (("status",), ("top", "--every", "0.1")):
        found = forebay(*command, "--json").json["problems"]
        assert [(one["name"], one["state"]) for one in found] == [("breaker shop", "pending")]


def test_a_reader_is_told_without_recording(forebay, conn, stuck, monkeypatch):
    """Its role may not record; the list is the same."""
    names = [one["name"] for one in forebay("status", "--json").json["problems"]]
    conn.execute("delete from forebay.alert")
    conn.execute("create role status_reader login in role forebay_reader")
    try:
        dsn = f"{conn.info.dsn} user=status_reader"
        found = forebay("status", "--json", "--dsn", dsn).json["problems"]
        assert [one["name"] for one in found if one["code"] == "unserved"] == ["unserved mail"]
        assert names
        assert one(conn, "select count(*) from forebay.alert") == 0
    finally:
        conn.execute("drop role status_reader")


def test_what_cannot_be_told_has_a_code_of_its_own(command, empty_database):
    answer = command("status", "--dsn", empty_database)
    assert answer.code == 2
    assert answer.out.startswith("? cannot tell: ")
    assert "forebay migrate" in answer.out
    answer = command("status", "--json", "--dsn", "host=/nowhere dbname=x")
    assert (answer.code, answer.json["verdict"]) == (2, "unknown")


def test_a_worker_that_is_silent_and_not_yet_lost_is_named(forebay, database, conn):
    """No problem yet, and not hidden: nothing else serves its queue. `workers list` says it too."""
    enqueue(conn, queue="mail")
    with Reader(database, "mail", lease_seconds=30) as reader:
        reader.claim_ready()
        conn.execute(
            "update forebay.heartbeat set heartbeat_at = clock_timestamp() - interval '20 seconds'"
        )
        answer = forebay("status")
        assert "nothing to do" in answer.out
        words = " ".join(answer.out.split())
        assert "silent default@test: silent for 2" in words
        assert "after 30 s others take its jobs" in words
        assert "silent for 2" in " ".join(forebay("workers", "list").out.split())
        conn.execute("update forebay.heartbeat set heartbeat_at = clock_timestamp()")
        assert "silent" not in forebay("status").out + forebay("workers", "list").out
