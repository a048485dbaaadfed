"""`forebay doctor --job`: one answer for each branch of the decision tree, in a sentence and
with a next step.
"""

import json

import pytest

from forebay.client import Client
from tests.support.delivering import create_endpoint, send
from tests.support.engine import Reader, connect, enqueue, one, open_group


@pytest.fixture
def explain(forebay, database):
    """Ask why a job does not run; the command, the client and `jobs show` give the same answer."""

    def call(job_id, cause):
        answer = forebay("doctor", "--job", job_id, "--json")
        (found,) = answer.json["explanations"]
        assert found["cause"] == cause, found
        answers = [step["answer"] for step in found["steps"]]
        assert found["answer"] in answers or cause in {"soon", "trouble"}
        if cause != "trouble":
            (same,) = Client(database).explain(job_id)
            assert same.cause == cause
        return found

    return call


def served(conn, database, queue="default"):
    """Return a reader of a queue that has claimed once, so that the queue counts as served."""
    del conn
    return Reader(database, queue=queue)


def test_a_job_that_was_never_enqueued(explain, forebay, conn):
    """
    A number above the newest one was never given; the command says so and exits with 1.
    """
    enqueue(conn)
    found = explain(999_999, "unknown")
    assert "was ever enqueued" in found["answer"]
    assert "forebay config" in found["hint"]
    assert forebay("doctor", "--job", 999_999).code == 1


def test_a_job_whose_transaction_is_open_or_was_rolled_back(explain, forebay, database, conn):
    """
    Only committed jobs run; the session with the open transaction is named.
    """
    with connect(database) as producer:
        producer.execute("begin; set local application_name = 'shop'")
        job_id = enqueue(producer)
        found = explain(job_id, "unknown")
        assert "not committed" in found["answer"]
        assert "shop (pid" in found["hint"]
        shown = forebay("jobs", "show", job_id)
        assert shown.code != 0
        assert "not committed" in shown.err
        assert "shop (pid" in shown.err
        producer.execute("rollback")
    assert "rolled back" in explain(job_id, "unknown")["answer"]


def test_a_job_that_has_ended(explain, database, conn):
    """
    Done, cancelled and dead are answers too; a redriven job leads to the new one.
    """
    done, cancelled, dead = (enqueue(conn) for _ in range(3))
    one(conn, "select forebay.cancel(%s)", cancelled)
    with Reader(database) as reader:
        batch = reader.claim_ready(10)
        error = {"type": "KeyError", "message": "'nope'"}
        ended = {"offset": 2, "outcome": "dead", "reason": "permanent", "error": error}
        assert reader.settle(batch.claim_no, [1], ended=[ended]) == "settled"
    assert explain(done, "ended")["answer"].startswith("it is done")
    assert "cancelled" in explain(cancelled, "ended")["answer"]
    found = explain(dead, "ended")
    assert "KeyError: 'nope'" in found["answer"]
    assert f"forebay dead redrive --job {dead}" in found["hint"]
    new = Client(database).redrive(found["job_id"] and Client(database).dead_letters()[0].dead_id)
    assert f"redriven as job {new}" in explain(dead, "ended")["answer"]


def test_a_restored_database(explain, conn):
    """
    A copy of a database runs no job until an operator adopts it.
    """
    job_id = enqueue(conn)
    conn.execute("insert into forebay.cluster (system_identifier, database_oid) values (1, 1)")
    conn.execute("select setval('forebay.same_cluster_seq', 1)")
    assert "forebay adopt" in explain(job_id, "restored")["hint"]


def test_a_scheduled_and_an_overdue_job(explain, conn):
    """
    Until it is due, a job waits; after it a worker must make it ready.
    """
    later = enqueue(conn, delay="5 hours")
    assert "in 5 h" in explain(later, "scheduled")["answer"]
    conn.execute("update forebay.deferred set run_at = now() - interval '5 minutes'")
    found = explain(later, "overdue")
    assert "Start a worker" in found["hint"]


def test_a_retrying_job_and_one_without_a_handler(explain, database, conn):
    """
    Both wait for their next attempt, for different reasons.
    """
    failed, unknown = enqueue(conn), enqueue(conn)
    with Reader(database) as reader:
        batch = reader.claim_ready(10)
        error = {"type": "KeyError", "message": "'nope'"}
        ended = [
            {"offset": 1, "outcome": "retried", "after": 60, "error": error},
            {
                "offset": 2,
                "outcome": "unknown",
                "after": 60,
                "error": {"message": "no handler"},
            },
        ]
        assert reader.settle(batch.claim_no, [], ended=ended) == "settled"
    found = explain(failed, "retrying")
    assert "attempt 2 starts in" in found["answer"]
    assert "KeyError: 'nope'" in found["answer"]
    assert "has no handler for work" in explain(unknown, "no handler")["answer"]


@pytest.mark.parametrize("is_promoted", [False, True])
def test_a_due_job_without_a_handler_waits_for_a_worker_that_has_one(
    explain, database, conn, is_promoted
):
    """
    The next run of the same app does not run it, although its time has come: neither a tick nor a
    worker is what it waits for. A worker that has declared its kind may have it.
    """
    job = enqueue(conn)
    with Reader(database) as reader:
        batch = reader.claim_ready(1)
        ended = {"offset": 1, "outcome": "unknown", "after": 1, "error": {"message": "none"}}
        assert reader.settle(batch.claim_no, [], ended=[ended]) == "settled"
    conn.execute(
        "update forebay.lease set closed_at = now(), closed_as = 'closed', details = details ||"
        """ '{"until_idle": true, "queues": ["default"], "group": "default"}'"""
    )
    conn.execute("update forebay.deferred set run_at = run_at - interval '1 minute'")
    if is_promoted:
        conn.execute("select forebay.promote_v1()")
    found = explain(job, "no handler")
    assert "had no handler for work: it is due again" in found["answer"]
    assert found["hint"].startswith("Start a worker whose app has work")
    with Reader(database) as reader:
        lead(conn, reader)
        explain(job, "no handler")
        one(conn, "select count(*) from forebay.record_kinds_v1('w', '{work}', '{default}')")
        explain(job, "soon" if is_promoted else "overdue")


def test_a_job_in_the_hands_of_a_worker(explain, database, conn):
    """
    Claimed, running, and held by a worker that has fallen silent.
    """
    job_id = enqueue(conn)
    with Reader(database) as reader:
        reader.claim_ready(1)
        assert "default@test claimed it" in explain(job_id, "claimed")["answer"]
        conn.execute(
            "insert into forebay.heartbeat select lease_id, clock_timestamp(), "
            "backend_pid, array[%s::bigint]"
            " from forebay.heartbeat",
            [job_id],
        )
        assert f"jobs cancel {job_id}" in explain(job_id, "running")["hint"]
        conn.execute("update forebay.heartbeat set heartbeat_at = now() - interval '20 seconds'")
        assert "silent" in explain(job_id, "worker silent")["answer"]


def test_a_queue_that_no_worker_serves(explain, database, conn):
    """
    The answer tells whether no worker runs at all, or others do, and who claimed last.
    """
    job_id = enqueue(conn, queue="mail")
    found = explain(job_id, "not served")
    assert "no worker runs" in found["answer"]
    assert "no worker has ever claimed from it" in found["answer"]
    assert found["hint"].endswith("forebay worker MODULE:APP --queue mail")
    with Reader(database, queue="other"):
        assert "others run: default@test" in explain(job_id, "not served")["answer"]


def test_a_paused_queue(explain, forebay, database, conn):
    """
    A pause counts after the question whether anybody would serve the queue.
    """
    job_id = enqueue(conn)
    with Reader(database) as reader:
        lead(conn, reader)
        forebay("queues", "pause", "default")
        assert explain(job_id, "paused")["hint"] == "forebay queues resume default"


def test_a_paused_queue_without_a_worker(explain, forebay, database, conn):
    """
    Both keep the job back, and both are named wherever the job is explained: to start a worker is
    not enough.
    """
    job_id = enqueue(conn, queue="mail")
    forebay("queues", "pause", "mail", "--for", "1h", "--new")
    with Reader(database, queue="other"):
        found = explain(job_id, "not served")
    assert "no worker serves queue mail" in found["answer"]
    assert "queue mail has been paused for " in found["answer"]
    assert "forebay worker MODULE:APP --queue mail; then" in found["hint"]
    assert found["hint"].endswith("forebay queues resume mail")
    for arguments in (("jobs", "show", job_id), ("where", job_id)):
        assert "forebay queues resume mail" in " ".join(forebay(*arguments).out.split())


@pytest.mark.parametrize("sort", ["limit", "ordering"])
def test_a_paused_key(explain, forebay, database, conn, sort):
    """
    The hint resumes it; a pause with an end tells how long it lasts.
    """
    job_id = enqueue(conn, **{f"{sort}_key": "customer 1"})
    with Reader(database) as reader:
        lead(conn, reader)
        forebay("keys", "pause", "default", f"--{sort}-key", "customer 1", "--for", "10m")
        assert reader.claim_ready().jobs == []
        found = explain(job_id, "paused")
        assert found["answer"].startswith(f"its {sort} key customer 1 has been paused for ")
        assert "for another" in found["answer"]
        assert found["hint"] == f"forebay keys resume default --{sort}-key 'customer 1'"


def test_a_kind_that_no_worker_has_declared_and_a_wrong_queue(explain, database, conn):
    """
    Workers record their kinds: a misspelt kind, and a queue that its workers do not serve, are
    named.
    """
    one(conn, "select count(*) from forebay.record_kinds_v1('w', '{resize}', '{images}')")
    misspelt = enqueue(conn, kind="resise", queue="images")
    wrong = enqueue(conn, kind="resize", queue="default")
    assert "belongs in queue images" in explain(wrong, "not served")["answer"]
    with Reader(database, queue="images") as reader:
        lead(conn, reader)
        assert "declared a handler for resise" in explain(misspelt, "no handler")["answer"]


def lead(conn, reader):
    """Let a reader lead its group, as an idle worker does."""
    one(conn, "select forebay.lead_v1(1, array[%s]::bigint[], 100)", reader.group_id)


def test_a_limit_that_is_reached(explain, forebay, database, conn):
    """
    The number of running jobs, of the queue or of a limit key, and the rate.
    """
    forebay("queues", "limit", "default", "--concurrency", 1)
    enqueue(conn)
    job_id = enqueue(conn)
    with Reader(database) as reader:
        reader.claim_ready(1)
        found = explain(job_id, "limit")
        assert found["answer"] == "queue default runs 1 of at most 1 jobs at once"
        forebay("queues", "limit", "default", "--remove", "all")
        forebay("queues", "limit", "default", "--rate", 0.01)
        enqueue(conn)
        reader.claim_ready(1)
        newest = enqueue(conn)
        found = explain(newest, "limit")
        assert "starts at most 0.01 jobs a second; the next job starts in" in found["answer"]


def test_a_limit_of_a_key(explain, forebay, database, conn):
    """
    The key of the job is named with its own number of running jobs.
    """
    forebay("queues", "limit", "default", "--key-concurrency", 1)
    enqueue(conn, limit_key="acme")
    job_id = enqueue(conn, limit_key="acme")
    with Reader(database) as reader:
        reader.claim_ready(1)
        found = explain(job_id, "limit")
        assert found["answer"] == "limit key acme runs 1 of at most 1 jobs at once"


def test_an_ordering_key_names_the_job_before(explain, database, conn):
    """
    The job of the key that must end first, in this worker, in another one, and when it waits for
    its retry.
    """
    first, second, third = (enqueue(conn, ordering_key="doc:1") for _ in range(3))
    with Reader(database) as reader:
        batch = reader.claim_ready(1)
        assert batch.job_ids[0] == first
        found = explain(third, "ordering key")
        assert f"job {first}" in found["answer"]
        assert found["hint"] == f"forebay doctor --job {first}"
        failed = {"offset": 1, "outcome": "retried", "after": 60}
        assert reader.settle(batch.claim_no, [], ended=[failed]) == "settled"
        explain(first, "retrying")
        assert f"job {first}" in explain(second, "ordering key")["answer"]
        assert f"job {first}" in explain(third, "ordering key")["answer"]


def test_jobs_that_come_first_and_busy_workers(explain, database, conn):
    """
    A better priority and an earlier enqueue go first; after that, the workers have no free slot.
    """
    enqueue(conn)
    early, late = enqueue(conn), enqueue(conn)
    enqueue(conn, priority=1)
    with Reader(database) as reader:
        reader.claim(1)
        found = explain(late, "jobs before")
        assert found["answer"].startswith("2 jobs of queue default come first")
        assert explain(early, "jobs before")["answer"].startswith("1 job of queue default")
        reader.claim(10, priority=1)
        assert "default@test" in explain(early, "busy")["answer"]
        lead(conn, reader)
        assert "within seconds" in explain(early, "soon")["answer"]


def test_a_worker_that_has_perhaps_died_is_not_busy(explain, database, conn):
    """
    Its lease still has jobs, so it counts as one that serves the queue until another takes over.
    """
    enqueue(conn)
    waiting = enqueue(conn)
    with Reader(database, lease_seconds=3600) as reader:
        reader.claim(1)
        assert "are busy" in explain(waiting, "busy")["answer"]
        conn.execute("update forebay.heartbeat set heartbeat_at = heartbeat_at - interval '40 min'")
        found = explain(waiting, "worker silent")
        assert "default@test has been silent for 40 min" in found["answer"]
        assert found["hint"].endswith("forebay worker MODULE:APP --queue default")


def test_trouble_of_the_database_is_the_last_question(explain, database, conn):
    """
    When nothing else holds the job back, the doctor's findings have the answer.
    """
    job_id = enqueue(conn)
    with Reader(database) as reader, connect(database) as stranger:
        lead(conn, reader)
        conn.execute(
            "insert into forebay.duty (name, error, worker, since, recorded_at)"
            " values ('promote', 'boom', 'w', now() - interval '1 hour', now())"
        )
        assert stranger
        found = explain(job_id, "trouble")
        assert "boom" in found["answer"]


def test_each_group_has_its_own_answer(forebay, database, conn):
    """
    A job may have ended in one group and wait in another.
    """
    open_group(conn, "default")
    open_group(conn, "default", "audit", "beginning")
    job_id = enqueue(conn)
    with Reader(database) as reader:
        batch = reader.claim_ready(1)
        reader.settle(batch.claim_no, [1])
    found = {one.group: one.cause for one in Client(database).explain(job_id)}
    assert found == {"default": "ended", "audit": "not served"}
    out = forebay("doctor", "--job", job_id).out
    assert "group audit" in out


def test_the_next_step_names_the_application_and_the_group(explain, conn):
    """
    The command serves the group that waits, by the application that a worker served it with.
    """
    with Reader(conn.info.dsn, "mail", group="audit"):
        conn.execute(
            "update forebay.lease set details = jsonb_build_object('app', 'shop.jobs:app',"
            " 'group', 'audit', 'queues', array['mail']), closed_at = now(), closed_as = 'closed'"
        )
    job_id = enqueue(conn, queue="mail")
    hint = explain(job_id, "not served")["hint"]
    assert hint.endswith("forebay worker shop.jobs:app --queue mail --group audit")


def test_the_screen_has_the_answer_the_next_step_and_the_questions(forebay, conn):
    """
    One sentence, one command, and what was asked; `jobs show` has the sentence too.
    """
    job_id = enqueue(conn, queue="mail")
    out = forebay("doctor", "--job", job_id).out
    assert "No worker runs" in out
    assert "→ Start a worker: forebay worker MODULE:APP --queue mail" in out
    assert "✓ ended" in out
    shown = forebay("jobs", "show", job_id).out
    assert "no worker runs" in shown


def test_a_sentence_keeps_the_name_of_a_worker_as_it_is(forebay, database, conn):
    """It may be copied."""
    job_id = enqueue(conn)
    with Reader(database) as reader:
        error = {"message": "no handler"}
        ended = [{"offset": 1, "outcome": "unknown", "after": 60, "error": error}]
        reader.settle(reader.claim().claim_no, ended=ended)
        conn.execute("update forebay.lease set worker = 'vm:1:ab'")
        conn.execute("update forebay.failure set worker = 'vm:1:ab'")
    assert "vm:1:ab has no handler" in forebay("doctor", "--job", job_id).out


def declare_a_kind(conn):
    """Record a kind of a queue that has nothing to do with the job, as any worker does."""
    one(conn, "select count(*) from forebay.record_kinds_v1('w', '{resize}', '{images}')")


def open_breaker(conn, queue, key):
    conn.execute(
        "insert into forebay.breaker (queue, key, failures, threshold, cooldown, cooldown_max,"
        " opened_at, probe_at) values (%s, %s, 9, 9, 600, 600, now(), now() + interval '1 minute')",
        [queue, key],
    )


@pytest.mark.parametrize("is_met", [False, True])
def test_a_delivery_waits_for_the_probe_of_its_endpoint_and_for_no_handler(
    explain, forebay, database, conn, is_met
):
    """Whether a claim has met it or not: the breaker is the cause, and its endpoint is named."""
    declare_a_kind(conn)
    endpoint = create_endpoint(conn, "local", "http", {"url": "https://example.com/"})
    send(conn, "local")
    report = {"endpoint_id": endpoint, "failures": 10, "answered": False, "error": "HTTP 500"}
    conn.execute("select forebay.report_deliveries_v1('w', %s::jsonb)", [json.dumps([report])])
    with Reader(database, "forebay.deliver") as reader:
        lead(conn, reader)
        if is_met:
            assert reader.claim_all() == []
        (job,) = forebay("jobs", "list", "--queue", "forebay.deliver", "--json").json
        found = explain(job["job_id"], "limit")
        screens = [forebay("where", job["job_id"]), forebay("jobs", "show", job["job_id"])]
    assert found["answer"].startswith("the breaker of endpoint local is open, next probe in ")
    assert "forebay endpoints show local" in found["hint"]
    for screen in screens:
        words = " ".join(screen.out.split())
        assert "breaker of endpoint local is open" in words
        assert "handler for" not in words


def test_an_open_breaker_of_a_limit_key_that_no_claim_has_met(explain, database, conn):
    """The next probe, and the command that shows the key."""
    open_breaker(conn, "crawl", "a.org")
    job_id = enqueue(conn, queue="crawl", limit_key="a.org")
    with Reader(database, "crawl") as reader:
        lead(conn, reader)
        found = explain(job_id, "limit")
    assert found["answer"].startswith("the breaker of limit key a.org is open, next probe in ")
    assert "forebay keys show crawl --limit-key a.org" in found["hint"]


def test_a_worker_in_sql_declares_no_kinds_and_lacks_none(explain, forebay, database, conn):
    """A limit that it has reached is the cause; without one, it takes the job."""
    declare_a_kind(conn)
    job_id = enqueue(conn, queue="mail")
    with Reader(database, "mail") as reader:
        lead(conn, reader)
        explain(job_id, "soon")
        forebay("queues", "limit", "mail", "--concurrency", 1)
        enqueue(conn, queue="mail")
        reader.claim_ready(1)
        (waiting,) = forebay("jobs", "list", "--queue", "mail", "--state", "ready", "--json").json
        found = explain(waiting["job_id"], "limit")
    assert found["answer"] == "queue mail runs 1 of at most 1 jobs at once"


def test_a_limit_comes_before_a_missing_handler(explain, forebay, database, conn):
    """Also where other workers have declared kinds for the same queue."""
    one(conn, "select count(*) from forebay.record_kinds_v1('w', '{resize}', '{mail}')")
    forebay("queues", "limit", "mail", "--concurrency", 1)
    enqueue(conn, queue="mail")
    job_id = enqueue(conn, queue="mail")
    with Reader(database, "mail") as reader:
        reader.claim_ready(1)
        explain(job_id, "limit")
