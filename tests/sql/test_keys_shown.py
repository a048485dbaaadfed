"""What forebay.keys() and forebay.key() show: how many jobs of a key wait and run, and why the
next one does not.
"""

import pytest
from psycopg.rows import dict_row

from tests.support.engine import Reader, connect, enqueue_many, one, shift_clock, sqlstate
from tests.support.plans import Call, pages, stated_pages

WORKER = "default@test"


@pytest.fixture
def conn(database):
    with connect(database) as conn:
        yield conn


@pytest.fixture
def reader(database):
    with Reader(database, "q") as reader:
        yield reader


def keys(conn, *args: object) -> list[dict]:
    """Return the keys of which jobs wait."""
    with conn.cursor(row_factory=dict_row) as cursor:
        places = ", ".join(["%s"] * len(args))
        return cursor.execute(f"select * from forebay.keys({places})", args).fetchall()


def key(conn, **which: str) -> dict:
    """Return one key of queue q, in its only group."""
    ((name, value),) = which.items()
    with conn.cursor(row_factory=dict_row) as cursor:
        (found,) = cursor.execute(
            f"select * from forebay.key('q', {name} => %s)", [value]
        ).fetchall()
    return found


def reason(conn, **which: str) -> tuple[str, int, int]:
    """Return the reason of a key of queue q, and how many of its jobs wait and run."""
    found = key(conn, **which)
    listed = [row for row in keys(conn, "q") if row["key"] == found["key"]]
    # The list has the same answer, and no key of which nothing waits.
    assert listed == ([{"queue": "q", **found}] if found["waiting"] else [])
    return found["reason"], found["waiting"], found["running"]


def put(conn, count: int, **key: str) -> list[int]:
    """Enqueue jobs of a key; return their ids."""
    return enqueue_many(conn, [{"kind": "work", "queue": "q", **key}] * count)


def take(reader: Reader, limit: int = 100) -> list:
    """Claim from every ready lane until none gives anything; return the batches."""
    batches = []
    while (batch := reader.claim_ready(limit)).jobs:
        batches.append(batch)
    return batches


def taken_by(reader: Reader, other: Reader, jobs: list[int]) -> object:
    """Let one reader claim the first of some jobs of a key, and another one meet the others.

    Return the batch.
    """
    batch = reader.claim_ready(1)
    assert batch.job_ids == jobs[:1]
    assert take(other) == []
    return batch


def limit(conn, **limits: float) -> None:
    """Set limits of queue q."""
    named = "".join(f", {name} => %s" for name in limits)
    one(conn, f"select forebay.limit_queue('q'{named})::text", *limits.values())


# --- ordering keys ---


def test_a_key_is_behind_the_job_of_a_worker(database, conn, reader):
    """The job and its worker are named; the others of the same worker count as running."""
    jobs = put(conn, 4, ordering_key="k")
    with Reader(database, "q", "default") as other:
        batch = reader.claim_ready(2)
        assert batch.job_ids == jobs[:2]
        assert take(other) == []
        assert reason(conn, ordering_key="k") == ("running", 2, 2)
        found = key(conn, ordering_key="k")
        assert (found["sort"], found["key"], found["first_job_id"]) == ("ordering", "k", jobs[2])
        assert (found["blocking_jobs"], found["blocking_workers"]) == ([jobs[0]], [WORKER])
        assert found["until"] is None
        reader.settle(batch.claim_no, [1])
        assert key(conn, ordering_key="k")["blocking_jobs"] == [jobs[1]]


@pytest.mark.parametrize("outcome", ["retried", "snoozed", "released", "lost"])
def test_a_key_is_behind_a_job_that_runs_again(database, conn, reader, outcome):
    """With the time of its next attempt; without one when it is ready again."""
    jobs = put(conn, 3, ordering_key="k")
    with Reader(database, "q") as other:
        batch = taken_by(reader, other, jobs)
        again = {"offset": 1, "outcome": outcome, "after": 60}
        assert reader.settle(batch.claim_no, [], ended=[again]) == "settled"
        assert reason(conn, ordering_key="k") == ("retry", 2, 0)
        found = key(conn, ordering_key="k")
        assert (found["blocking_jobs"], found["blocking_workers"]) == ([jobs[0]], [None])
        assert found["until"] == one(
            conn, "select max(run_at) from forebay.deferred where kind <> ''"
        )
        shift_clock(conn, 86400)
        assert one(conn, "select forebay.promote_v1(1000)") == 1
        assert reason(conn, ordering_key="k")[0] == "retry"
        assert key(conn, ordering_key="k")["until"] is None
        assert other.claim_ready(1).job_ids == jobs[:1]
        assert reason(conn, ordering_key="k") == ("running", 2, 1)


def test_a_key_that_a_dead_letter_holds(database, conn, reader):
    """Until the letter is skipped, or redriven: then the key is behind the new job."""
    jobs = put(conn, 3, ordering_key="k")
    with Reader(database, "q") as other:
        batch = taken_by(reader, other, jobs)
        dead = {"offset": 1, "outcome": "dead", "reason": "permanent", "holds_key": True}
        assert reader.settle(batch.claim_no, [], ended=[dead]) == "settled"
        assert reason(conn, ordering_key="k") == ("held", 2, 0)
        found = key(conn, ordering_key="k")
        assert found["held_by"] == one(conn, "select max(dead_id) from forebay.dead_letter")
        assert (found["blocking_jobs"], found["blocking_workers"]) == (jobs[:1], [None])
        new = one(conn, "select forebay.redrive(%s)", found["held_by"])
        assert reason(conn, ordering_key="k") == ("retry", 2, 0)
        assert key(conn, ordering_key="k")["blocking_jobs"] == [new]
        assert key(conn, ordering_key="k")["held_by"] is None


def test_requeued_jobs_wait_before_parked_ones(database, conn, reader):
    """Those that a worker gave back behind a job that runs again; the first of them is named."""
    jobs = put(conn, 5, ordering_key="k")
    with Reader(database, "q") as other:
        batch = reader.claim_ready(3)
        assert take(other) == []
        back = [{"offset": offset, "outcome": "released"} for offset in (2, 3)]
        failed = {"offset": 1, "outcome": "retried", "after": 60}
        assert reader.settle(batch.claim_no, [], ended=[failed, *back]) == "settled"
        assert reason(conn, ordering_key="k") == ("retry", 4, 0)
        assert key(conn, ordering_key="k")["first_job_id"] == jobs[1]


def test_a_key_is_due_when_nothing_holds_it_back(database, conn, reader):
    """The job before has ended, and no claim has come since.

    Then it is taken, and nothing waits.
    """
    jobs = put(conn, 2, ordering_key="k")
    with Reader(database, "q") as other:
        reader.finish(taken_by(reader, other, jobs))
        assert reason(conn, ordering_key="k") == ("due", 1, 0)
        assert key(conn, ordering_key="k")["blocking_jobs"] == []
        last = other.claim_ready(1)
        assert reason(conn, ordering_key="k") == ("running", 0, 1)
        other.finish(last)
        assert reason(conn, ordering_key="k") == ("free", 0, 0)
        assert reason(conn, ordering_key="unknown") == ("free", 0, 0)


def test_a_paused_or_closing_group(database, conn, reader):
    """No claim takes anything then; what blocks the key besides is named too."""
    jobs = put(conn, 2, ordering_key="k")
    with Reader(database, "q") as other:
        batch = taken_by(reader, other, jobs)
        one(conn, "select forebay.pause_queue('q')")
        assert reason(conn, ordering_key="k") == ("group_paused", 1, 1)
        assert key(conn, ordering_key="k")["blocking_jobs"] == jobs[:1]
        one(conn, "select forebay.resume_queue('q')")
        assert reason(conn, ordering_key="k") == ("running", 1, 1)
        conn.execute("select * from forebay.close_group('q', force => true)")
        assert reason(conn, ordering_key="k") == ("group_closing", 1, 1)
        assert batch.jobs


# --- limit keys ---


def test_a_key_at_its_concurrency_limit(database, conn, reader):
    """Its running jobs are named with their workers, at most ten of them."""
    limit(conn, key_concurrency=2)
    jobs = put(conn, 5, limit_key="k")
    with Reader(database, "q", "default") as other:
        first, second = reader.claim_ready(1), other.claim_ready(1)
        assert take(reader) == []
        assert reason(conn, limit_key="k") == ("concurrency", 3, 2)
        found = key(conn, limit_key="k")
        assert (found["sort"], found["key"], found["first_job_id"]) == ("limit", "k", jobs[2])
        assert found["blocking_jobs"] == first.job_ids + second.job_ids == jobs[:2]
        assert found["blocking_workers"] == [WORKER, WORKER]
        reader.finish(first)
        assert reason(conn, limit_key="k") == ("due", 3, 1)
        limit(conn, key_concurrency=20)
        assert len(take(reader)[0].jobs) == 3
        put(conn, 30, limit_key="k")
        take(reader)
        assert reason(conn, limit_key="k") == ("concurrency", 14, 20)
        assert len(key(conn, limit_key="k")["blocking_jobs"]) == 10
        shift_clock(conn, 5)
        assert reason(conn, limit_key="k") == ("concurrency", 14, 20)


def test_a_key_at_its_rate(conn, reader):
    """With the time of its next start."""
    limit(conn, key_rate=0.01)
    jobs = put(conn, 3, limit_key="k")
    reader.finish(reader.claim_ready(10))
    assert take(reader) == []
    assert reason(conn, limit_key="k") == ("rate", 2, 0)
    found = key(conn, limit_key="k")
    assert found["first_job_id"] == jobs[1]
    due = one(conn, "select run_at from forebay.deferred where kind = ''")
    assert found["until"] == due
    shift_clock(conn, 101)
    assert reason(conn, limit_key="k") == ("due", 2, 0)


@pytest.mark.parametrize("which", ["concurrency", "rate"])
def test_a_limit_of_the_queue(database, conn, reader, which):
    """It holds back keys of both sorts that nothing else holds back.

    A rate has the time of the next start.
    """
    jobs = put(conn, 2, ordering_key="o")
    with Reader(database, "q") as other:
        reader.finish(taken_by(reader, other, jobs))
        put(conn, 3, limit_key="l")
        first = other.claim(1, one(conn, "select lane from forebay.lane where sort = 'limited'"))
        assert reason(conn, limit_key="l") == ("due", 2, 1)
        assert reason(conn, ordering_key="o") == ("due", 1, 0)
        limit(conn, **{which: 1 if which == "concurrency" else 0.01})
        if which == "rate":
            other.finish(first)
            # The bucket holds one start, and this job uses it.
            put(conn, 1)
            assert len(other.claim(1).jobs) == 1
        assert take(reader) == []
        assert reason(conn, limit_key="l")[:2] == (f"queue_{which}", 2)
        assert reason(conn, ordering_key="o") == (f"queue_{which}", 1, 0)
        until = one(conn, "select next_start_at from forebay.limits('q')")
        assert key(conn, ordering_key="o")["until"] == until
        assert (until is None) == (which == "concurrency")
        one(conn, "select forebay.limit_queue('q', remove => '{all}')::text")
        assert reason(conn, limit_key="l")[:2] == ("due", 2)


def test_the_most_waiting_keys_come_first_and_are_bounded(database, conn, reader):
    """Of all queues, or of one."""
    limit(conn, key_concurrency=1)
    for name, count in (("a", 2), ("b", 4), ("c", 3)):
        put(conn, count, limit_key=name)
    enqueue_many(conn, [{"kind": "work", "queue": "other", "ordering_key": "d"}] * 6)
    take(reader)
    with Reader(database, "other") as first, Reader(database, "other") as second:
        first.claim_ready(1)
        take(second)
        assert [(row["queue"], row["key"], row["waiting"]) for row in keys(conn)] == [
            ("other", "d", 5), ("q", "b", 3), ("q", "c", 2), ("q", "a", 1),
        ]  # fmt: skip
        assert [row["key"] for row in keys(conn, None, 2)] == ["d", "b"]
        assert [row["key"] for row in keys(conn, "q", 2)] == ["b", "c"]
    for most in (0, 1001, None):
        assert sqlstate(conn, "select * from forebay.keys(null, %s::integer)", most) == "JQ001"


def test_each_group_has_its_row(database, conn, reader):
    """A key that one group has taken may be free in another one."""
    with Reader(database, "q", "audit") as audit:
        jobs = put(conn, 2, ordering_key="k")
        with Reader(database, "q") as other:
            taken_by(reader, other, jobs)
        rows = conn.execute(
            "select group_name, waiting, reason from forebay.key('q', ordering_key => 'k')"
        ).fetchall()
        assert rows == [("audit", 0, "free"), ("default", 1, "running")]
        assert audit.ready()


def test_a_call_for_a_key_names_one_key(conn, reader):
    """Both keys or none are refused; an unknown queue has no groups."""
    assert sqlstate(conn, "select * from forebay.key('q')") == "JQ001"
    both = "select * from forebay.key('q', ordering_key => 'a', limit_key => 'b')"
    assert sqlstate(conn, both) == "JQ001"
    assert conn.execute("select * from forebay.key('none', limit_key => 'a')").fetchall() == []


@pytest.mark.slow
def test_the_list_reads_no_more_pages_than_its_header_states(database, conn, reader):
    """For each waiting key and each waiting job a few pages."""
    limit(conn, key_concurrency=1)
    with Reader(database, "q") as other:
        for sort in ("limit_key", "ordering_key"):
            enqueue_many(
                conn,
                [
                    {"kind": "work", "queue": "q", sort: f"key {number % 50}"}
                    for number in range(500)
                ],
            )
            # One of each key, in the order of their numbers; another worker meets the others.
            assert len(reader.claim_ready(50).jobs) == 50
            while lanes := other.ready():
                assert [other.claim(50, lane["lane"]).jobs for lane in lanes] == [[]] * len(lanes)
        waiting = one(conn, "select sum(waiting) from forebay.keys(null, 1000)")
        count = one(conn, "select count(*) from forebay.keys(null, 1000)")
        assert (count, waiting) == (100, 900)
        units = {"lane": 10, "waiting key": count, "waiting job": waiting, "open lease": 2}
        call = Call("keys", "select * from forebay.keys(null, 1000)", [], units)
        assert pages(conn, call.query, call.params) <= call.allowed(stated_pages())
