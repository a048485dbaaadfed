"""forebay keys limit."""

from tests.support.engine import Reader, enqueue


def test_limits_of_a_key_are_set_shown_and_removed(forebay, database, conn):
    """Only what is given changes; the key, the event log and the JSON have it."""
    for _ in range(3):
        enqueue(conn, queue="mail", limit_key="customer [1]")
    key = ("mail", "--limit-key", "customer [1]")
    said = "queue mail: limit key 'customer [1]': "
    assert forebay("keys", "limit", *key, "--concurrency", "1").out == f"{said}concurrency 1\n"
    with Reader(database, "mail") as reader:
        assert len(reader.claim_ready().jobs) == 1
    done = forebay("keys", "limit", *key, "--rate", "0.5", "--burst", "1")
    assert done.out == f"{said}rate 0.5, burst 1, concurrency 1\n"
    assert "limits" in forebay("keys", "show", *key).out
    assert "rate 0.5, burst 1, concurrency 1" in forebay("keys", "show", *key).out
    (shown,) = forebay("keys", "show", *key, "--json").json
    assert shown["limits"]["concurrency"] == 1
    assert forebay("keys", "limit", *key, "--remove", "--rate", "2").out == f"{said}rate 2\n"
    removed = forebay("keys", "limit", *key, "--remove", "--json").json
    assert removed["limits"] is None
    assert removed["before"]["rate"] == 2
    assert forebay("keys", "limit", *key, "--remove").out == f"{said}as the queue\n"
    acts = forebay("events", "list", "--act", "keys", "--json").json
    assert [event["act"] for event in acts] == ["keys.limit"] * 4


def test_a_call_that_changes_nothing_or_is_wrong_is_refused(forebay, conn):
    """A queue that is not in use may be misspelt."""
    enqueue(conn, queue="mail", limit_key="k")
    assert forebay("keys", "limit", "mail", "--limit-key", "k").code == 2
    assert forebay("keys", "limit", "mail", "--concurrency", "1").code == 2
    assert forebay("keys", "limit", "mail", "--limit-key", "k", "--burst", "2").code != 0
    assert forebay("keys", "limit", "mali", "--limit-key", "k", "--concurrency", "2").code != 0
    assert (
        forebay("keys", "limit", "mali", "--limit-key", "k", "--concurrency", "2", "--new").code
        == 0
    )
