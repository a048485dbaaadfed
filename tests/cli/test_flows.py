"""The command line shows flows, sends them signals, and lets them go on."""

import json

import pytest

import forebay as library
from tests.cli.test_permissions import as_role
from tests.support.engine import one, state
from tests.support.fix_worker import run_until_idle

pytestmark = pytest.mark.anyio


# --- signals ---


async def test_a_signal_of_the_command_line_wakes_its_flow(forebay, app, conn, monkeypatch):
    """
    The wait returns the payload, an argument or from stdin; the answer says whether it was kept.
    """
    seen = []

    @app.job()
    async def work(ctx: library.Context, n: int) -> None:
        seen.append(await ctx.wait("approval", key=n))

    job = work.enqueue(conn, 7)
    await run_until_idle(app)
    answer = forebay("signal", "approval", "7", "--payload", '{"by": "Ada"}')
    assert (answer.code, answer.out) == (0, "sent signal approval with key 7\n")
    again = forebay("signal", "approval", "7")
    assert again.code == 1
    assert "waits to be taken already" in again.err
    await run_until_idle(app)
    assert seen == [{"by": "Ada"}]
    assert state(conn, job) == "done"
    answer = forebay("signal", "approval", "8", "--json").json
    assert answer == {"name": "approval", "key": "8", "sent": True, "waits": []}
    answer = forebay("signal", "approval", "8", "--json")
    assert (answer.code, answer.json["sent"]) == (1, False)
    assert one(conn, "select count(*) from forebay.signal where payload is null") == 1


async def test_a_signal_that_no_flow_waits_for_is_kept_and_said(forebay, app, conn, database):
    """
    A name that is misspelt is sent to nobody: the command says so, and names the flow that waits
    for another name with this key. By the key, `forebay where` finds the flow. A producer, who may
    not look, sends it nevertheless.
    """

    @app.job()
    async def work(ctx: library.Context) -> None:
        await ctx.wait("approval", key="ann@x")

    job = work.enqueue(conn)
    await run_until_idle(app)
    shown = forebay("jobs", "show", job).out
    assert "→ forebay signal approval ann@x 'JSON' wakes it" in shown
    assert " wait  waits, " in shown
    assert "\nexpires" not in shown
    answer = forebay("signal", "aproval", "ann@x", "[1]")
    assert answer.code == 0
    assert "no flow waits for it now" in answer.err
    assert f"job {job} waits for signal approval: forebay signal approval ann@x" in answer.err
    assert one(conn, "select payload from forebay.signal") == [1]
    found = forebay("where", "ann@x", "--json").json
    assert (found["found_as"], found["job_id"]) == ("signal", job)
    # Who copies a hint as it stands sends nothing: it would be the answer for good.
    answer = forebay("signal", "approval", "ann@x", "JSON")
    assert answer.code == 2
    assert "Give a JSON value, quoted for the shell" in answer.err
    answer = forebay("signal", "approval", "ann@x")
    assert answer.code == 0
    assert f"no payload was given: the wait of job {job} returns None" in answer.err
    assert f"forebay jobs rewind {job} --from approval" in answer.err
    sent = forebay("signal", "other", "1", "--dsn", as_role(database, "forebay_producer"))
    assert (sent.code, sent.err) == (0, "")


@pytest.mark.parametrize("step", ["approval", "begin"])
async def test_a_rewind_forgets_a_signal_that_was_not_taken(forebay, app, conn, step):
    """The wait gets the next one; a signal of a wait that stays is kept."""
    seen = []

    @app.job()
    async def work(ctx: library.Context) -> None:
        await ctx.step("begin", int)
        seen.append(await ctx.wait("approval", key="ann"))

    job = work.enqueue(conn)
    await run_until_idle(app)
    assert forebay("signal", "approval", "ann").code == 0
    forebay("signal", "other", "ann", "1")
    assert forebay("jobs", "rewind", job, "--from", step).code == 0
    assert [row[0] for row in conn.execute("select name from forebay.signal")] == ["other"]
    refused = forebay("jobs", "rewind", job, "--from", step)
    assert f"job {job} is ready" in refused.err
    assert "Repeat it when the job waits again" in refused.err
    assert "redriven" not in refused.err
    await run_until_idle(app)
    assert seen == []
    forebay("signal", "approval", "ann", '"yes"')
    await run_until_idle(app)
    assert seen == ["yes"]


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["approval"], "KEY"),
        (["", "7"], "name"),
        (["approval", ""], "key"),
        (["approval", "a\nb"], "key"),
        (["approval", "7", "--payload", "{"], "payload"),
        (["approval", "7", "{"], "payload"),
        (["approval", "7", "1", "--payload", "1"], "twice"),
        (["x" * 201, "7"], "name"),
    ],
)
def test_a_signal_that_cannot_be_sent_is_wrong_usage(forebay, conn, arguments, named):
    """
    It names the value, and nothing is written.
    """
    answer = forebay("signal", *arguments)
    assert answer.code == 2
    assert named in answer.err
    assert "Traceback" not in answer.err
    assert one(conn, "select count(*) from forebay.signal") == 0


def test_a_client_sends_a_signal_in_a_transaction(database, conn):
    """
    With a connection it is there after the commit; without one at once.
    """
    client = library.Client(database)
    with conn.transaction(force_rollback=True):
        assert client.signal(conn, "approval", 7)
    assert client.signal(None, "approval", 7, {"a": 1})
    assert not client.signal(None, "approval", 7)
    assert json.dumps(one(conn, "select payload from forebay.signal")) == '{"a": 1}'


# --- rewind ---


async def test_the_command_line_rewinds_a_flow(forebay, app, conn):
    """
    A dry run counts the steps; a step that is not there is wrong usage.
    """

    @app.job()
    async def work(ctx: library.Context) -> None:
        await ctx.step("charge", int, key="a")
        await ctx.wait("approval")

    job = work.enqueue(conn)
    await run_until_idle(app)
    planned = forebay("jobs", "rewind", job, "--from", "charge=a", "--dry-run", "--json").json
    assert planned == {
        "group": "default", "state": "scheduled", "kept": 0, "dropped": 2, "children": 0
    }  # fmt: skip
    assert forebay("jobs", "rewind", job, "--from", "charge").code == 2
    assert forebay("jobs", "rewind", job, "--from", "=a").code == 2
    answer = forebay("jobs", "rewind", job, "--from", "charge=a")
    assert (answer.code, answer.out) == (0, f"job {job} continues from step charge=a\n")
    assert one(conn, "select count(*) from forebay.step") == 0
