"""Thrashing: each job costs more than the one before, while some transaction is open."""

import contextlib
from collections.abc import Callable, Generator, Iterator

import psycopg

from three_failures import app as ours

ROUNDS = 5
JOBS = 400

TABLE = """
create table failures_job (id bigint generated always as identity primary key,
                           args text not null, taken boolean not null default false);
create index on failures_job (id) where not taken;
"""
ENQUEUE = "insert into failures_job (args) select repeat('x', 500) from generate_series(1, %s)"
TAKE = """
update failures_job set taken = true where id = (
    select id from failures_job where not taken order by id limit 1 for update skip locked)
returning id
"""
END = "delete from failures_job where id = %s"

PAGES = """
select blks_hit + blks_read from pg_stat_database where datname = current_database()
"""


def broken(conn: psycopg.Connection) -> Iterator[str]:
    """A queue in a table: the usual statements."""
    conn.execute(TABLE)
    conn.commit()

    def work() -> None:
        with psycopg.connect(ours.app.dsn, autocommit=True, options=ONE_PLAN) as worker:
            worker.execute(ENQUEUE, [JOBS])
            while row := worker.execute(TAKE).fetchone():
                worker.execute(END, row)

    yield from pages_while_held(conn, work)


def mended(conn: psycopg.Connection) -> Iterator[str]:
    """A log with a cursor."""

    def work() -> None:
        with psycopg.connect(ours.app.dsn) as producer:
            ours.nothing.enqueue_many(producer, ["x" * 500] * JOBS)
        ours.app.run_worker(until_idle=True)

    work()  # once before: the first worker of a database does more
    yield from pages_while_held(conn, work)


#: With its index, whatever the statistics of an empty table suggest.
ONE_PLAN = "-c enable_seqscan=off -c enable_bitmapscan=off -c enable_sort=off"


def pages_while_held(conn: psycopg.Connection, work: Callable[[], None]) -> Iterator[str]:
    """Another session forgets to end its transaction; count what each round reads."""
    with forgotten_report():
        for number in range(1, ROUNDS + 1):
            before = pages(conn)
            work()
            read = (pages(conn) - before) // JOBS
            yield f"jobs {number * JOBS:,}: {read:,} pages for each"


@contextlib.contextmanager
def forgotten_report() -> Generator[None, None, None]:
    with psycopg.connect(ours.app.dsn) as report:
        report.execute("set transaction isolation level repeatable read")
        report.execute("select count(*) from failures_user")
        yield
        report.rollback()


def pages(conn: psycopg.Connection) -> int:
    """The pages that all sessions of the database have read, once their counts have arrived."""
    row = conn.execute(PAGES).fetchone()
    assert row is not None
    conn.rollback()
    return int(row[0])
