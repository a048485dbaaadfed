"""The commands for consumer groups, and those that say how long dead letters are kept."""

import pytest

from tests.support.engine import Reader, enqueue, one, open_group, shift_clock, trim

GROUP_KEYS = {
    "claimed_at", "closing_at", "created_at", "group", "held_bytes", "held_segments", "is_implied",
    "is_served", "oldest_unread_at", "open_batches", "paused_at", "resume_at", "queue", "running",
    "unread",
}  # fmt: skip


@pytest.fixture(autouse=True)
def eighty_columns(forebay, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")


def test_groups_are_listed_with_what_they_have_unread(forebay, database, conn):
    assert forebay("groups", "list").out == "No groups.\n"
    with Reader(database, "mail", "indexer") as reader:
        open_group(conn, "mail", "statistics", "beginning")
        for _ in range(3):
            enqueue(conn, queue="mail")
        reader.claim(1)
    enqueue(conn, queue="reports")
    one(conn, "select forebay.pause_queue('reports')")
    indexer, statistics, reports = forebay("groups", "list", "--json").json
    assert set(indexer) == GROUP_KEYS
    assert (indexer["unread"], indexer["running"], indexer["is_served"]) == (2, 1, True)
    assert (statistics["unread"], statistics["running"], statistics["claimed_at"]) == (3, 0, None)
    assert (reports["queue"], reports["is_implied"]) == ("reports", True)
    printed = forebay("groups", "list").out
    assert max(map(len, printed.splitlines())) <= 80
    assert "statistics" in printed
    assert "paused" in printed
    assert len(forebay("groups", "list", "--queue", "mail", "--json").json) == 2


@pytest.mark.slow
def test_a_group_is_closed_with_a_report(forebay, database, conn):
    """The dry run tells what it would do; a group that workers serve is refused.

    Without workers the command does all steps.
    """
    with Reader(database, "mail", "old") as reader:
        for _ in range(3):
            enqueue(conn, queue="mail")
        batch = reader.claim(1)
        dry = forebay("groups", "close", "old", "--queue", "mail", "--dry-run")
        assert (dry.code, dry.out) == (
            0,
            (
                "would close group old of queue mail\n  cancelled: 2 waiting jobs\n  released: "
                "0 segments\n"
            ),
        )
        refused = forebay("groups", "close", "old", "--queue", "mail")
        assert refused.code == 1
        assert "workers serve group old" in refused.err
        assert "Stop the workers" in refused.err
        waits = forebay(
            "groups", "close", "old", "--queue", "mail", "--force", "--wait", "0", "--json"
        )
        assert (waits.code, waits.json["closed"]) == (1, False)
        assert "closing" in forebay("groups", "list").out
        reader.finish(batch)
    answer = forebay("groups", "close", "old", "--queue", "mail", "--json")
    assert answer.code == 0
    assert answer.json == {
        "queue": "mail", "group": "old", "closed": True, "cancelled": 2, "running": 0,
        "segments": 0, "bytes": 0,
    }  # fmt: skip
    missing = forebay("groups", "close", "old", "--queue", "mail")
    assert missing.code == 1
    assert "has no group 'old'" in missing.err
    assert "not served yet" in forebay("groups", "list").out


@pytest.mark.slow
def test_dead_letters_are_kept_as_long_as_told_and_summarized(forebay, database, conn):
    for queue in ("mail", "reports"):
        enqueue(conn, queue=queue, kind="send_welcome_mail")
        with Reader(database, queue) as reader:
            error = {"type": "requests.exceptions.ConnectionError", "message": "m"}
            ended = [
                {
                    "offset": 1,
                    "outcome": "dead",
                    "attempt": 1,
                    "reason": "permanent",
                    "error": error,
                }
            ]
            assert reader.settle(reader.claim().claim_no, ended=ended) == "settled"
    kept = forebay("dead", "keep", "--days", "30")
    assert kept.out == "dead letters of all queues without their own setting are kept for 30 days\n"
    answer = forebay("dead", "keep", "--queue", "reports", "--forever", "--json").json
    assert answer == {"queue": "reports", "days": None, "inherit": False, "before": 30}
    for wrong in ([], ["--days", "3", "--forever"], ["--inherit"], ["--days", "0"]):
        assert forebay("dead", "keep", *wrong).code == 2
    shift_clock(conn, 31 * 86_400)
    trim(conn)
    reports, mail = forebay("dead", "summary", "--json").json
    assert (reports["queue"], reports["kept"], reports["deleted"], reports["keep_days"]) == (
        "reports",
        1,
        0,
        None,
    )
    assert (mail["queue"], mail["kept"], mail["deleted"], mail["keep_days"]) == ("mail", 0, 1, 30)
    printed = forebay("dead", "summary").out
    assert max(map(len, printed.splitlines())) <= 80
    assert "Connection" in printed
    assert "like other queues" in forebay("dead", "keep", "--queue", "reports", "--inherit").out
