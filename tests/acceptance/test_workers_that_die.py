"""What is promised when worker processes are killed, frozen, or killed by their own jobs."""

import json
import random
import signal
import time

import psycopg
import pytest

from tests.support.engine import depth, one, state
from tests.support.waiting import wait_for
from tests.support.writers import Writers, for_seconds, read_run, wait_until_drained

_DONE = """
    select coalesce(l.job_id, l.seq), array_agg(b.lease_id)
    from forebay.batch b
    cross join lateral unnest(b.seqs) with ordinality u (seq, nr)
    join forebay.log l on l.seq = u.seq
    join forebay.settlement s on s.lease_id = b.lease_id and s.claim_no = b.claim_no
                             and (s.offsets is null or u.nr = any (s.offsets))
    where s.offsets is null
       or coalesce(s.outcomes[array_position(s.offsets, u.nr::smallint)], 'd') = 'd'
    group by 1
"""


def put(conn, kind: str, entry: int, **args) -> int:
    """Enqueue one job for the handlers of the worker processes; return its id."""
    return one(
        conn,
        "select forebay.enqueue(%s, %s::jsonb)",
        kind,
        json.dumps({"entry": entry} | args),
    )


@pytest.mark.slow
def test_committed_jobs_run_and_rolled_back_ones_never(conn, database, workers, effects):
    """
    With nothing but a driver and ``select forebay.enqueue(...)``: a job exists exactly if its
    transaction committed, a savepoint rolled back included.
    """
    workers.start()
    with psycopg.connect(database) as producer:
        for entry in range(100):
            producer.execute(
                "select forebay.enqueue('work', jsonb_build_object('entry', %s::int))", [entry]
            )
            if entry % 3 == 1:
                producer.rollback()
            elif entry % 3 == 2:
                producer.execute("savepoint s")
                producer.execute(
                    "select forebay.enqueue('work', jsonb_build_object('entry', %s::int))",
                    [entry + 1000],
                )
                producer.execute("rollback to savepoint s")
                producer.commit()
            else:
                producer.commit()
    wait_until_drained(database)
    assert effects.count("end") == dict.fromkeys((e for e in range(100) if e % 3 != 1), 1)


@pytest.mark.slow
def test_workers_killed_under_load_lose_and_double_nothing(
    conn, database, workers, effects, seed, is_long
):
    """
    Eight writers in random commit order, four worker processes, one of them killed every three
    seconds: nothing lost, nothing that was rolled back run, nothing settled twice, and nothing run
    again but what was unsettled at a kill.
    """
    rng = random.Random(seed)
    crew = [workers.start(wait=False, concurrency=5) for _ in range(4)]
    kills = 0
    with Writers(database, seed) as writers:
        clock = for_seconds(60 if is_long else 12)
        next_kill = time.monotonic() + 3
        while clock:
            wait_for(lambda: time.monotonic() >= next_kill, 10)
            next_kill += 3
            victim = rng.randrange(4)
            wait_for(lambda: effects.all("start"), 20)
            crew[victim].kill()
            kills += 1
            crew[victim] = workers.start(wait=False, concurrency=5)
    wait_until_drained(database, 120, lambda: workers.logs[-20_000:])
    assert all(member.is_running for member in crew), workers.logs
    print(f"{kills} kills")
    assert not writers.failures, writers.failures
    read_run(writers.ledger, conn, effects)
    writers.ledger.assert_clean()
    assert len(writers.ledger.committed) > 100
    assert one(conn, "select count(*) from forebay.dead_letter") == 0


KINDS_THAT_FINISH_LATE = ("work", "work_in_thread", "write", "write_in_thread")


@pytest.mark.slow
@pytest.mark.parametrize("when", ["after its jobs ran elsewhere", "while they run elsewhere"])
def test_a_worker_that_was_frozen_too_long_changes_nothing(conn, workers, effects, when):
    """
    Stopped in the middle of its jobs until they were given to another worker, and then continued:
    none of its settlements counts, effects in its transactions are rolled back, it logs LeaseLost,
    and works on.
    """
    frozen = workers.start(concurrency=4)
    jobs = [put(conn, kind, n, seconds=1.0) for n, kind in enumerate(KINDS_THAT_FINISH_LATE)]
    wait_for(lambda: len(effects.all("start")) == 4)
    old_lease = one(conn, "select lease_id from forebay.lease")
    frozen.freeze()
    workers.start(concurrency=4)
    if when.startswith("after"):
        wait_for(lambda: all(state(conn, job) == "done" for job in jobs), 30)
    else:
        wait_for(lambda: len(effects.all("start")) > 4, 30)
    frozen.thaw()
    frozen.wait_for_log("LeaseLost")
    wait_for(lambda: all(state(conn, job) == "done" for job in jobs), 30)

    done = dict(conn.execute(_DONE).fetchall())
    assert sorted(done) == sorted(jobs)
    assert all(len(leases) == 1 and old_lease not in leases for leases in done.values())
    rows = conn.execute("select entry, count(*) from effect group by 1 order by 1").fetchall()
    assert rows == [(2, 1), (3, 1)]

    # It goes on under a new lease, alone.
    workers.members[1].kill()
    put(conn, "work", 100)
    wait_for(lambda: 100 in effects.entries("end"))


@pytest.mark.slow
@pytest.mark.parametrize("fate", ["cancelled", "dead"])
def test_a_frozen_worker_cannot_change_what_was_decided_meanwhile(conn, workers, effects, fate):
    """
    Continued after its job ended for good elsewhere, it leaves the end as it is.
    """
    frozen = workers.start(concurrency=1)
    job = put(conn, "finish_unless_retried", 1, seconds=1.0, fate=fate)
    wait_for(lambda: effects.all("start"))
    frozen.freeze()
    if fate == "cancelled":
        assert one(conn, "select forebay.cancel(%s)", job) == "requested"
    workers.start()
    wait_for(lambda: state(conn, job) == fate, 30)
    frozen.thaw()
    frozen.wait_for_log("LeaseLost")
    put(conn, "work", 2)
    wait_for(lambda: 2 in effects.entries("end"))
    assert state(conn, job) == fate
    assert one(conn, "select count(*) from forebay.dead_letter") == (fate == "dead")


@pytest.mark.slow
@pytest.mark.direct
def test_jobs_of_a_killed_worker_start_again_within_seconds(conn, workers, effects, is_long):
    """
    With the default settings, from the kill of a process to the second start of its jobs: ten
    seconds at most.
    """
    defaults = {
        "lease_seconds": 30.0,
        "lease_margin_seconds": 5.0,
        "suspect_seconds": 5.0,
        "heartbeat_seconds": 1.0,
    }
    waits: list[float] = []
    workers.start(**defaults)
    for turn in range(6 if is_long else 1):
        victim = workers.start(**defaults)
        entries = range(turn * 100, turn * 100 + 20)
        for entry in entries:
            put(conn, "work", entry, seconds=0.5)
        wait_for(lambda: any(e.pid == victim.pid for e in effects.all("start")))
        began = {e.entry for e in effects.all("start") if e.pid == victim.pid}
        victim.kill()
        killed_at = time.monotonic()
        unfinished = began - effects.entries("end")
        assert unfinished
        wait_for(lambda: unfinished <= effects.entries("end"), 40, lambda: workers.logs)
        waits += [
            start.at - killed_at
            for start in effects.all("start")
            if start.entry in unfinished and start.at > killed_at
        ]
    waits.sort()
    p99 = waits[min(len(waits) - 1, int(len(waits) * 0.99))]
    print(f"{len(waits)} restarts, median {waits[len(waits) // 2]:.2f} s, p99 {p99:.2f} s")
    assert p99 <= 15  # 10 s on a machine that does nothing else.


@pytest.mark.slow
@pytest.mark.parametrize("how", ["exit", "kill", "segfault"])
def test_a_job_that_kills_its_process_dies_and_takes_nobody_with_it(
    conn, database, workers, effects, how
):
    """
    One job in five hundred ends its process each time. It becomes a dead letter, "worker lost",
    after its attempts; all others are done, each still at its first attempt. A supervisor restarts
    workers that die.
    """
    rest = "array(select jsonb_build_object('entry', g) from generate_series(%s::int, %s::int) g)"
    conn.execute(f"select forebay.enqueue_many('work', {rest})", [1, 250])
    poison = one(
        conn,
        "select forebay.enqueue('kill_process', jsonb_build_object('entry', 0, 'how', %s::text),"
        " max_attempts => 2)",
        how,
    )
    conn.execute(f"select forebay.enqueue_many('work', {rest})", [251, 499])
    crew = [workers.start(wait=False) for _ in range(2)]

    def is_over() -> bool:
        for n, member in enumerate(crew):
            if not member.is_running:
                crew[n] = workers.start(wait=False)
        return depth(conn).get("default") == (0, 0, 0)

    wait_for(is_over, 60, lambda: workers.logs)
    reason, attempt = conn.execute(
        "select reason, attempt from forebay.dead_letter where job_id = %s", [poison]
    ).fetchone()
    assert (reason, attempt) == ("worker lost", 2)
    assert one(conn, "select count(*) from forebay.dead_letter") == 1
    assert effects.entries("end") == set(range(1, 500))
    assert {e.attempt for e in effects.all("start") if e.entry} == {1}
    # One worker died of it; every further start was in a child process.
    deaths = [m for m in workers.members if not m.is_running]
    assert len(deaths) == 1
    assert len([e for e in effects.all("start") if e.entry == 0]) == 3


@pytest.mark.nightly
@pytest.mark.slow
def test_freezing_and_killing_at_random_moments(conn, database, workers, effects, seed, is_long):
    """
    Kills, freezes shorter and longer than the lease, and orderly restarts, in random order under
    load.
    """
    rng = random.Random(seed)
    crew = [workers.start(wait=False, concurrency=4) for _ in range(2)]
    with Writers(database, seed, count=3) as writers:
        for _ in range(30 if is_long else 4):
            wait_for(lambda: len(effects.all("start")) > 5, 20)
            victim = rng.randrange(2)
            match rng.choice(["kill", "freeze", "stop"]):
                case "kill":
                    crew[victim].kill()
                case "stop":
                    crew[victim].process.send_signal(rng.choice([signal.SIGTERM, signal.SIGINT]))
                case "freeze":
                    crew[victim].freeze()
                    until = time.monotonic() + rng.choice([0.5, 4.5])
                    wait_for(lambda until=until: time.monotonic() > until, 10)
                    crew[victim].thaw()
                    continue
            crew[victim] = workers.start(wait=False, concurrency=4)
    wait_until_drained(database, 90, lambda: workers.logs[-20_000:])
    assert not writers.failures, writers.failures
    read_run(writers.ledger, conn, effects)
    writers.ledger.assert_clean()
