"""`forebay where`: one screen that says what made a job, what became of it, and what happens
next.
"""

import json
import random
from datetime import UTC, datetime
from typing import get_args

import pytest

from forebay.client import Client
from forebay.model.archive import FoundAs
from tests.support.engine import Reader, enqueue, enqueue_many, one, shift_clock
from tests.support.mutant import break_function

LINES_MAX = 24


def lines(answer) -> list[str]:
    """Return the lines of a screen; each fits 80 columns, and all fit a terminal."""
    found = answer.out.rstrip("\n").split("\n")
    assert len(found) <= LINES_MAX, answer.out
    assert max(map(len, found)) <= 80, answer.out
    return found


@pytest.fixture
def where(forebay, monkeypatch):
    """Ask where something is, at 80 columns."""
    monkeypatch.setenv("COLUMNS", "80")
    return lambda *arguments: forebay("where", *arguments)


def test_a_job_with_its_transaction_attempts_and_next_step(where, database, conn):
    """The transaction that made it with its other jobs; each attempt with its error.

    What comes next and when.
    """
    with conn.transaction():
        job = enqueue(conn, kind="send", args={"to": "x" * 300}, correlation_id="order-7")
        enqueue(conn, kind="send")
        xid = one(conn, "select pg_current_xact_id()::text")
    with Reader(database) as reader:
        batch = reader.claim(1)
        error = {"type": "ValueError", "message": "boom " * 60, "max_attempts": 5}
        ended = [{"offset": 1, "outcome": "retried", "after": 3600, "error": error}]
        reader.settle(batch.claim_no, ended=ended)
        screen = "\n".join(lines(where(job)))
    assert f"by transaction {xid}, with 1 other job" in screen
    assert "attempt 1" in screen
    assert "retried" in screen
    assert "ValueError: boom" in screen
    assert "attempt 2 of 5 is ready at" in screen
    found = where(job, "--json").json
    assert [(one["attempt"], one["outcome"]) for one in found["attempts"]] == [(1, "retried")]
    assert found["explanations"][0]["cause"] == "retrying"


@pytest.mark.parametrize("name", ["correlation_id", "ordering_key", "limit_key"])
def test_jobs_are_found_by_what_they_have(where, conn, name):
    """All jobs with a correlation id or key are listed; the newest unfinished one is described."""
    others = [enqueue(conn, **{name: "order/7"}) for _ in range(12)]
    enqueue(conn, **{name: "order/8"})
    found = where("order/7", "--json").json
    assert found["found_as"] == name.replace("_", " ")
    assert [job["job_id"] for job in found["jobs"]] == others[::-1]
    assert found["job_id"] == others[-1]
    screen = lines(where("order/7"))
    assert screen[0] == f"12 jobs with {name.replace('_', ' ')} order/7"
    assert any("and 6 more" in line for line in screen)


def lose_a_worker(database, conn):
    """Let a worker claim what is ready, and be lost with it."""
    with Reader(database, suspect_seconds=0.001) as reader:
        reader.claim()
        shift_clock(conn, 60)
        one(conn, "select jobs from forebay.revoke_lost_v1(100)")


def waits_for(database, conn, key):
    """Park a flow until a signal with this key comes; return the key."""
    with Reader(database, "flows") as reader:
        job = enqueue(conn, queue="flows")
        wait = {"name": "approval", "key": key, "step": "approval"}
        step = {"job_id": job, "group_id": reader.group_id, "no": 1, "kind": "p"}
        steps = [step | {"name": "approval", "value": {"key": key, "seconds": None}}]
        parked = {"offset": 1, "outcome": "snoozed", "flow": {"wait": wait, "steps": steps}}
        reader.settle(reader.claim().claim_no, ended=[parked])
    return key


def test_each_way_to_be_found_has_a_screen(where, database, conn):
    """
    The words are those of SQL, as ``tests/unit/test_words_of_sql.py`` shows: one that Python does
    not know would end the command.
    """
    made = {
        "job": lambda: str(enqueue(conn)),
        "subject": lambda: one(
            conn,
            "select 'http://h/0' from forebay.upsert_subject('crawl', 'http://h/0', '{}', 'q')",
        ),
        "endpoint": lambda: one(
            conn,
            "select 'shop' from forebay.create_endpoint("
            "'shop', 'http', '{\"url\": \"https://a.example/\"}'), forebay.send('shop', '{}')",
        ),
        "signal": lambda: waits_for(database, conn, "ann"),
    }
    for name in get_args(FoundAs):
        if name in made:
            what = made[name]()
        else:
            what = f"of {name}"
            column = name.replace(" ", "_")
            if column == "unique_key":
                call = "select job_id from forebay.enqueue_unique('work', '{}', %s::jsonb)"
                one(conn, call, json.dumps({"once": what}))
            else:
                enqueue(conn, **{column: what})
        if name == "subject":
            one(conn, "select forebay.promote_v1()")
        answer = where(what)
        assert answer.code == 0, (name, answer)
        lines(answer)
        assert where(what, "--json").json["found_as"] == name
        a_century_on = str(datetime.now(UTC).year + 100)  # A job that never expires.
        assert a_century_on not in answer.out


def test_a_second_claim_of_an_attempt_says_so(where, database, conn):
    """An attempt that was lost with its worker is taken again under the same number."""
    job = enqueue(conn)
    lose_a_worker(database, conn)
    with Reader(database) as reader:
        reader.claim_ready(1)
        screen = lines(where(job))
    labels = [line[:12].strip() for line in screen]
    assert labels.count("attempt 1") == 1
    assert labels.count("1 again") == 1


def test_a_number_is_a_job_or_else_a_correlation_id(where, conn):
    """An id that exists wins; a number that no job has as its id is looked for as a text."""
    job = enqueue(conn, correlation_id="900000")
    assert where(job, "--json").json["found_as"] == "job"
    assert where("900000", "--json").json["found_as"] == "correlation id"


@pytest.mark.parametrize("name", ["correlation_id", "ordering_key", "limit_key", "signal"])
def test_a_number_that_is_a_job_and_a_key_is_found_as_both(where, database, conn, name):
    """The screen of the job has the command for the key."""
    job = enqueue(conn)
    if name == "signal":
        waits_for(database, conn, str(job))
    else:
        enqueue(conn, **{name: str(job)})
    assert lines(where(job))[-1] == f"If you mean a key: forebay where --key {job}"
    found = where("--key", job, "--json").json
    assert found["found_as"] == name.replace("_", " ")
    assert found["jobs"][0]["job_id"] > job
    assert where("--key", "77").code == 1
    assert "No job has '77'" in where("--key", "77").out


def test_nothing_is_found(where, conn):
    """A text that no job has, and a number that was never drawn, are answered, with exit code 1."""
    enqueue(conn)
    answer = where("nope")
    assert answer.code == 1
    assert "No job has 'nope'" in answer.out
    assert "no flow waits for a signal with this key" in " ".join(answer.out.split())
    assert "A flow that has got its signal" in answer.out
    answer = where(99)
    assert answer.code == 1
    assert "was ever enqueued" in answer.out
    assert where("x" * 1001).code == 2


def test_what_the_far_side_confirmed(where, database, conn):
    """A delivery whose answer is kept shows it."""
    job = enqueue(conn, kind="order.paid")
    value = {"response": {"status": 201}, "proof": "offset 7", "is_duplicate": True}
    with Reader(database) as reader:
        batch = reader.claim(1)
        kept = {"seconds": 3600, "value": value}
        reader.settle(batch.claim_no, ended=[{"offset": 1, "outcome": "done", "kept": kept}])
        screen = "\n".join(lines(where(job)))
    assert 'far side    proof offset 7, response {"status": 201}, known there already' in screen
    assert "nothing: it has ended" in screen


def test_many_groups_and_many_attempts_fit_the_screen(where, database, conn):
    """Long texts are cut, and long lists shortened."""
    readers = [Reader(database, group=f"group_{number}") for number in range(5)]
    job = enqueue(conn, kind="k" * 128, tag="t" * 200, correlation_id="c" * 200)
    for reader in readers:
        for _ in range(9):
            batch = reader.claim_ready(1)
            error = {"type": "E", "message": "line\nline " * 50}
            reader.settle(
                batch.claim_no, ended=[{"offset": 1, "outcome": "retried", "error": error}]
            )
            reader.open_claims.discard(batch.claim_no)
    try:
        screen = lines(where(job))
        assert sum("group group_" in line for line in screen) >= 1
    finally:
        for reader in readers:
            reader.conn.close()


def test_jobs_behind_a_job_are_not_read(database, conn):
    """
    A job at the head of a long lane is explained without a look at those behind it.

    Mutant: the condition on the place of the job removed.
    """
    first = enqueue(conn)
    enqueue_many(conn, [{"kind": "work"}] * 2000)
    last = enqueue(conn)
    Reader(database).conn.close()

    def before(job):
        return one(conn, "select (facts ->> 'before')::int from forebay.explain_job(%s)", job)

    assert (before(first), before(last)) == (0, 2001)
    break_function(
        database, "_ready_before", ("format('(i.xid, i.seq) < (%L, %L)', p_xid, p_seq)", "'true'")
    )
    assert before(first) > 2000


@pytest.mark.slow
def test_jobs_of_a_faulty_run_are_answered_right(database, conn, request):
    """
    `where` gives the state, the attempts and the errors that a ledger of the run has.
    """
    seed = request.config.getoption("--seed") or random.randrange(10**6)
    print(f"--seed {seed}")
    draw = random.Random(seed)
    jobs = enqueue_many(conn, [{"kind": "work", "correlation_id": f"c{n}"} for n in range(60)])
    ledger = {job: [] for job in jobs}
    ends = ["done", "retried", "dead", "cancelled", "snoozed", "lost"]
    with Reader(database) as reader:
        for _ in range(8):
            batch = reader.claim_ready(draw.randint(1, 20))
            if not batch.jobs:
                break
            ended, done = [], []
            for offset, job in enumerate(batch.job_ids, 1):
                outcome = draw.choice(ends)
                ledger[job].append(outcome)
                if outcome == "done":
                    done.append(offset)
                else:
                    error = {"type": "Fault", "message": f"{job}/{len(ledger[job])}"}
                    ended.append(
                        {
                            "offset": offset,
                            "outcome": outcome,
                            "error": error,
                            "reason": "permanent",
                        }
                    )
            reader.settle(batch.claim_no, done, ended=ended)
            reader.open_claims.discard(batch.claim_no)
    client = Client(database)
    for job in jobs:
        found = client.where(job)
        assert [one.outcome for one in found.attempts if one.claimed_at] == ledger[job]
        last = ledger[job][-1] if ledger[job] else None
        final = {"done": "done", "dead": "dead", "cancelled": "cancelled"}
        assert found.jobs[0].state == final.get(last, "ready"), json.dumps(ledger[job])
        errors = [error.message for history in found.histories for error in history.errors]
        if last in ("retried", "dead"):
            assert errors[-1] == f"{job}/{len(ledger[job])}"


def test_a_family_is_on_the_screen(where, forebay, conn):
    """The job whose handler made it, and what it has enqueued, also in `jobs show`."""
    first = enqueue(conn, kind="receive")
    headers = json.dumps({"forebay-parent": str(first)})
    second = enqueue(conn, kind="pack", headers=headers)
    third = enqueue(conn, kind="send", headers=json.dumps({"forebay-parent": str(second)}))
    for screen in ("\n".join(lines(where(second))), forebay("jobs", "show", second).out):
        assert f"job {first}  receive, ready" in screen
        assert f"{third} send" in screen
    assert where(first, "--json").json["family"]["children"] == [
        {"job_id": second, "kind": "pack", "state": "ready"}
    ]


def test_a_reason_and_its_hint_are_never_cut(where, forebay, conn):
    """A narrow terminal gets more lines: the command at the end of a hint is what helps."""
    queue = "mail_" + "x" * 58
    job = enqueue(conn, queue=queue)
    forebay("queues", "pause", queue, "--new")
    screen = " ".join(where(job).out.split())
    found = where(job, "--json").json["explanations"][0]
    assert f"no worker runs, so none serves queue {queue}" in screen
    assert f"→ {found['hint']}" in screen


def test_a_run_has_its_own_error_and_not_that_of_another_with_its_number(where, database, conn):
    """A job that was lost comes again under the same number: each run has what became of it."""
    job = enqueue(conn)
    lose_a_worker(database, conn)
    with Reader(database) as reader:
        batch = reader.claim_ready(1)
        error = {"type": "ValueError", "message": "second"}
        ended = [{"offset": 1, "outcome": "retried", "after": 3600, "error": error}]
        reader.settle(batch.claim_no, ended=ended)
    runs = [line for line in lines(where(job)) if line.startswith(("attempt 1", "1 again"))]
    assert len(runs) == 2
    assert "second" not in runs[0]
    assert "second" in runs[1]
