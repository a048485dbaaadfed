"""The program behind the page on queues and old snapshots: its output shows what the page says."""

import re

import pytest

from forebay_bench import Place, mvcc


@pytest.fixture
def place(server):
    return Place(server.dsn(), is_own=False)


@pytest.mark.slow
def test_a_held_snapshot_keeps_dead_rows_in_front_of_the_next_job(place):
    """
    Vacuum removes nothing, no entry is marked as killed, a scan and an index-only count visit every
    dead row; after the snapshot the first scan marks them, and the second visits the index only.
    """
    said = dict(mvcc.table(place, 2000))
    assert "enqueued:" in said["a row and its two numbers"][0]
    held = said["vacuum (verbose), after 2,000 jobs under a snapshot"]
    assert "tuples: 0 removed, 4300 remain, 4200 are dead but not yet removable" in held[0]
    before = buffers(said["the next job, 100 jobs waiting"])
    under = said["the same once more, snapshot held"]
    assert buffers(under) > 10 * before
    assert "marked as killed: 0 of 2,200" in under[-1]
    assert "Heap Fetches: 2200" in said["a count of waiting jobs, index only, snapshot held"]
    first = said["the snapshot has ended: the first scan"]
    assert "marked as killed: 2,100 of 2,200" in first[-1]
    assert buffers(said["the second scan"]) < buffers(first) / 2
    assert buffers(said["the next job, after vacuum"]) <= before + 1
    assert "Heap Fetches: 0" in said["a count of waiting jobs, index only, after vacuum"]


@pytest.mark.slow
def test_only_a_cursor_costs_the_same_after_many_jobs_and_only_ours_sees_a_late_job(place):
    """
    The table and Que's walk read more for one job, a remembered position and the log do not. A job
    that commits late is behind the position, and is new to the log.
    """
    pages = {
        line[:22].strip(): [int(each.replace(",", "")) for each in line[22:].split()]
        for line in mvcc.ways(place, 2500)[1:]
    }
    assert pages.keys() == mvcc.WAYS.keys()
    for label in ("skip locked, delete", "Que's walk"):
        assert pages[label][-1] > 3 * pages[label][0]
    for label in ("Que, remembering", "Forebay's log"):
        assert pages[label][-1] < 2 * pages[label][0]
    assert [line[22:].strip() for line in mvcc.late(place)] == [
        "does not see it",
        "takes it",
        "takes it",
    ]


@pytest.mark.slow
def test_the_lock_query_passes_what_others_have(place):
    """
    The fourth worker tries the locks of three jobs, and takes the fourth.
    """
    steps = mvcc.walk(place)
    assert ["locked" in step for step in steps] == [False, False, False, True]


@pytest.mark.slow
def test_the_rise_has_its_table(place):
    """
    A line for each part of the time, and the jobs that were done grow.
    """
    load, _, *lines = mvcc.rise(place, 0.5)
    assert re.match(r"load: [\d,]+ jobs a second", load)
    done = [int(line.split()[1].replace(",", "")) for line in lines]
    assert len(done) >= 8
    assert done == sorted(done)


def buffers(lines: list[str]) -> int:
    return sum(
        int(each)
        for line in lines
        if line.startswith("Buffers")
        for each in re.findall(r"(?:hit|read)=(\d+)", line)
    )
