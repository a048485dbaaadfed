"""Why a queue table slows down while a transaction is held open, shown with the server's own words.

    python -m forebay_bench.mvcc                 # starts the embedded PostgreSQL for the run
    python -m forebay_bench.mvcc --dsn postgresql:///mydb --jobs 5000

The usual jobs table (``engines.classic``) does its jobs while another session holds a snapshot, and
this prints what ``vacuum (verbose)``, ``explain (analyze, buffers)`` and the index pages say.
Then other ways to take a job do the same number of jobs, beside Forebay's log. Pages are counted
rather than time: they are the same on any machine. ``docs/design/why-queues-slow-down.md`` has the
output of a run and what it means.
"""

from __future__ import annotations

import argparse
import contextlib
import re
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import psycopg

from forebay_bench._maintenance import maintenance
from forebay_bench._place import open_place
from forebay_bench.engines import classic, que
from forebay_bench.engines.classic_queue import ClassicQueue
from forebay_bench.engines.forebay_log import Log
from forebay_bench.engines.queue import STEADY_PLANS, Queue, Taken

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from forebay_bench._place import Place

#: Jobs that are taken and ended together while dead rows are made.
_BATCH: Final = 250
_STEPS: Final = 5
#: One job at a time is taken this often to measure the cost of one.
_SAMPLES: Final = 5

_NEXT_JOB: Final = """
select id from classic_job
where queue = 'bench' and claimed_at is null and run_at <= now()
order by run_at, id limit 1 for update skip locked
"""

_COUNT: Final = "select count(*) from classic_job where queue = 'bench' and claimed_at is null"

#: What a walk of Que passes, one row for each step, in place of the jobs that it got.
_STEPS_OF_A_WALK: Final = que.WALK.replace(
    "select id from walk where got", "select id, got, taken from walk"
)

#: Index entries that are marked as killed, and all. The first page is the index's own.
_KILLED: Final = """
select count(*) filter (where item.dead), count(*)
from generate_series(1, pg_relation_size('classic_ready') / 8192 - 1) page,
     bt_page_stats('classic_ready', page) stats, bt_page_items('classic_ready', page) item
where stats.type = 'l' and item.htid is not null
"""


class RememberingQue(que.Que):
    """Que whose worker continues behind the last job that it had, as the article proposes."""

    #: (priority, run time, id) of that job; None: begin at the front.
    behind: tuple[int, Any, int] | None = None

    def claim(self, limit: int) -> list[Taken]:
        """Walk from behind the last job."""
        if self.behind is None:
            taken = super().claim(limit)
        else:
            priority, run_at, job_id = self.behind
            named = {"limit": limit, "priority": priority, "run_at": run_at, "id": job_id}
            taken = self.take([row[0] for row in self.conn.execute(_WALK_BEHIND, named)])
        if taken:
            self.behind = self.conn.execute(
                "select priority, run_at, id from que_job where id = %s", [taken[-1].key]
            ).fetchone()
        return taken


_WALK_BEHIND: Final = que.WALK.replace(
    "where queue = 'bench' and run_at <= now()\n          order",
    "where queue = 'bench' and run_at <= now()\n"
    "            and (priority, run_at, id) > (%(priority)s, %(run_at)s, %(id)s)\n          order",
)


#: Ways to take a job.
WAYS: Final[dict[str, Callable[[str], Queue]]] = {
    "skip locked, delete": ClassicQueue,
    "Que's walk": que.Que,
    "Que, remembering": RememberingQue,
    "Forebay's log": Log,
}


@contextlib.contextmanager
def held(dsn: str) -> Iterator[None]:
    """Hold a snapshot of a database: a report that was begun and forgotten."""
    with psycopg.connect(dsn, application_name="report") as conn:
        conn.execute("set transaction isolation level repeatable read")
        conn.execute("select count(*) from pg_class")
        yield
        conn.rollback()


def work(queue: Queue, jobs: int, batch: int = _BATCH) -> None:
    """Enqueue this number of jobs, take and end them."""
    while jobs > 0:
        queue.enqueue(min(batch, jobs))
        jobs -= batch
        while len(taken := queue.claim(batch)) > 0:
            queue.end(taken, [])


def pages_of_one(queue: Queue) -> int:
    """Return the pages that are read to take one job: the median of a few."""
    pages = []
    for _ in range(_SAMPLES):
        queue.enqueue(1)
        taken, read = queue.claim_counted(1)
        queue.end(taken, [])
        assert read is not None
        pages.append(read)
    return int(statistics.median(pages))


# --- the parts of the page -----------------------------------------------------------------------


def versions(dsn: str) -> list[str]:
    """A row is stamped, and stays."""
    with (
        psycopg.connect(dsn, autocommit=True) as worker,
        psycopg.connect(dsn) as reader,
        psycopg.connect(dsn, autocommit=True) as other,
    ):
        classic.create(worker)
        classic.fill(worker, 1)
        look = "select ctid, xmin, xmax, id from classic_job"
        lines = [f"enqueued:              {_row(other, look)}"]
        reader.execute("set transaction isolation level repeatable read")
        reader.execute("select 1 from classic_job")
        worker.execute("begin")
        worker.execute("delete from classic_job")
        lines.append(f"deleted, not committed: {_row(other, look)}")
        worker.execute("commit")
        lines += [
            f"deleted, committed:    {_row(other, look)}",
            f"the old snapshot:      {_row(reader, look)}",
        ]
        reader.rollback()
        worker.execute("vacuum classic_job")
    return lines


def vacuumed(dsn: str) -> list[str]:
    """What vacuum says of the table."""
    said: list[str] = []
    with psycopg.connect(dsn, autocommit=True) as conn:
        conn.add_notice_handler(lambda notice: said.append(notice.message_primary or ""))
        conn.execute("vacuum (verbose) classic_job")
    return [
        line.strip()
        for text in said
        for line in text.splitlines()
        if re.match(r"(tuples|removable cutoff|index scan|tuples missed)", line.strip())
        and "pg_toast" not in text
    ]


def explained(dsn: str, statement: str) -> list[str]:
    """The lines of a plan that name the index scan and what it read."""
    with psycopg.connect(dsn, autocommit=True, options=STEADY_PLANS) as conn:
        rows = conn.execute(f"explain (analyze, buffers, costs off, timing off) {statement}")
        lines = [row[0] for row in rows.fetchall()]
    lines = [line.strip().removeprefix("->  ") for line in lines]
    scan = next(place for place, line in enumerate(lines) if re.match(r"Index (Only )?Scan", line))
    # The first line of each; behind the scan's own come those of planning.
    kinds = ("Heap Fetches", "Buffers", "Execution Time")
    found = (next((each for each in lines[scan:] if kind in each), None) for kind in kinds)
    return [lines[scan], *filter(None, found)]


def killed(dsn: str) -> str:
    """How many entries of the index are marked as killed, where pageinspect is installed."""
    with psycopg.connect(dsn, autocommit=True) as conn:
        try:
            conn.execute("create extension if not exists pageinspect")
        except psycopg.Error:
            return "index entries marked as killed: pageinspect is not installed"
        row = conn.execute(_KILLED).fetchone()
        assert row is not None
    return f"index entries marked as killed: {row[0]:,} of {row[1]:,}"


def table(place: Place, jobs: int) -> Iterator[tuple[str, list[str]]]:
    """The usual table before, during and after a held snapshot."""
    with place.database("mvcc", migrated=False) as dsn:
        with psycopg.connect(dsn, autocommit=True) as admin:
            # The run calls vacuum itself, so that each step shows one thing.
            yield "a row and its two numbers", versions(dsn)
            admin.execute("alter table classic_job set (autovacuum_enabled = false)")
            classic.fill(admin, 100)
            admin.execute("vacuum (analyze) classic_job")
        yield "the next job, 100 jobs waiting", explained(dsn, _NEXT_JOB)
        yield "a count of waiting jobs, index only", explained(dsn, _COUNT)
        with contextlib.closing(ClassicQueue(dsn)) as queue, held(dsn):
            work(queue, jobs)
            queue.enqueue(100)
            yield f"vacuum (verbose), after {jobs:,} jobs under a snapshot", vacuumed(dsn)
            yield "the next job, 100 jobs waiting, snapshot held", explained(dsn, _NEXT_JOB)
            yield "the same once more, snapshot held", [*explained(dsn, _NEXT_JOB), killed(dsn)]
            yield "a count of waiting jobs, index only, snapshot held", explained(dsn, _COUNT)
        yield "the snapshot has ended: the first scan", [*explained(dsn, _NEXT_JOB), killed(dsn)]
        yield "the second scan", explained(dsn, _NEXT_JOB)
        yield "vacuum (verbose), after the snapshot", vacuumed(dsn)
        yield "the next job, after vacuum", explained(dsn, _NEXT_JOB)
        yield "a count of waiting jobs, index only, after vacuum", explained(dsn, _COUNT)


def walk(place: Place) -> list[str]:
    """The lock query of Que, step by step, while three others have the first three jobs."""
    lines = []
    with place.database("walk", migrated=False) as dsn, contextlib.ExitStack() as stack:
        workers = [stack.enter_context(contextlib.closing(que.Que(dsn))) for _ in range(4)]
        workers[0].enqueue(6)
        for worker in workers[:3]:
            worker.claim(1)
        steps = workers[3].conn.execute(_STEPS_OF_A_WALK, {"limit": 1}).fetchall()
        for number, (job_id, got, taken) in enumerate(steps, 1):
            what = "locked: take it, and stop" if got else "another worker has it: go to the next"
            lines.append(f"step {number}: job {job_id}, {what} (taken: {taken})")
    return lines


def ways(place: Place, jobs: int) -> list[str]:
    """Pages to take one job, as jobs are done under a snapshot, for each way to take it."""
    done = [jobs * step // _STEPS for step in range(_STEPS + 1)]
    lines = [f"{'after this many jobs':<22}" + "".join(f"{number:>10,}" for number in done)]
    for label, make in WAYS.items():
        is_ours = make is Log
        with place.database("ways", migrated=is_ours) as dsn, contextlib.ExitStack() as stack:
            if is_ours:
                stack.enter_context(maintenance(dsn))
            queue = stack.enter_context(contextlib.closing(make(dsn)))
            stack.enter_context(held(dsn))
            work(queue, _BATCH)  # Plans are made and caches filled.
            pages = []
            for before, after in zip([0, *done], done, strict=False):
                work(queue, after - before)
                pages.append(pages_of_one(queue))
            lines.append(f"{label:<22}" + "".join(f"{number:>10,}" for number in pages))
    return lines


def late(place: Place) -> list[str]:
    """A job whose transaction commits after later jobs are done."""
    lines = []
    for label, make in (("Que, remembering", RememberingQue), ("Forebay's log", Log)):
        with (
            place.database("late", migrated=label == "Forebay's log") as dsn,
            contextlib.closing(make(dsn)) as queue,
            psycopg.connect(dsn) as producer,
        ):
            queue.write_one(producer)  # begins first, commits last
            work(queue, 10, batch=5)
            producer.commit()
            found = len(queue.claim(10))
            lines.append(f"{label:<22}{'takes it' if found else 'does not see it'}")
            if isinstance(queue, RememberingQue):
                queue.behind = None
                lines.append(f"{'  from the front':<22}{'takes it' if queue.claim(10) else 'no'}")
    return lines


def rise(place: Place, seconds: float) -> list[str]:
    """One job at a time under a constant load, half of what the table does at the start.

    The clock is the processor time of this process and of its session, so that other programs of
    the machine have no part in it, and moves on by itself while no job waits.
    """
    lines = ["  seconds      jobs done  get a job, ms   jobs waiting"]
    with (
        place.database("rise", migrated=False) as dsn,
        contextlib.closing(ClassicQueue(dsn)) as queue,
        held(dsn),
    ):
        queue.conn.execute("set synchronous_commit = off")
        clock = _processor_clock(queue.conn)
        rate = _speed(queue, clock) / 2
        enqueued = finished = 0
        idle = shown = 0.0
        claims: list[float] = []
        started = clock()
        while (now := clock() - started + idle) < seconds:
            owed = int(rate * now) - enqueued
            if owed > 0:
                enqueued += queue.enqueue(owed)
            if finished == enqueued:
                idle += 1 / rate
                continue
            began = clock()
            taken = queue.claim(1)
            claims.append(clock() - began)
            queue.end(taken, [])
            finished += len(taken)
            if now - shown >= seconds / 12:
                middle = 1000 * statistics.median(claims)
                lines.append(f"{now:>9.0f}{finished:>15,}{middle:>15.2f}{enqueued - finished:>15,}")
                shown, claims = now, []
    return [f"load: {rate:,.0f} jobs a second, half of the speed at the start", *lines]


def _processor_clock(conn: psycopg.Connection[Any]) -> Callable[[], float]:
    """Return a clock of the processor time of this process and of its session's; of the time of
    day where the session is on another machine, or the system has no /proc.
    """
    path = Path(f"/proc/{conn.info.backend_pid}/schedstat")
    if not path.exists() or not conn.info.host.startswith("/"):
        return time.perf_counter
    return lambda: time.process_time() + int(path.read_text(encoding="ascii").split()[0]) / 1e9


def _speed(queue: Queue, clock: Callable[[], float], seconds: float = 1.0) -> float:
    """Return how many jobs a second are done one by one."""
    began, jobs = clock(), 0
    while (passed := clock() - began) < seconds:
        queue.enqueue(1)
        queue.end(queue.claim(1), [])
        jobs += 1
    return jobs / passed


def _row(conn: psycopg.Connection[Any], statement: str) -> str:
    row = conn.execute(statement).fetchone()
    if row is None:
        return "no row"
    return f"ctid {row[0]}  xmin {row[1]}  xmax {row[2]}  id {row[3]}"


def sections(place: Place, jobs: int, seconds: float) -> Iterator[tuple[str, list[str]]]:
    """All parts, each with its title."""
    yield from table(place, jobs)
    yield "the lock query of Que, fourth worker", walk(place)
    yield "pages read to take one job, snapshot held", ways(place, jobs)
    yield "a job that commits late", late(place)
    yield "the rise: one job at a time, snapshot held", rise(place, seconds)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run it from the command line."""
    parser = argparse.ArgumentParser("python -m forebay_bench.mvcc", description=__doc__)
    parser.add_argument("--dsn", help="a server to use; databases are created and dropped")
    parser.add_argument("--jobs", type=int, default=50_000, help="jobs under the snapshot")
    parser.add_argument("--seconds", type=float, default=40.0, help="length of the last part")
    options = parser.parse_args(arguments)
    with open_place(options.dsn) as place:
        for title, lines in sections(place, options.jobs, options.seconds):
            sys.stdout.write("\n".join([f"-- {title}", *lines, "", ""]))
            sys.stdout.flush()
        sys.stdout.write(
            f"PostgreSQL {place.facts['postgresql']}, {place.facts['machine']['cpu']}\n"
        )


if __name__ == "__main__":
    main()
