"""The queue on advisory locks: each job once."""

import pytest

from forebay_bench.engines.que import Que


def work_off(*workers: Que, limit: int = 10) -> list[int]:
    """Let workers take turns until nobody finds anything; return what they did."""
    done: list[int] = []
    while found := [worker.claim(limit) for worker in workers]:
        for worker, taken in zip(workers, found, strict=True):
            if taken:
                worker.end(taken, [])
                done += [job.number for job in taken]
        if not any(found):
            return done
    return done


@pytest.fixture
def workers(empty_database):
    made = [Que(empty_database), Que(empty_database)]
    yield made
    for worker in made:
        worker.close()


def test_each_job_is_handed_out_once(workers):
    """
    Two workers that hold jobs at the same time never hold the same one.
    """
    workers[0].enqueue(95)
    assert sorted(work_off(*workers)) == list(range(1, 96))
    assert workers[0].conn.execute(
        "select count(*) from pg_locks where locktype = 'advisory'"
    ).fetchone() == (0,)


def test_a_walk_stops_at_its_limit_and_skips_what_others_hold(workers):
    """
    The second worker gets the jobs behind those of the first.
    """
    workers[0].enqueue(30)
    assert [job.number for job in workers[0].claim(10)] == list(range(1, 11))
    assert [job.number for job in workers[1].claim(10)] == list(range(11, 21))


def test_what_failed_comes_again(workers):
    """
    A failed job is ready at once, with its attempt counted; a delayed one is not there before its
    time.
    """
    worker, _ = workers
    worker.enqueue(1)
    worker.enqueue(1, 60)
    (job,) = worker.claim(10)
    worker.end([], [job])
    (again,) = worker.claim(10)
    assert (again.number, again.attempts) == (job.number, 1)
