"""`forebay jobs search`, `replay`, `export`, and `forebay time-machine`."""

import json
import subprocess
import sys

import pytest

from forebay import Client, JobFilter
from forebay.errors import InvalidJob
from tests.support.engine import Reader, enqueue, enqueue_many, one, open_group
from tests.support.mutant import break_function, violation

#: A process that is killed when its replay has called the database so many times: before the call
#: is sent, or when it has committed.
KILLED = """
import os, signal, sys
from forebay.cli import run
from forebay.client import Client
from forebay.ops import archive

when, count = sys.argv[1], int(sys.argv[2])
archive._REPLAY_STEP = 100
old, seen = Client._run, [0]
def call(*args):
    seen[0] += 1
    if seen[0] == count and when == "before":
        os.kill(os.getpid(), signal.SIGKILL)
    result = old(*args)
    if seen[0] == count:
        os.kill(os.getpid(), signal.SIGKILL)
    return result
Client._run = call
sys.exit(run(sys.argv[3:]))
"""


@pytest.fixture
def jobs(conn, database):
    """Return five jobs, of which the first is dead and the second done."""
    found = enqueue_many(
        conn, [{"kind": "send", "args": {"to": f"user {n}"}, "tag": "ab"[n % 2]} for n in range(5)]
    )
    with Reader(database) as reader:
        batch = reader.claim(2)
        error = {"type": "ValueError", "message": "no such mailbox"}
        ended = [{"offset": 1, "outcome": "dead", "reason": "permanent", "error": error}]
        reader.settle(batch.claim_no, [2], ended=ended)
    return found


def printed(answer) -> list[int]:
    """Return the jobs of the lines of JSON."""
    return [json.loads(line)["job_id"] for line in answer.out.splitlines()]


def test_search_by_filter_state_and_text(forebay, jobs):
    """Each condition alone and together; the newest first."""
    assert printed(forebay("jobs", "search", "--json")) == jobs[::-1]
    assert printed(forebay("jobs", "search", "--tag", "b", "--json")) == [jobs[3], jobs[1]]
    assert printed(forebay("jobs", "search", "--state", "done", "--json")) == [jobs[1]]
    assert printed(forebay("jobs", "search", "USER 3", "--json")) == [jobs[3]]
    assert printed(forebay("jobs", "search", "mailbox", "--json")) == [jobs[0]]
    assert printed(forebay("jobs", "search", "--queue", "none", "--json")) == []
    answer = forebay("jobs", "search", "--limit", 2)
    assert len(answer.out.splitlines()) == 2
    assert "next page: --before" in answer.err


def test_search_by_subject(forebay, conn, database, jobs):
    """The command and the client find the runs of a subject."""
    subjects = json.dumps([{"kind": "send", "subject": name} for name in ("page 1", "page 2")])
    one(conn, "select count(*) from forebay.push_subjects(%s)", subjects)
    (run,) = printed(forebay("jobs", "search", "--subject", "page 2", "--json"))
    assert run > max(jobs)
    page = Client(database).search_jobs(JobFilter(subject="page 2"))
    assert [job.job_id for job in page.jobs] == [run]
    with pytest.raises(InvalidJob, match="must be text"):
        Client(database).search_jobs(JobFilter(subject=2))


def test_replay_with_the_token_of_a_dry_run(forebay, conn, jobs):
    """The dry run enqueues nothing; the replay does what it said.

    The new jobs show where they came from.
    """
    arguments = ["jobs", "replay", "--tag", "a", "--json"]
    plan = forebay(*arguments, "--dry-run").json
    assert plan["jobs"] == 3
    assert one(conn, "select count(*) from forebay.log") == 5
    assert forebay("jobs", "replay", "--tag", "b", "--token", plan["token"]).code == 1
    done = forebay(*arguments, "--token", plan["token"]).json
    assert done["jobs"] == 3
    again = forebay("jobs", "replay", "--continue", done["replay_id"], "--json").json
    assert again == done
    new = one(conn, "select max(seq) from forebay.log")
    assert f"job {jobs[4]}, replay {done['replay_id']}" in forebay("where", new).out


def test_replay_to_another_group_by_state(forebay, conn, jobs):
    """Only the dead job, only for the other group."""
    open_group(conn, "default", "other")
    done = forebay(
        "jobs", "replay", "--state", "dead", "--to-group", "other", "--yes", "--json"
    ).json
    assert done["jobs"] == 1
    new = one(conn, "select max(seq) from forebay.log")
    states = {job["group"]: job["state"] for job in forebay("jobs", "show", new, "--json").json}
    assert states == {"other": "ready"}
    refused = forebay("jobs", "replay", "--state", "dead", "--to-group", "none", "--yes")
    assert refused.code == 1
    assert "no group none" in refused.err


def test_a_replay_needs_jobs_and_consent(forebay, jobs):
    """Without a filter, and without a terminal and --yes, nothing is enqueued."""
    assert forebay("jobs", "replay").code == 2
    assert forebay("jobs", "replay", "--tag", "a").code == 2
    assert forebay("jobs", "replay", "--continue", 1, "--tag", "a").code == 2
    assert forebay("jobs", "replay", jobs[0], "--json").json["jobs"] == 1


def test_export_writes_complete_files_only(forebay, tmp_path, jobs):
    """Each job with its state; an existing file stays; nothing is left of the temporary one."""
    path = tmp_path / "jobs.jsonl"
    assert forebay("jobs", "export", "--file", path).code == 0
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert [row["job_id"] for row in rows] == jobs[::-1]
    assert {row["state"] for row in rows} == {"dead", "done", "ready"}
    assert forebay("jobs", "export", "--file", path).code == 2
    assert [one.name for one in tmp_path.iterdir()] == ["jobs.jsonl"]
    assert printed(forebay("jobs", "export", "--state", "dead")) == [jobs[0]]


def test_the_time_machine(forebay, database, conn):
    """What waited and ran at a moment, whatever happened since."""
    enqueue_many(conn, [{"kind": "send"}] * 3)
    with Reader(database) as reader:
        batch = reader.claim(1)
        moment = one(conn, "select clock_timestamp()").isoformat()
        reader.finish(batch)
    enqueue(conn, kind="later")
    found = forebay("time-machine", moment, "--json").json
    assert sorted(job["state"] for job in found) == ["ready", "ready", "running"]
    out = forebay("time-machine", moment).out
    assert "later" not in out
    assert "running" in out
    assert "No job" in forebay("time-machine", "2d").out


def killed_and_run_again(forebay, database, conn, when, count):
    """Replay 10,000 jobs, killed at a step, then run again with the token.

    Return the jobs, and where the new ones come from.
    """
    jobs = enqueue_many(conn, [{"kind": "send", "tag": "t"}] * 10_000)
    enqueue_many(conn, [{"kind": "send"}] * 10)
    token = forebay("jobs", "replay", "--tag", "t", "--dry-run", "--json").json["token"]
    arguments = ["jobs", "replay", "--tag", "t", "--token", token, "--json"]
    command = [sys.executable, "-c", KILLED, when, str(count), *arguments, "--dsn", database]
    died = subprocess.run(command, capture_output=True, check=False, timeout=60)
    assert died.returncode == -9, died.stderr
    again = forebay(*arguments)
    assert again.code == 0, again.err
    assert again.json["jobs"] == len(jobs)
    query = (
        "select (headers ->> 'forebay-replayed-from')::bigint from forebay.log where headers ? "
        "'forebay-replay' order by seq"
    )
    return jobs, [job for (job,) in conn.execute(query)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("when", "count"), [("before", 1), ("after", 1), ("before", 2), ("after", 2)]
)
def test_a_replay_that_was_killed_is_run_again_with_its_token(forebay, database, conn, when, count):
    """Exactly the jobs of the plan, once."""
    jobs, origins = killed_and_run_again(forebay, database, conn, when, count)
    assert origins == jobs


@pytest.mark.slow
def test_a_replay_that_begins_anew_is_seen(forebay, database, conn):
    """Mutant: the token does not lead to the replay that was begun with it."""
    break_function(database, "replay_jobs", ("where i.token = replay_jobs.token", "where false"))
    with violation():
        jobs, origins = killed_and_run_again(forebay, database, conn, "after", 2)
        assert origins == jobs


def test_an_export_says_how_the_attempts_ended(forebay, database, conn, jobs):
    """Outcome, error and duration of the last attempt, the duration of all, and the result."""
    with Reader(database) as reader:
        batch = reader.claim(3)
        error = {"type": "ValueError", "message": "not yet"}
        retried = {"offset": 1, "outcome": "retried", "after": 60, "error": error}
        kept = {"offset": 3, "outcome": "done", "kept": {"value": {"n": 1}, "seconds": 60}}
        flush = {"claim_no": batch.claim_no, "flush_no": 1, "done": [2], "millis": [40]}
        flushes = json.dumps([flush | {"ended": [retried, kept]}])
        settle = "select status from forebay.settle_v1(%s, %s)"
        assert one(reader.conn, settle, reader.lease_id, flushes) == "settled"
    lines = [json.loads(line) for line in forebay("jobs", "export").out.splitlines()]
    ends = ("outcome", "error_type", "error", "seconds", "seconds_all", "result")
    found = {line["job_id"]: tuple(line[name] for name in ends) for line in lines}
    assert found == {
        jobs[0]: ("dead", "ValueError", "no such mailbox", None, None, None),
        jobs[1]: ("done", None, None, None, None, None),
        jobs[2]: ("retried", "ValueError", "not yet", None, None, None),
        jobs[3]: ("done", None, None, 0.04, 0.04, None),
        jobs[4]: ("done", None, None, None, None, {"n": 1}),
    }
