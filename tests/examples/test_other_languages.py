"""The workers in other languages of the how-to, as processes, and the vectors in Node."""

import subprocess

import pytest

from tests.support.engine import Reader, connect, enqueue, one, state
from tests.support.other_languages import COMMANDS, EXAMPLES, environment, other_worker
from tests.support.waiting import wait_for
from tests.support.worker_process import ROOT

pytestmark = pytest.mark.slow

KIND_OF = {"node": "send_welcome", "shell": "make_report"}


@pytest.mark.parametrize("language", COMMANDS)
def test_a_worker_does_its_jobs(conn, database, tmp_path, language):
    """Results, failed attempts, effects in the commit of the end, and a clean stop."""
    conn.execute("create table login (user_id int, job_id bigint)")
    first = enqueue(
        conn, kind=KIND_OF[language], queue="q", args={"user_id": 7, "s": "é '\" \\ \n"}
    )
    unknown = enqueue(conn, kind="unknown", queue="q", max_attempts=1)
    logins = [enqueue(conn, kind="count_login", queue="q", args={"user_id": n}) for n in range(5)]
    with other_worker(database, language, "q", tmp_path / "log", lease=30) as worker:
        ended = "select count(*) from forebay.job(%s) where state in ('done', 'dead')"
        wait_for(
            lambda: all(one(conn, ended, job_id) for job_id in [first, unknown, *logins]),
            60,
            describe=lambda: worker.log.read_text(encoding="utf-8"),
        )
        (seen,) = conn.execute("select worker, app from forebay.workers()").fetchall()
        assert seen[0].startswith(language)
        assert worker.stop() == 0
    assert (state(conn, first), state(conn, unknown)) == ("done", "dead")
    message = one(conn, "select errors -> 0 ->> 'message' from forebay.dead_letter")
    assert message.strip() == "no handler for unknown"
    rows = conn.execute("select user_id, job_id from login order by 1").fetchall()
    assert rows == list(enumerate(logins))
    if language == "shell":
        result = one(conn, "select value from forebay.result(%s)", first)
        assert '"user_id": 7' in result
        assert "é" in result
    how = conn.execute("select how, jobs from forebay.ended_workers()").fetchall()
    assert how == [("stopped", 0)]


@pytest.mark.parametrize("language", COMMANDS)
def test_a_worker_gives_up_no_job_of_a_killed_one(conn, database, tmp_path, language):
    """Only workers of this language run: the next one finds what a killed one had."""
    conn.execute("create table login (user_id int, job_id bigint)")
    with connect(database) as locker:
        locker.autocommit = False
        locker.execute("lock table login in access exclusive mode")
        job_id = enqueue(conn, kind="count_login", queue="q", args={"user_id": 1})
        with other_worker(database, language, "q", tmp_path / "log") as worker:
            wait_for(lambda: state(conn, job_id) in ("claimed", "running"), 60)
            worker.kill()
        conn.execute(
            "select pg_terminate_backend(pid) from pg_stat_activity"
            " where datname = current_database() and wait_event_type = 'Lock'"
        )
        locker.rollback()
    with other_worker(database, language, "q", tmp_path / "log") as worker:
        wait_for(
            lambda: state(conn, job_id) == "done",
            90,
            describe=lambda: worker.log.read_text(encoding="utf-8"),
        )
    assert one(conn, "select count(*) from login") == 1


def test_the_vectors_hold_in_node(database):
    """The same file as plain SQL runs."""
    run = subprocess.run(
        ["node", str(ROOT / "tests" / "vectors" / "run.cjs")],
        env=environment(database, "node"),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert run.stdout.count("ok ") > 20


def test_a_program_in_node_waits_for_the_end_of_a_job(conn, database, tmp_path):
    """It listens before it looks, and hears of the end: its next look would be after the test."""
    conn.execute(f"alter database {conn.info.dbname} set forebay.wakeup = 'on'")
    one(conn, "select forebay.set_notices('q', true)")
    with Reader(database, "q") as reader:
        job_id = enqueue(conn, queue="q")
        program = tmp_path / "wait.cjs"
        source = (EXAMPLES / "wait.cjs").read_text(encoding="utf-8")
        program.write_text(source.replace("5000", "500000"), encoding="utf-8")
        waiter = subprocess.Popen(
            ["node", str(program), "q", str(job_id)],
            env=environment(database, "node"),
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            looks = (
                "select count(*) from pg_stat_activity"
                " where query like '%forebay.job($1)%' and state = 'idle'"
            )
            wait_for(lambda: one(conn, looks) == 1)
            reader.finish(reader.claim())
            assert waiter.communicate(timeout=60)[0] == "default: done\n"
            assert waiter.returncode == 0
        finally:
            waiter.kill()
