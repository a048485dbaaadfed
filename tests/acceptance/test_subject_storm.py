"""Subjects under kills: runs that come again, upserts, kills, revivals and drops of the same
subjects, and workers that die.
"""

import faulthandler
import json
import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest

from tests.support.engine import connect, one
from tests.support.mutant import break_function
from tests.support.waiting import wait_for
from tests.support.worker_process import Crew

pytestmark = pytest.mark.slow


def operate(
    dsn: str, subjects: int, rng: random.Random, is_over: threading.Event
) -> dict[str, int]:
    """Change subjects at random until it is over; return how often each answer came."""
    answers: dict[str, int] = {}
    with connect(dsn) as conn:
        while not is_over.wait(0.01):
            name = str(rng.randrange(subjects))
            act = rng.choices(["upsert", "kill", "revive", "drop"], [6, 2, 3, 1])[0]
            if act == "upsert":
                rows = [
                    {
                        "kind": "crawl",
                        "queue": "crawl",
                        "subject": name,
                        "delay": rng.choice([0, 0.1, 1]),
                    }
                ]
                query = "select result from forebay.upsert_subjects(%s)"
                answer = one(conn, query, json.dumps(rows))
            else:
                try:
                    answer = one(conn, f"select forebay.{act}_subject('crawl', %s)", name)
                except psycopg.Error as error:
                    if error.sqlstate != "JQ065":
                        raise
                    answer = "not found"
            answers[answer] = answers.get(answer, 0) + 1
    return answers


def storm(
    dsn: str,
    workers: Crew,
    effects,
    seed: int,
    *,
    subjects: int,
    seconds: float,
    crew_size: int,
    concurrency: int,
) -> None:
    rng = random.Random(seed)
    with connect(dsn) as conn:
        conn.execute("create table ledger (subject text, life text, run int)")
    workers.options = {
        "app": "tests.support.subject_storm_app:app", "concurrency": concurrency,
        "lease_seconds": 10.0,
    }  # fmt: skip
    names = [str(n) for n in range(subjects)]
    crew = [workers.start(wait=False) for _ in range(crew_size)]
    is_over = threading.Event()
    kills = 0
    with ThreadPoolExecutor(3) as threads, connect(dsn) as conn:
        rows = [{"kind": "crawl", "queue": "crawl", "subject": name} for name in names]
        conn.execute("select count(*) from forebay.push_subjects(%s)", [json.dumps(rows)])
        operators = [
            threads.submit(operate, dsn, subjects, random.Random(f"{seed} {n}"), is_over)
            for n in range(3)
        ]
        try:
            end = time.monotonic() + seconds
            while time.monotonic() < end:
                now = time.monotonic()
                wait_for(lambda at=now: time.monotonic() >= at + 2)
                victim = rng.randrange(len(crew))
                wait_for(lambda at=victim: "has lease" in crew[at].log, 60)
                crew[victim].kill()
                kills += 1
                crew[victim] = workers.start(wait=False)
        finally:
            is_over.set()
        answers: dict[str, int] = {}
        for operator in operators:
            for answer, count in operator.result().items():
                answers[answer] = answers.get(answer, 0) + count

        # Nothing forgotten: each subject takes the arguments that end it, and runs once more.
        left = set(names)

        def finish() -> int:
            wanted = [
                {"kind": "crawl", "queue": "crawl", "subject": n, "args": {"final": True}}
                for n in sorted(left)
            ]
            found = conn.execute(
                "select subject, result from forebay.upsert_subjects(%s, revive => true)",
                [json.dumps(wanted)],
            ).fetchall()
            left.difference_update(name for name, result in found if result != "skipped")
            return len(left)

        while left:
            # The minute begins again with each that ends: a busy machine is slow, not wrong.
            before = len(left)
            wait_for(
                lambda at=before: finish() < at,
                60,
                lambda: f"always running: {sorted(left)}",
            )
        wait_for(
            lambda: one(conn, (
                    "select count(*) from forebay.subjects('crawl', 'completed', most => "
                    "10000)"
                    )) == subjects,
            120,
            lambda: str(conn.execute("select subject, state, reason, due_at, job_id from "
                    "forebay.subjects('crawl', "
                    "most => 10000)"
                                     " where state <> "
                                             "'completed'").fetchall()) + workers.logs[-10_000:],
        )  # fmt: skip
        runs = one(conn, "select count(*) from ledger")
        print(f"{subjects} subjects, {runs} runs, {kills} kills of workers, answers {answers}")
        assert effects.count("two hands").total() == 0, "two hands"
        wrong = conn.execute(
            "select s.subject, s.data, l.runs, l.ends from forebay.subjects('crawl', most "
            "=> 10000) s"
            " cross join lateral (select count(*) as runs, count(distinct run) as ends, "
            "max(run) as last from ledger l"
            "                     where l.subject = s.subject and l.life = s.data ->> 'life') l"
            " where ((s.data ->> 'runs')::bigint, (s.data ->> 'runs')::bigint, "
            "s.iterations) is distinct from (l.runs, l.last::bigint, l.ends)"
        ).fetchall()
        assert not wrong, f"the state is not the ledger: {wrong}"
        assert dict(
            conn.execute("select state, subjects from forebay.subject_counts('crawl')")
        ) == {"completed": subjects}


SIZES = [
    pytest.param(60, 15, 3, 8, id="short"),
    pytest.param(1000, 300, 20, 5, id="long", marks=pytest.mark.nightly),  # A hundred slots.
]


@pytest.mark.parametrize(("subjects", "seconds", "crew_size", "concurrency"), SIZES)
def test_no_subject_is_in_two_hands_forgotten_or_revived_while_workers_are_killed(
    database, workers, effects, seed, subjects, seconds, crew_size, concurrency
):
    """The state of each subject is what the ledger says: each run that committed counts once,
    whatever was done meanwhile.
    """
    if seconds > 200:
        faulthandler.cancel_dump_traceback_later()  # It is meant to last.
    storm(
        database,
        workers,
        effects,
        seed,
        subjects=subjects,
        seconds=seconds,
        crew_size=crew_size,
        concurrency=concurrency,
    )


@pytest.mark.nightly
def test_without_the_run_that_a_row_names_two_hands_would_meet(database, workers, effects, seed):
    break_function(
        database, "_run_state", ("if p_row.lane is null then", "if p_row.state <> 'i' then")
    )
    with pytest.raises((AssertionError, pytest.fail.Exception)):
        storm(database, workers, effects, seed, subjects=20, seconds=30, crew_size=3, concurrency=8)
