"""The queue on advisory locks: each job once, and the cursor that strands what comes late."""

import psycopg
import pytest

from forebay_bench.engines.que import Que


class Clock:
    """Seconds that a test moves on."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


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


@pytest.mark.parametrize("batch", [False, True])
@pytest.mark.parametrize("remember", [False, True])
def test_each_job_is_handed_out_once(empty_database, batch, remember):
    """
    Two workers that hold jobs at the same time never hold the same one, whatever the switches.
    """
    workers = [Que(empty_database, batch=batch, remember=remember) for _ in range(2)]
    workers[0].enqueue(95)
    assert sorted(work_off(*workers)) == list(range(1, 96))
    assert workers[0].conn.execute(
        "select count(*) from pg_locks where locktype = 'advisory'"
    ).fetchone() == (0,)
    for worker in workers:
        worker.close()


def test_single_locks_take_one_job(empty_database):
    """
    Without batches a walk stops at its first lock.
    """
    worker = Que(empty_database, batch=False)
    worker.enqueue(5)
    assert len(worker.claim(10)) == 1
    worker.close()


def test_a_walk_stops_at_its_limit_and_skips_what_others_hold(workers):
    """
    The second worker gets the jobs behind those of the first.
    """
    workers[0].enqueue(30)
    assert [job.number for job in workers[0].claim(10)] == list(range(1, 11))
    assert [job.number for job in workers[1].claim(10)] == list(range(11, 21))


def test_a_late_early_key_waits_until_the_cursor_is_forgotten(empty_database):
    """
    A worker that remembers its last job does not see one that commits late with an earlier key, until it
    begins at the start again.
    """
    clock = Clock()
    worker = Que(empty_database, remember=True, forget_seconds=60, clock=clock)
    with psycopg.connect(empty_database) as late:
        worker.write_one(late)
        worker.enqueue(3)
        assert [job.number for job in work_on(worker)] == [2, 3, 4]
        late.commit()
    assert not worker.claim(10)
    clock.now = 60
    assert [job.number for job in worker.claim(10)] == [1]
    worker.close()


def work_on(worker: Que):
    taken = worker.claim(10)
    worker.end(taken, [])
    return taken


def test_what_failed_comes_again(workers):
    """
    A failed job is ready at once, with its attempt counted; a delayed one is not there before its time.
    """
    worker, _ = workers
    worker.enqueue(1)
    worker.enqueue(1, 60)
    (job,) = worker.claim(10)
    worker.end([], [job])
    (again,) = worker.claim(10)
    assert (again.number, again.attempts) == (job.number, 1)
