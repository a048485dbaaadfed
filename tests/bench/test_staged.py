"""The table that jobs are only staged in: each reaches Redis, and is worked once."""

import psycopg
import pytest

from forebay_bench.engines import staged

pytestmark = pytest.mark.skipif(staged.missing() is not None, reason=str(staged.missing()))


@pytest.fixture
def worker(empty_database):
    with staged.redis_server() as socket:
        worker = staged.Staged(empty_database, socket)
        yield worker
        worker.close()


def test_each_job_is_handed_out_once(worker):
    """
    More jobs than one move carries: all come out, in order, each once.
    """
    worker.enqueue(staged.MOVE_ROWS + 50)
    done = []
    while taken := worker.claim(100):
        worker.end(taken, [])
        done += [job.number for job in taken]
    assert done == list(range(1, staged.MOVE_ROWS + 51))


def test_a_move_that_does_not_commit_leaves_the_jobs_staged(worker, empty_database):
    """
    Redis is told before the rows go: what cannot be told stays where it was.
    """
    worker.enqueue(3)
    worker.redis.set(staged._READY, "not a list")
    with pytest.raises(Exception, match="WRONGTYPE"):
        worker.move()
    with psycopg.connect(empty_database) as conn:
        assert conn.execute("select count(*) from staged_job").fetchone() == (3,)


def test_what_failed_comes_again(worker):
    """
    A failed job goes back behind the others, with its attempt counted; what was done is struck off.
    """
    worker.enqueue(2)
    first, second = worker.claim(10)
    worker.end([second], [first])
    (again,) = worker.claim(10)
    assert (again.number, again.attempts) == (first.number, 1)
    worker.end([again], [])
    assert worker.redis.keys() == []
