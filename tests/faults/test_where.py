"""`where` after a run with faults: each answer agrees with what the handlers wrote down."""

import random
from collections import defaultdict

import pytest

from forebay.client import Client
from tests.support.engine import connect, enqueue_many, one
from tests.support.waiting import wait_for

#: Jobs for which an answer is compared.
COMPARED = 100

OPEN = "select coalesce(sum(ready + claimed + running + retrying), 0) from forebay.depth('default')"


@pytest.mark.slow
def test_answers_agree_with_the_ledger_of_a_run_with_kills(database, workers, effects, request):
    """
    Workers are killed while jobs fail, retry, die, wait for limits and keys, are cancelled, and are
    scheduled. 100 random jobs are compared: state, each attempt with the process that ran it, and
    each error.
    """
    seed = request.config.getoption("--seed") or random.randrange(10**6)
    print(f"--seed {seed}")
    draw = random.Random(seed)
    client = Client(database)
    with connect(database) as conn:
        one(conn, "select forebay.limit_queue('default', key_concurrency => 2)::text")
        wanted = {}
        for entry in range(160):
            keys = draw.choice(
                [
                    {},
                    {},
                    {"ordering_key": f"o{draw.randrange(6)}"},
                    {"limit_key": f"l{draw.randrange(3)}"},
                ]
            )
            wanted[entry] = {
                "kind": "step",
                "args": {"entry": entry, "seconds": draw.choice([0, 0.05, 0.2]),
                    "failures": draw.choice([0, 0, 1, 3])},
                # A dead letter holds its ordering key.
                "max_attempts": 20 if "ordering_key" in keys else draw.choice([2, 20]),
                **keys,
            }  # fmt: skip
        for entry in range(160, 180):
            place = {"delay": 86_400} if entry % 2 else {"queue": "unserved"}
            wanted[entry] = {"kind": "step", "args": {"entry": entry}, **place}
        jobs = dict(zip(wanted, enqueue_many(conn, list(wanted.values())), strict=True))
        cancelled = set(draw.sample(range(160, 180), 6))
        for entry in cancelled:
            assert client.cancel(jobs[entry]) == "cancelled"
        killed = set()
        for _ in range(4):
            victim = workers.start()

            def starts(pid=victim.pid):
                return sum(effect.pid == pid for effect in effects.all("start"))

            # The others are away, so that it has jobs.
            wait_for(lambda: starts() > 5 or not one(conn, OPEN), 60, lambda: workers.logs)
            killed.add(victim.pid)
            victim.kill()
        workers.start()
        workers.start()
        wait_for(lambda: one(conn, OPEN) == 0, 90, lambda: workers.logs)

    ledger = defaultdict(list)
    for effect in effects.all():
        ledger[effect.entry].append(effect)
    pids = {worker.pid for worker in workers.members}
    died = {effect.entry for effect in effects.all("start") if effect.pid in killed}
    assert died, "nobody was killed while it worked"
    for entry in draw.sample(sorted(wanted), COMPARED):
        found = client.where(jobs[entry])
        (job,) = found.jobs
        said = f"job {jobs[entry]}, entry {entry}: {found}"
        if entry >= 160:
            states = {"scheduled" if entry % 2 else "ready"}
            if entry in cancelled:
                # Where no worker claims, a cancelled job stays ready until maintenance skips it.
                states = {"cancelled"} if entry % 2 else {"cancelled", "ready"}
            assert job.cancel_requested == (entry in cancelled), said
            assert ("cancelled" in found.next_steps[job.group] or job.state == "cancelled") == (
                entry in cancelled
            ), said
            assert job.state in states, said
            assert ledger[entry] == [], said
            assert not [a for a in found.attempts if a.worker], said
            assert found.next_steps[job.group], said
            continue
        tries = {(a.attempt, int(a.worker.split(":")[1])) for a in found.attempts if a.worker}
        began = {(e.attempt, e.pid) for e in ledger[entry] if e.what == "start"}
        # A job whose worker was lost runs in a child process of its next worker.
        assert {e for e in began if e[1] in pids} <= tries, said
        assert {attempt for attempt, _ in began} <= {attempt for attempt, _ in tries}, said
        # Who was claimed and not started is released, or lost with its worker.
        ran = {
            (a.attempt, int(a.worker.split(":")[1]))
            for a in found.attempts
            if a.outcome in ("done", "retried", "dead")
        }
        assert {attempt for attempt, _ in ran} <= {attempt for attempt, _ in began}, said
        last = ledger[entry][-1]
        assert job.state in ("done", "dead"), said
        if last.pid in pids - killed:
            assert job.state == ("done" if last.what == "end" else "dead"), said
            assert job.attempt == last.attempt, said
        failed = {e.attempt for e in ledger[entry] if e.what == "fail" and e.pid in pids - killed}
        errors = {e.attempt: e for history in found.histories for e in history.errors}
        assert failed <= set(errors), said
        assert {(errors[n].type, errors[n].message) for n in failed} <= {
            ("ValueError", str(entry))
        }, said
