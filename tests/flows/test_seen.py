"""What people see of flows: their steps, what they wait for, and what redaction leaves."""

import json
import re
from datetime import timedelta

import pytest

import forebay
from forebay.doctor import Level
from forebay.doctor.examine import examine
from forebay.worker import Stats
from forebay.worker.process._metrics import exporter_of
from tests.support.engine import one, shift_clock, state
from tests.support.fix_worker import run_until_idle

pytestmark = pytest.mark.anyio

SOON = forebay.RetryPolicy(max_attempts=3, strategy="fixed", base_seconds=0.001, jitter=False)


async def test_the_steps_of_a_parked_flow_and_its_wait_are_seen(app, conn, database):
    """
    SQL, Python and the explanation name the steps, their sizes, and the signal that wakes the flow;
    a flow that waits without a limit is due at no time. Values are there on request only.
    """

    @app.job()
    async def work(ctx: forebay.Context, n: int) -> None:
        await ctx.step("charge", lambda: {"paid": n})
        await ctx.wait("approval", key=n)

    job = work.enqueue(conn, 42)
    await run_until_idle(app)
    client = forebay.Client(database)
    (flow,) = client.flow(job)
    assert [(step.no, step.kind, step.title) for step in flow.steps] == [
        (1, "step", "charge"),
        (2, "wait", "approval"),
    ]
    assert flow.steps[0].bytes == len('{"paid": 42}')
    assert flow.steps[0].value is None
    assert (flow.waits_for, flow.step, flow.signal_name, flow.signal_key) == (
        "signal", "approval", "approval", "42",
    )  # fmt: skip
    assert flow.until is None
    assert flow.since is not None
    assert client.flow(job, values=True)[0].steps[0].value == {"paid": 42}
    (status,) = client.job(job)
    assert (status.state, status.run_at, status.expires_at) == ("scheduled", None, None)
    (listed,) = client.jobs()
    assert listed.run_at is None
    (why,) = client.explain(job)
    assert why.cause == "flow"
    assert "step approval waits for signal approval with key 42" in why.answer
    assert why.hint == "forebay signal approval 42 'JSON' wakes it; JSON is what its wait returns."
    found = client.where(job)
    assert found.flows[0].waits_for == "signal"
    assert found.next_steps["default"] == "its handler continues when that is over"


async def test_a_sleep_and_a_gather_are_seen(app, conn, database):
    """
    Until when it sleeps; how many children have ended, and the first that died.
    """

    @app.job()
    async def sleeper(ctx: forebay.Context) -> None:
        await ctx.sleep("a while", timedelta(days=40))

    @app.job(queue="elsewhere", retry=forebay.RetryPolicy(max_attempts=1))
    async def child(n: int) -> int:
        raise ValueError(n)

    @app.job()
    async def parent(ctx: forebay.Context) -> None:
        await ctx.gather("parts", child.calls([1, 2]))

    asleep, gathers = sleeper.enqueue(conn), parent.enqueue(conn)
    # The second child is for another queue, which no worker serves.
    await run_until_idle(app, queue="default")
    client = forebay.Client(database)
    (flow,) = client.flow(asleep)
    assert flow.waits_for == "sleep"
    assert flow.until - flow.since == timedelta(days=40)
    assert "sleeps for another 4" in client.explain(asleep)[0].answer
    (flow,) = client.flow(gathers)
    assert (flow.waits_for, flow.children, flow.ended, flow.first_dead) == ("children", 2, 0, None)
    assert "waits for 2 jobs, of which 0 have ended" in client.explain(gathers)[0].answer


async def test_the_command_line_shows_steps(app, conn, database, monkeypatch, capsys):
    """
    ``jobs show``, ``jobs list`` and ``where`` name the steps and the wait.
    """
    from forebay.cli import run

    monkeypatch.setenv("FOREBAY_DATABASE_URL", database)
    monkeypatch.setenv("COLUMNS", "160")

    @app.job()
    async def work(ctx: forebay.Context) -> None:
        await ctx.step("charge", lambda: {"card": "4711"}, key="a")
        await ctx.wait("approval")

    job = work.enqueue(conn)
    await run_until_idle(app)
    capsys.readouterr()
    assert run(["jobs", "show", str(job)]) == 0
    shown = capsys.readouterr().out
    assert "charge[a]" in shown
    assert "step approval waits for signal approval" in shown
    assert "4711" not in shown
    assert re.search(r"\b21\d\d-", shown) is None  # It is due in a hundred years.
    assert run(["jobs", "show", str(job), "--values"]) == 0
    assert "4711" in capsys.readouterr().out
    assert run(["jobs", "show", str(job), "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)
    assert found["flow"]["signal_key"] == str(job)
    assert "value" not in found["flow"]["steps"][0]
    assert run(["jobs", "list"]) == 0
    assert "due when woken" in capsys.readouterr().out
    assert run(["where", str(job)]) == 0
    assert "2, the newest: approval (wait)" in capsys.readouterr().out


@pytest.mark.usual("the doctor asks as an operator")
async def test_the_doctor_names_waiting_flows_with_steps_that_the_code_does_not_have(
    app, conn, database
):
    """
    As soon as a flow of the new code has ended; once, by the number of flows and the first one.
    """
    deployed = [1]

    @app.job()
    async def work(ctx: forebay.Context) -> None:
        if deployed[0] == 1:
            await ctx.step("price", int)
        elif deployed[0] == 3:
            await ctx.step("cost", int, also=["price"])
        await ctx.wait("approval")

    async def found():
        return [each for each in await examine(database) if each.check == "steps"]

    first, *others = (work.enqueue(conn) for _ in range(3))
    await run_until_idle(app)
    (fine,) = await found()
    assert fine.level is Level.OK
    deployed[0] = 2
    forebay.signal(conn, "approval", first)
    await run_until_idle(app)
    (told,) = await found()
    assert told.level is Level.NOTICE
    assert told.facts == {"kind": "work", "step": "price", "flows": 2, "job_id": others[0]}
    assert "also=['price']" in told.remedy
    deployed[0] = 3
    for job in others:
        forebay.signal(conn, "approval", job)
    await run_until_idle(app)
    (fine,) = await found()
    assert fine.level is Level.OK
    shift_clock(conn, 31 * 86400)
    one(conn, "select rows from forebay.trim_v1('flows')")
    assert one(conn, "select count(*) from forebay.unasked_step") == 0


@pytest.mark.parametrize("flavour", ["async", "thread"])
async def test_steps_are_counted(app, conn, database, flavour):
    """
    Those that ended in this process, by kind and outcome; one that is recorded is not done again.
    """
    tries = []

    def shaky() -> None:
        tries.append(1)
        if len(tries) == 1:
            raise OSError

    if flavour == "async":

        @app.job(retry=SOON)
        async def work(ctx: forebay.Context) -> None:
            await ctx.step("charge", int)
            await ctx.step("ship", shaky)
    else:

        @app.job(retry=SOON)
        def work(ctx: forebay.Context) -> None:
            ctx.step("charge", int)
            ctx.step("ship", shaky)

    job = work.enqueue(conn)
    counted = Stats()
    for _ in range(20):
        worker = await run_until_idle(app)
        for (kind, outcome), times in worker.stats.steps.items():
            for _ in range(times):
                counted.count_step(kind, outcome)
        if state(conn, job) == "done":
            break
    assert counted.steps == {("work", "done"): 2, ("work", "failed"): 1}
    text = await exporter_of(database, worker.health, [counted, counted]).atext()
    assert 'forebay_worker_steps_total{kind="work",outcome="done"} 4' in text
    assert 'forebay_worker_steps_total{kind="work",outcome="failed"} 2' in text


async def test_redaction_erases_what_flows_have_recorded(app, conn):
    """
    Values of steps, payloads of signals and what children returned: of jobs that have ended.
    """

    @app.job(queue="mail")
    async def child(n: int) -> dict[str, str]:
        return {"secret": "child"}

    @app.job(queue="mail")
    async def ends(ctx: forebay.Context) -> None:
        await ctx.step("charge", lambda: {"secret": "step"})
        await ctx.wait("approval", key="k")
        await ctx.gather("parts", child.calls([1, 2]))

    @app.job(queue="mail")
    async def waits(ctx: forebay.Context) -> None:
        await ctx.step("charge", lambda: {"secret": "kept"})
        await ctx.wait("approval", key="other")

    forebay.signal(conn, "approval", "k", {"secret": "payload"})
    ended, waiting = ends.enqueue(conn), waits.enqueue(conn)
    await run_until_idle(app)
    assert state(conn, ended) == "done"
    after, seen = None, 0
    for _ in range(100):
        redacted, after = conn.execute(
            "select redacted, next from forebay.redact_queue('mail', after => %s)",
            [None if after is None else json.dumps(after)],
        ).fetchone()
        seen += redacted
        if after is None:
            break
    texts = one(
        conn,
        "select concat((select string_agg(s::text, ' ') from forebay.step s where job_id <> %s),"
        " (select string_agg(e::text, ' ') from forebay.gather_end e))",
        waiting,
    )
    assert "secret" not in texts
    assert "redacted" in texts
    kept = "select value ->> 'secret' from forebay.step where job_id = %s and name = 'charge'"
    assert one(conn, kept, waiting) == "kept"
