"""forebay top: one screen, its rates and its widths."""

import itertools
import random
from bisect import bisect_left

import pytest
from rich.cells import cell_len

from forebay.cli._top_screen import View, screen
from forebay.model.stats import STATS_BOUNDS
from forebay.watch.top import Reads, percentile
from tests.support.engine import Reader, enqueue, one

LONG = "notifications_of_the_european_region_and_of_all_other_regions_too"
HOSTILE = "e\u202ef\u2066g\u2028h"
ESCAPES = set("\x1b\u202e\u2066\u2028")


@pytest.fixture
def load(database, conn):
    """Two queues: one is served, one has a long name and no worker; and an alert."""
    for _ in range(3):
        enqueue(conn, queue=LONG)
    for _ in range(4):
        enqueue(conn, queue="mail", ordering_key=HOSTILE)
    conn.execute("select forebay.configure('reserve_rows', 1000000000)")
    with Reader(database, queue="mail") as reader:
        reader.claim_ready(2)
        yield reader


@pytest.mark.parametrize("width", [80, 200])
def test_a_screen_fits_its_width_and_shows_alerts_queues_and_workers(
    forebay, load, monkeypatch, width
):
    """
    The long name is cut in the middle at 80 columns and whole at 200, where further columns appear.
    """
    monkeypatch.setenv("COLUMNS", str(width))
    answer = forebay("top", "--once", "--every", "0.1")
    assert answer.code == 0, answer
    lines = answer.out.splitlines()
    assert len(lines) <= 24
    assert max(map(cell_len, lines)) <= width
    assert lines[0].startswith("forebay top")
    assert "✗ reserve" in answer.out
    (row,) = [line for line in lines if line.startswith("! not")]
    assert ("…" in row.split("  ")[0]) == (width == 80)
    assert (LONG in row) == (width == 200)
    assert ("done/s" in answer.out) == (width == 200)
    assert "slots" in answer.out


def test_no_control_character_of_a_name_is_shown(forebay, load):
    """
    Not of a key either.
    """
    for form in ([], ["--json"]):
        answer = forebay("top", "--once", "--every", "0.1", *form)
        assert answer.code == 0, answer
        assert not ESCAPES & set(answer.out)


def test_json_is_one_object(forebay, load):
    """
    With the state of each queue, and rates of the period between the two reads.
    """
    found = forebay("top", "--json", "--every", "0.1").json
    queues = {queue["queue"]: queue for queue in found["queues"]}
    assert queues[LONG]["ready"] == 3
    assert not queues[LONG]["is_served"]
    assert queues["mail"]["claims_per_second"] == 0
    assert found["rate_seconds"] >= 0.1
    assert "reserve" in [problem["code"] for problem in found["problems"]]
    assert len(found["workers"]) == 1


def _data(at, *, claims=0, done=0, waits=(0, 0, 0)):
    queue = {
        "queue": "mail", "group": "default", "scheduled": 0, "ready": 0, "claimed": 0, "running": 0,
        "retrying": 0, "cancelled": 0, "created_at": 0,
        "paused_at": None, "is_served": True, "claims": claims, "claimed_at": at, "completed": 1,
        "completed_at": at, "oldest_ready_at": None,
    }  # fmt: skip
    cell = {
        "queue": "mail", "group": "default", "kind": "send", "counted_at": at,
        "enqueued": 3 * done, "done": done, "failed": 0, "dead": 0,
        "waits": list(waits), "durations": [0, 0, 0], "duration_ms": 0,
        "wait_ms": sum(bound * count for bound, count in zip((10, 100, 100), waits, strict=True)),
    }  # fmt: skip
    return {
        "at": at, "checked_at": at, "alerts": [], "queues": [queue], "dead": [], "workers": [],
        "ticks": [], "apps": [], "lost_workers": [], "overdue": [],
        "installed_at": 0.0, "thresholds": [], "endpoints": [], "breakers": [],
        "mirrors": [], "schedules": [], "subjects": [],
        "database": {"snapshot_seconds": 0, "snapshot_seen_seconds": 0, "snapshot_unseen_age": None,
            "prepared_seconds": 0, "dead_rows": 0, "exports": [],
            "duties": [], "reserve_rows": 1, "numbers_left": 1},
        "space": {"database_bytes": 1, "growth_bytes": None},
        "counters": {"bounds": [10, 100],
            "cells": [cell,
                {**cell, "kind": "other", "enqueued": 0, "done": 0, "waits": [0, 0, 0],
                    "wait_ms": 0}]},
    }  # fmt: skip


def test_rates_are_differences_of_two_reads():
    """
    Over the last ten seconds; one read alone has no rate, and a counter that began again is 0 and
    not negative.
    """
    reads = Reads()
    first = reads.add(_data(1000.0, claims=500, done=400, waits=(100, 0, 0)), [])
    assert first.rate_seconds is None
    assert first.queues[0].claims_per_second is None
    assert first.queues[0].wait_p50 == 0.005
    assert not first.queues[0].latency_is_recent
    second = reads.add(_data(1002.0, claims=700, done=500, waits=(100, 10, 0)), [])
    assert second.rate_seconds == 2
    assert second.queues[0].claims_per_second == 100
    assert second.queues[0].done_per_second == 50
    assert second.queues[0].enqueued_per_second == 150
    assert second.queues[0].wait_p50 == pytest.approx(0.055)
    assert second.queues[0].latency_is_recent
    third = reads.add(_data(1012.0, claims=900, done=0), [])
    assert third.rate_seconds == 10
    assert third.queues[0].claims_per_second == 20
    assert third.queues[0].done_per_second == 0


def test_what_is_done_has_a_rate_between_two_folds():
    """
    Between two reads nothing may have been counted: that is not a rate of 0 beside thousands of
    claims. Nothing counted for long is one.
    """

    def read(at, counted_at, done):
        data = _data(at, claims=round(at * 1000), done=done)
        for cell in data["counters"]["cells"]:
            cell["counted_at"] = counted_at
        return reads.add(data, []).queues[0].done_per_second

    reads = Reads()
    assert read(1000.0, 999.0, 1000) is None
    assert read(1002.0, 999.0, 1000) is None, "one fold is no difference"
    assert read(1008.0, 1007.0, 9000) == 1000
    assert read(1012.0, 1007.0, 9000) == 1000
    assert read(1017.0, 1016.0, 27_000) == pytest.approx(26_000 / 17)
    assert read(1040.0, 1016.0, 27_000) == 0


def test_a_quantile_is_never_above_the_largest_value():
    """
    Nor far below: also where all lie in one wide bucket, or above the last bound. In an incident
    all waits of a minute have nearly one length.
    """
    for seed in range(400):
        rng = random.Random(seed)
        values = [rng.random() ** 3 * 10 ** rng.randint(0, 8) for _ in range(rng.randint(1, 40))]
        counts = [0] * (len(STATS_BOUNDS) + 1)
        for value in values:
            counts[bisect_left(STATS_BOUNDS, value)] += 1
        for share in (0.5, 0.95, 1.0):
            found = percentile(STATS_BOUNDS, counts, sum(values), share)
            assert found <= max(values) * (1 + 1e-9), seed
    minute_and_more = [70_000.0 + n for n in range(100)]
    counts = [0] * (len(STATS_BOUNDS) + 1)
    counts[bisect_left(STATS_BOUNDS, 70_000)] = 100
    assert 60_000 < percentile(STATS_BOUNDS, counts, sum(minute_and_more), 0.95) <= 70_100


def test_the_bounds_are_fine_where_an_incident_is(conn):
    """From a second to an hour each is at most three times the one before, in SQL as in Python."""
    assert tuple(one(conn, "select forebay.stats_bounds()")) == STATS_BOUNDS
    late = [bound for bound in STATS_BOUNDS if bound >= 1000]
    assert late[-1] == 3_600_000
    assert all(b <= 3 * a for a, b in itertools.pairwise(late))


def test_the_head_shows_what_holds_and_what_is_over():
    """
    By the rules, recorded or not; a recorded alert whose condition is false is over.
    """
    alert = {
        "code": "A2", "subject": "mail", "group": "default", "severity": "warning",
        "problem": "many", "hint": "add", "since": 900.0, "seen_at": 990.0,
        "fired_at": 950.0,
    }  # fmt: skip
    data = {**_data(1000.0), "alerts": [alert, {**alert, "code": "oldest", "fired_at": None}]}
    data["queues"][0] |= {"ready": 7, "is_served": False, "oldest_ready_at": 900.0,
                          "claimed_at": 910.0}  # fmt: skip
    found = Reads().add(data, []).problems
    assert [(one.name, one.state, one.since.timestamp()) for one in found] == [
        ("unserved mail", "holds", 910.0),
        ("A2 mail", "ending", 900.0),
    ]


def test_the_head_counts_no_slots_of_deliverers():
    """
    One has hundreds, beside which those of workers would not be seen.
    """
    worker = {
        "worker": "a", "group": "default", "app": None, "running": 3, "concurrency": 10,
        "delivers": False, "is_alive": True, "heartbeat_at": 999.0, "memory_bytes": None,
        "schedules": False, "kinds": [],
    }  # fmt: skip
    deliverer = {**worker, "worker": "d", "running": 40, "concurrency": 400, "delivers": True}
    overview = Reads().add({**_data(1000.0), "workers": [worker, deliverer]}, [])
    (head, *_) = screen(overview, View(every=2.0), 80, 24).plain.splitlines()
    assert head.endswith("1 queue, 1 worker, 3/10 slots")
