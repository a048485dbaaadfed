"""The token of a dry run of a deletion of dead letters: those that were counted, or none."""

import pytest

from forebay.client import Client
from forebay.errors import JobsChanged
from tests.support.engine import Reader, connect, enqueue_many, one, shift_clock, sqlstate

ALL = "select count(*) from forebay.dead_letter"


@pytest.fixture
def bury(database, conn):
    """Let jobs of a kind die."""

    def bury(kind: str, count: int) -> None:
        enqueue_many(conn, [{"kind": kind, "queue": "mail"}] * count)
        with Reader(database, "mail") as reader:
            batch = reader.claim(count)
            dead = [
                {"offset": at + 1, "outcome": "dead", "reason": "permanent"} for at in range(count)
            ]
            reader.settle(batch.claim_no, ended=dead)

    return bury


def test_the_count_of_the_dry_run_is_the_effect(conn, database, bury):
    """
    Also of those that were redriven. One that dies later is left.
    """
    client = Client(database)
    bury("work", 3)
    client.redrive(one(conn, "select min(dead_id) from forebay.dead_letter"))
    plan = client.plan_purge_dead(0, queue="mail")
    assert (plan.jobs, plan.redriven) == (3, 1)
    assert plan.oldest_at <= plan.newest_at
    assert one(conn, ALL) == 3
    bury("later", 1)
    assert client.purge_dead(0, queue="mail", token=plan.token) == 3
    assert one(conn, "select array_agg(kind) from forebay.dead_letter") in (["later"], ["work"])
    (event,) = client.events(act="dead.purge")
    assert event.count == 3


def test_a_token_is_refused_when_the_match_changed(conn, database, bury):
    """
    One of them was deleted, or is locked by another session; the token is of another filter, of an
    act that is done, or forged. Nothing is deleted, and no event says so.
    """
    client = Client(database)
    bury("work", 4)
    plan = client.plan_purge_dead(0)
    for wrong in (
        {"age": 0.001},
        {"age": 0, "queue": "mail"},
        {"age": 0, "cause": "x"},
        {"age": 0, "token": plan.token.replace("4-", "5-", 1)},
    ):
        with pytest.raises(JobsChanged, match="other dead letters match"):
            client.purge_dead(**{"token": plan.token, **wrong})
    for forged in ("", "x", "4", "4-1-1-", "9" * 40):
        assert sqlstate(conn, "select forebay.purge_dead('0', token => %s)", forged) == "JQ042"
    redrive = client.plan_redrive()
    assert sqlstate(conn, "select forebay.purge_dead('0', token => %s)", redrive.token) == "JQ042"
    with connect(database) as other, other.transaction():
        other.execute("select from forebay.dead_letter order by dead_id limit 1 for update")
        with pytest.raises(JobsChanged):
            client.purge_dead(0, token=plan.token)
    assert one(conn, ALL) == 4
    assert one(conn, "select count(*) from forebay.event where act = 'dead.purge'") == 0
    assert one(conn, "select count(*) from forebay.dead_deletion") == 0
    oldest = "select min(dead_id) from forebay.dead_letter"
    conn.execute(f"delete from forebay.dead_letter where dead_id = ({oldest})")
    with pytest.raises(JobsChanged):
        client.purge_dead(0, token=plan.token)
    assert one(conn, ALL) == 3
    plan = client.plan_purge_dead(0)
    assert client.purge_dead(0, token=plan.token) == 3
    with pytest.raises(JobsChanged):
        client.purge_dead(0, token=plan.token)


def test_a_letter_that_gets_old_enough_after_the_dry_run_is_left(conn, database, bury):
    """
    The age is that of the dry run; without a token it is that of the call.
    """
    client = Client(database)
    bury("work", 2)
    older = "update forebay.dead_letter set died_at = died_at - %s::interval where dead_id = %s"
    first, second = one(conn, "select array_agg(dead_id order by dead_id) from forebay.dead_letter")
    conn.execute(older, ["1 day", first])
    plan = client.plan_purge_dead(43_200)
    assert plan.jobs == 1
    shift_clock(conn, 86_400)
    assert client.purge_dead(43_200, token=plan.token) == 1
    assert one(conn, "select dead_id from forebay.dead_letter") == second
    assert client.purge_dead(43_200) == 1
