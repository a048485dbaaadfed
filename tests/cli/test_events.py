"""forebay events list: what operators did."""

from tests.support.engine import enqueue, one


def test_what_an_event_is_about_has_no_empty_parts(forebay, conn):
    """Without a queue there is no `None`, and an empty text is one in quotes."""
    conn.execute("delete from forebay.event")
    conn.execute(
        "insert into forebay.event (act, at, role, group_name, new) values"
        " ('workers.lost', now(), 'w', 'default', '{\"tz\": \"\"}')"
    )
    printed = forebay("events", "list").out
    assert "None" not in printed
    assert "tz=''" in printed


def test_events_are_listed_with_who_and_what(forebay, conn, monkeypatch):
    conn.execute("delete from forebay.event")
    assert forebay("events", "list").out == "No events.\n"
    monkeypatch.setattr("getpass.getuser", lambda: "alice")
    enqueue(conn, queue="mail")
    forebay("queues", "limit", "mail", "--rate", "5")
    forebay("queues", "limit", "mail", "--rate", "2", "--concurrency", "3")
    one(conn, "select forebay.pause_queue('mail')")
    job = enqueue(conn, queue="other")
    assert forebay("jobs", "cancel", job).code == 0
    monkeypatch.setenv("COLUMNS", "80")
    printed = forebay("events", "list").out
    assert max(map(len, printed.splitlines())) <= 80
    cancel, pause, limit, first = (line.split() for line in printed.splitlines()[1:])
    assert "cli alice jobs.cancel" in " ".join(cancel)
    assert "postgres queues.pause mail 1" in " ".join(pause)
    assert "mail rate=5 -> rate=2 concurrency=3" in " ".join(limit)
    assert "mail none -> rate=5" in " ".join(first)
    found = forebay("events", "list", "--queue", "mail", "--act", "queues.limit", "--json").json
    assert [event["new"] for event in found] == [{"rate": 2, "concurrency": 3}, {"rate": 5}]
    assert (found[0]["actor"], found[0]["role"]) == ("cli alice", "postgres")
    assert len(forebay("events", "list", "--since", "1h", "--limit", "2", "--json").json) == 2
    assert forebay("events", "list", "--until", "1h", "--json").json == []
    refused = forebay("events", "list", "--since", "yesterday")
    assert refused.code == 2
    assert "--since is 'yesterday'" in refused.err
