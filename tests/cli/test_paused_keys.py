"""forebay keys pause and resume."""

import pytest

from tests.support.engine import Reader, enqueue


@pytest.mark.slow
def test_a_key_is_paused_and_resumed(forebay, database, conn):
    """Both calls say whether something changed, and the event log has them."""
    job = enqueue(conn, queue="mail", limit_key="customer [1]")
    key = ("mail", "--limit-key", "customer [1]")
    assert forebay("keys", "pause", *key).out == "queue mail: limit key 'customer [1]' paused\n"
    assert "was already paused" in forebay("keys", "pause", *key).out
    assert forebay("keys", "pause", *key, "--for", "10m").out.endswith("paused for 10m\n")
    acts = forebay("events", "list", "--act", "keys", "--json").json
    assert [event["act"] for event in acts] == ["keys.pause", "keys.pause"]
    assert "limit_key=customer [1]" in forebay("events", "list").out
    with Reader(database, "mail") as reader:
        assert reader.claim_ready().jobs == []
        assert (
            forebay("keys", "resume", *key).out == "queue mail: limit key 'customer [1]' resumed\n"
        )
        assert "was not paused" in forebay("keys", "resume", *key).out
        assert reader.claim_ready().job_ids == [job]


@pytest.mark.slow
@pytest.mark.parametrize("sort", ["limit", "ordering"])
def test_a_paused_key_is_shown_as_paused(forebay, database, conn, sort):
    """In the list of keys with its end, and without one as just paused."""
    enqueue(conn, queue="mail", **{f"{sort}_key": "k"})
    key = ("mail", f"--{sort}-key", "k")
    forebay("keys", "pause", *key)
    with Reader(database, "mail") as reader:
        assert reader.claim_ready().jobs == []
    assert " paused\n" in forebay("keys", "list").out
    forebay("keys", "pause", *key, "--for", "2d")
    (shown,) = forebay("keys", "show", *key, "--json").json
    assert shown["reason"] == "paused"
    assert shown["until"] is not None
    assert "paused until 20" in forebay("keys", "show", *key).out


@pytest.mark.slow
def test_a_pause_is_planned(forebay, database, conn):
    """The list and the key name it beside the reason; to resume the key removes it."""
    enqueue(conn, queue="mail", limit_key="k")
    key = ("mail", "--limit-key", "k")
    window = ("--at", "2031-05-01T22:00", "--for", "2h")
    done = "queue mail: limit key 'k' is paused from 2031-05-01T22:00 for 2h\n"
    assert forebay("keys", "pause", *key, *window).out == done
    assert forebay("keys", "pause", *key, *window).out.endswith("was already planned so\n")
    with Reader(database, "mail") as reader:
        assert len(reader.claim_ready().jobs) == 1
    (shown,) = forebay("keys", "show", *key, "--json").json
    assert shown["reason"] != "paused"
    assert shown["pause_at"] is not None
    answer = " ".join(forebay("keys", "show", *key).out.split())
    assert "; a pause is planned from 2031-05-01 22:00:00 until 2031-05-02 00:00:00" in answer
    assert forebay("keys", "resume", *key).out == "queue mail: limit key 'k' resumed\n"
    assert "planned" not in forebay("keys", "show", *key).out
    assert forebay("keys", "pause", *key, "--at", "soon").code == 2


def test_json_says_whether_something_changed(forebay):
    """The same for an ordering key of a queue that is not in use yet."""
    key = ("mail", "--ordering-key", "k", "--json")
    assert forebay("keys", "pause", *key).code != 0
    assert forebay("keys", "pause", *key, "--new").json == {"queue": "mail", "paused": True}
    assert forebay("keys", "pause", *key, "--new").json == {"queue": "mail", "paused": False}
    assert forebay("keys", "resume", *key).json == {"queue": "mail", "resumed": True}


@pytest.mark.parametrize("verb", ["pause", "resume"])
@pytest.mark.parametrize("keys", [(), ("--ordering-key", "a", "--limit-key", "b")])
def test_exactly_one_key_is_needed(forebay, verb, keys):
    """Before anything is asked of the database."""
    answer = forebay("keys", verb, "mail", *keys)
    assert answer.code == 2
    assert "--ordering-key or --limit-key" in answer.err


def test_a_time_is_checked(forebay):
    """A duration is a number above zero, with a unit or without."""
    for time in ("soon", "0s"):
        answer = forebay("keys", "pause", "mail", "--limit-key", "k", "--new", "--for", time)
        assert answer.code == 2
