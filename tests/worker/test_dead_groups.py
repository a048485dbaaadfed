"""Dead letters are grouped by cause, and a cause can be redriven, purged and muted."""

import asyncio
import logging

import pytest

import forebay
from forebay import Dead, RetryPolicy, TransactionContext
from forebay.errors import DeadLetterNotFound, InvalidJob
from forebay.policy.cause import cause_of
from tests.support.engine import enqueue, one
from tests.support.fix_worker import run_until_idle, running
from tests.support.waiting import wait_for_async

pytestmark = pytest.mark.anyio

ONCE = RetryPolicy(max_attempts=1)


def _render(number: int) -> None:
    if number % 2:
        raise ValueError(f"no template for {number}")
    raise KeyError(number)


@pytest.fixture
def mail(app):
    """Handlers that fail in several ways."""

    @app.job(name="render", retry=ONCE)
    def render(number: int) -> None:
        _render(number)

    @app.job(name="refuse", retry=ONCE)
    async def refuse(number: int) -> Dead:
        return Dead(f"user {number} is gone")

    @app.job(name="charge", retry=ONCE, transaction=True)
    def charge(ctx: TransactionContext, number: int) -> None:
        _render(number)

    return app


def by_cause(client, **filters):
    """Return the groups by kind and class of the error."""
    return {
        (group.kind, (group.error_type or group.reason).rpartition(".")[2]): group
        for group in client.dead_groups(**filters)
    }


async def test_dead_letters_of_one_cause_are_one_group(mail, database, conn):
    """
    Whatever their arguments and messages; by kind, class and the application's function, and by
    reason for those without an error.
    """
    for number in range(1, 5):
        for kind in ("render", "refuse", "charge"):
            enqueue(conn, kind=kind, args={"number": number})
    enqueue(conn, kind="render", args={"typo": 1})
    conn.execute(
        "select forebay.enqueue('render', expires_at => clock_timestamp() + interval '1 ms')"
    )
    await run_until_idle(mail, concurrency=1)  # in order
    client = forebay.Client(database)
    groups = by_cause(client)
    assert {name: group.jobs for name, group in groups.items()} == {
        ("render", "ValueError"): 2,
        ("render", "KeyError"): 2,
        ("refuse", "Dead"): 4,
        ("charge", "ValueError"): 2,
        ("charge", "KeyError"): 2,
        ("render", "InvalidJob"): 1,
        ("render", "expired"): 1,
    }
    group = groups["render", "ValueError"]
    assert group.place == f"{__name__}._render"
    assert group.message == "no template for 3"
    assert group.first_at < group.last_at
    assert client.dead_letter(group.dead_id).cause == group.cause
    assert groups["charge", "ValueError"].place == group.place
    assert groups["charge", "ValueError"].cause != group.cause
    assert groups["render", "expired"].cause == cause_of("render", "expired")
    assert [letter.cause for letter in client.dead_letters(cause=group.cause)] == [group.cause] * 2


async def test_a_cause_is_redriven_or_purged(mail, database, conn):
    """
    Only its letters; redriven ones leave the groups, and both acts are in the event log.
    """
    for number in range(1, 7):
        enqueue(conn, kind="render", args={"number": number})
    await run_until_idle(mail)
    client = forebay.Client(database)
    groups = by_cause(client)
    odd, even = groups["render", "ValueError"].cause, groups["render", "KeyError"].cause
    assert client.redrive_matching(cause=odd) == 3
    assert set(by_cause(client)) == {("render", "KeyError")}
    assert client.purge_dead(0, cause=even) == 3
    assert one(conn, "select count(*) from forebay.dead_letter") == 3
    acts = dict(conn.execute("select act, new ->> 'cause' from forebay.event").fetchall())
    assert (acts["dead.redrive"], acts["dead.purge"]) == (odd, even)


@pytest.mark.slow
async def test_deaths_of_a_muted_cause_are_no_errors(mail, database, conn, caplog):
    """
    They are recorded and counted; the worker knows it from its next heartbeat on, also that it is
    over.
    """
    caplog.set_level(logging.INFO, "forebay.worker")
    client = forebay.Client(database)

    def last():
        return [record for record in caplog.records if getattr(record, "outcome", "") == "dead"]

    async def die(worker, number):
        before = len(last())
        enqueue(conn, kind="render", args={"number": number})
        await wait_for_async(lambda: len(last()) > before, describe="a dead job in the log")
        return last()[-1]

    async with running(mail) as worker:
        assert (await die(worker, 1)).levelno == logging.ERROR
        cause = (await wait_for_async(client.dead_groups))[0].cause
        assert client.mute_cause(cause, 3600) is not None
        await wait_for_async(lambda: cause in worker._job_log.muted, describe="the worker knows it")
        quiet = await die(worker, 3)
        assert (quiet.levelno, quiet.exc_info) == (logging.INFO, None)
        assert "muted" in quiet.getMessage()
        assert (await die(worker, 2)).levelno == logging.ERROR
        await wait_for_async(lambda: client.dead_groups(cause=cause)[0].jobs == 2)
        assert client.dead_groups(cause=cause)[0].is_muted
        conn.execute("update forebay.muted_cause set until = now()")
        await wait_for_async(lambda: not worker._job_log.muted, describe="the time is over")
        assert (await die(worker, 5)).levelno == logging.ERROR
        assert client.unmute_cause(cause) is False
        assert client.mute_cause(cause) is None
        assert client.unmute_cause(cause) is True
    acts = [
        act
        for (act,) in conn.execute(
            "select act from forebay.event where act like 'dead.%' order by event_id"
        )
    ]
    assert acts == ["dead.mute", "dead.mute", "dead.unmute"]


async def test_a_mistaken_cause_is_refused(database):
    """
    A cause that no dead letter has would mute nothing, and look as if it did.
    """
    client = forebay.Client(database)
    with pytest.raises(DeadLetterNotFound, match="no dead letter has the cause 'nope'"):
        client.mute_cause("nope")
    with pytest.raises(InvalidJob):
        client.mute_cause("nope", -1)
    await asyncio.sleep(0)
