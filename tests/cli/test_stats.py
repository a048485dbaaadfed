"""forebay stats and forebay queues list: one set of exact counters, at two widths."""

import pytest

from forebay.ops.overview import _QUEUES
from tests.support.engine import Reader, connect, enqueue, enqueue_many, one
from tests.support.plans import pages

_NUMBERS = ("scheduled", "ready", "claimed", "running", "retrying", "done", "failed")


def work(database, conn) -> None:
    """Leave jobs of two queues, two priorities and two groups in all states, half of it folded."""
    readers = [Reader(database, "mail"), Reader(database, "mail", group="audit")]
    for tag in ("a", "b"):
        for priority in (5, 100):
            options = {"queue": "mail", "priority": priority, "tag": tag}
            for _ in range(5):
                enqueue(conn, **options)
            enqueue(conn, **options, delay="1 hour")
        for reader in readers:
            for lane in reader.ready():
                batch = reader.claim(4, lane["lane"])
                ended = [
                    {"offset": 2, "outcome": "retried", "after": 3600},
                    {"offset": 3, "outcome": "dead", "reason": "permanent"},
                ]
                reader.settle(batch.claim_no, [1], ended=ended)
        one(conn, "select forebay.fold_v1()")
    for reader in readers:
        reader.conn.close()
    enqueue(conn, queue="sites", kind="crawl")


def test_the_list_of_queues_is_the_sum_of_the_counters(forebay, database, conn):
    """By queue, group and priority, over kinds and tags, and both agree with a full count."""
    work(database, conn)
    summed = {}
    for line in forebay("stats", "--json").json:
        place = (line["queue"], line["group"], line["priority"])
        # A job that runs is one of those claimed in the counters, and in the list it is not.
        numbers = {**line, "claimed": line["claimed"] - line["running"]}
        sums = summed.setdefault(place, dict.fromkeys(_NUMBERS, 0))
        for name in _NUMBERS:
            sums[name] += numbers[name]
    listed = forebay("queues", "list", "--json").json
    assert {
        (line["queue"], line["group"], line["priority"]): {name: line[name] for name in _NUMBERS}
        for line in listed
    } == summed
    assert len(summed) == 5
    mail = [line for line in listed if line["queue"] == "mail"]
    assert [line["done"] for line in mail] == [2, 2, 2, 2]
    assert [line["failed"] for line in mail] == [2, 2, 2, 2]
    assert [line["dead"] for line in mail] == [2, 2, 2, 2]
    (sites,) = forebay("queues", "list", "--queue", "sites", "--json").json
    assert (sites["ready"], sites["done"], sites["failed"]) == (1, 0, 0)
    answer = forebay("stats", "--audit", "--json")
    assert (answer.code, answer.json["equal"], answer.json["differences"]) == (0, True, [])
    assert answer.json["counted"] > 40


@pytest.mark.parametrize(("columns", "has_totals"), [(119, False), (120, True)])
def test_a_wide_terminal_shows_totals(forebay, database, conn, monkeypatch, columns, has_totals):
    """Groups need 20 columns more, and no number or name is cut."""
    monkeypatch.setenv("COLUMNS", str(columns - 20))
    enqueue(conn, queue="sites", kind="crawl")
    assert ("done" in forebay("queues", "list").out.split()) == has_totals
    work(database, conn)
    monkeypatch.setenv("COLUMNS", str(columns))
    head, *lines = forebay("queues", "list").out.splitlines()
    assert ("done" in head.split(), "failed" in head.split()) == (has_totals, has_totals)
    assert max(map(len, [head, *lines])) <= columns
    audit = next(line for line in lines if "audit" in line).split()
    shown = dict(zip(head.split(), audit, strict=False))
    assert (shown["group"], shown["retrying"], shown["dead"]) == ("audit", "2", "2")
    if has_totals:
        assert (shown["done"], shown["failed"]) == ("2", "2")


def test_the_list_of_queues_visits_no_job_that_just_waits_or_has_ended(database, conn):
    """A hundred times as many jobs cost no more pages, once they are counted."""
    read = []
    with Reader(database, "mail") as reader:
        for jobs in (50, 5000):
            for _ in range(2):
                enqueue_many(conn, [{"kind": "work", "queue": "mail"} for _ in range(jobs)])
            batch = reader.claim_ready(jobs)
            reader.settle(batch.claim_no)
            for act in ("fold_v1()", "fold_v1()", "renew_counters_v1(0)"):
                one(conn, f"select forebay.{act}")
            pages(conn, _QUEUES, {"queue": None})
            read.append(pages(conn, _QUEUES, {"queue": None}))
    assert read[1] < read[0] + 300, read


def test_counters_that_differ_are_shown_and_are_exit_code_1(forebay, database, conn):
    """What a fault of ours, or a hand in the tables, would look like."""
    work(database, conn)
    assert forebay("stats", "--audit").out.endswith("counted; the counters agree.\n")
    with connect(database) as owner:
        owner.execute("update forebay.counter set totals[4] = totals[4] + 3")
    answer = forebay("stats", "--audit")
    assert answer.code == 1
    assert "counted; the counters differ:" in answer.out
    assert "queue=mail" in answer.out
    answer = forebay("stats", "--audit", "--json")
    assert (answer.code, answer.json["equal"]) == (1, False)
    assert answer.json["differences"]


def test_stats_leave_out_columns_without_a_number(forebay, database, conn):
    """Groups and tags where there are any; of one queue if it is named."""
    assert forebay("stats").out == "No jobs.\n"
    enqueue(conn, queue="sites", kind="crawl")
    head, line = forebay("stats").out.splitlines()
    assert head.split() == ["queue", "prio", "kind", "ready"]
    assert line.split() == ["sites", "100", "crawl", "1"]
    work(database, conn)
    head = forebay("stats").out.splitlines()[0]
    assert head.split()[:5] == ["queue", "prio", "group", "kind", "tag"]
    assert "expired" not in head
    found = forebay("stats", "--queue", "sites", "--json").json
    assert [(line["kind"], line["tag"], line["ready"]) for line in found] == [("crawl", None, 2)]
