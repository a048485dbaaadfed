"""Groups, lanes and operators: who reads what, pause and resume, redrive and purge."""

import psycopg
import pytest

from tests.support.engine import Reader, connect, enqueue, one, open_group, sqlstate, state, states


@pytest.fixture
def conn(database):
    with connect(database) as conn:
        yield conn


def test_the_first_group_reads_from_the_beginning_and_later_ones_from_now_on(database, conn):
    """Unless told otherwise; a transaction in progress at the opening counts as later."""
    with psycopg.connect(database) as slow:
        before = enqueue(conn)
        during = enqueue(slow)
        open_group(conn, "default", "first")
        open_group(conn, "default", "second")
        open_group(conn, "default", "third", "beginning")
        slow.commit()
    after = enqueue(conn)
    expected = {
        "first": {before, during, after},
        "second": {during, after},
        "third": {before, during, after},
    }
    for name, jobs in expected.items():
        with Reader(database, group=name) as reader:
            assert {i for b in reader.claim_all() for i in b.job_ids} == jobs
    assert set(states(conn, before)) == {"first", "third"}


def test_a_group_is_opened_once_and_only_under_a_name(conn):
    """Opening it again changes nothing; a bad name or start is refused."""
    assert open_group(conn, "q", "g") == open_group(conn, "q", "g", "now")
    for queue, name, start in [
        ("", "g", None), (None, "g", None), ("q", None, None), ("q", "a b", None),
        ("q", "h", "later"), ("q" * 129, "g", None),
    ]:  # fmt: skip
        assert (
            sqlstate(conn, "select forebay.open_group(%s, %s, %s)", queue, name, start) == "JQ001"
        )


def test_a_paused_queue_hands_out_nothing_and_keeps_everything(database, conn):
    """Pause and resume for one group or all; what was claimed before can be settled meanwhile."""
    with (
        Reader(database, "q", "one") as first,
        Reader(database, "q", "two") as second,
    ):
        jobs = [enqueue(conn, queue="q") for _ in range(3)]
        running = first.claim(1)
        assert one(conn, "select forebay.pause_queue('q', 'one')") == 1
        assert one(conn, "select forebay.pause_queue('q', 'one')") == 0
        assert first.ready() == []
        assert first.claim().jobs == []
        first.finish(running)
        assert second.claim().job_ids == jobs
        assert one(conn, "select forebay.pause_queue('q')") == 1
        assert one(conn, "select forebay.resume_queue('q')") == 2
        assert first.claim().job_ids == jobs[1:]
    assert sqlstate(conn, "select forebay.pause_queue('nowhere', 'g')") == "JQ014"
    assert one(conn, "select forebay.pause_queue('unserved')") == 1


def test_priorities_are_lanes_of_their_own(database, conn):
    """Ready lanes are reported with their priority; each is claimed by itself."""
    with Reader(database) as reader:
        low, high = enqueue(conn, priority=200), enqueue(conn, priority=-5)
        lanes = sorted(reader.ready(), key=lambda lane: lane["priority"])
        assert [lane["priority"] for lane in lanes] == [-5, 200]
        assert [reader.claim(5, lane["lane"]).job_ids for lane in lanes] == [[high], [low]]


def test_dead_letters_are_redriven_in_the_order_their_jobs_had(database, conn):
    """With their tag, correlation id and headers, with attempts anew, each linked to the other."""
    with Reader(database) as reader:
        options = {"tag": "t", "correlation_id": "c", "headers": '{"h": "1"}', "max_attempts": 2}
        jobs = [enqueue(conn, args={"n": n}, **options) for n in range(4)]
        batch = reader.claim()
        error = {"type": "ValueError", "message": "no", "traceback": "..."}
        for offset in (3, 1, 4, 2):
            ended = [{"offset": offset, "outcome": "dead", "reason": "exhausted", "error": error}]
            assert reader.settle(batch.claim_no, ended=ended, flush_no=offset) == "settled"
        assert {state(conn, i) for i in jobs} == {"dead"}
        assert one(conn, "select forebay.redrive_matching(kind => 'other')") == 0
        assert one(conn, "select forebay.redrive_matching(tag => 't', most => 3)") == 3
        assert one(conn, "select forebay.redrive_matching(queue => 'default')") == 1
        again = [job for b in reader.claim_all() for job in b.jobs]
        assert [job["args"]["n"] for job in again] == [0, 1, 2, 3]
        assert {
            (j["attempt"], j["tag"], j["correlation_id"], j["max_attempts"]) for j in again
        } == {(0, "t", "c", 2)}
        linked = conn.execute(
            "select redriven_from, redriven_from_dead_id, dead_id from forebay.job(%s)",
            [again[0]["job_id"]],
        ).fetchall()
        letter = one(conn, "select dead_id from forebay.job(%s)", jobs[0])
        assert linked == [(jobs[0], letter, None)]
        letters = "select array_agg(dead_id) from forebay.dead_letter where job_id = %s"
        assert one(conn, letters, jobs[0]) == [letter]
        assert one(conn, "select forebay.redrive_matching(job_id => %s)", jobs[0]) == 0
        redriven = "select redriven_as from forebay.job(%s)"
        assert one(conn, redriven, jobs[3]) == again[3]["job_id"]
        errors = one(conn, "select errors from forebay.dead_letter where job_id = %s", jobs[1])
        assert [(e["type"], e["message"], e["attempt"]) for e in errors] == [
            ("ValueError", "no", 1)
        ]


def test_nothing_is_purged_unless_asked(database, conn):
    """Purging takes an age and a queue, and refuses an age that is none."""
    with Reader(database, "a") as first, Reader(database, "b") as second:
        for reader in (first, second):
            enqueue(conn, queue=reader.queue)
            batch = reader.claim()
            reader.settle(batch.claim_no, ended=[{"offset": 1, "outcome": "dead"}])
        for age in ("-1 second", None):
            assert sqlstate(conn, "select forebay.purge_dead(%s::interval)", age) == "JQ001"
        assert one(conn, "select forebay.purge_dead('1 hour')") == 0
        assert one(conn, "select forebay.purge_dead('0 seconds', 'a')") == 1
        assert one(conn, "select forebay.purge_dead('0 seconds')") == 1


@pytest.mark.parametrize("dead_id", [None, 0, 1, 2**62])
def test_redriving_what_is_not_there_is_refused(conn, dead_id):
    """A dead letter that does not exist has its own error."""
    assert sqlstate(conn, "select forebay.redrive(%s::bigint)", dead_id) == "JQ015"
