"""The usual queue: one table, a partial index on what is ready, SKIP LOCKED, DELETE.

Autovacuum stays on, with PostgreSQL's own settings.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

    import psycopg

SCHEMA: Final = """
create table classic_job (
    id          bigint generated always as identity primary key,
    queue       text not null,
    run_at      timestamptz not null default now(),
    kind        text not null,
    args        jsonb not null,
    attempts    integer not null default 0,
    claimed_at  timestamptz
);
create index classic_ready on classic_job (queue, run_at, id) where claimed_at is null;
"""

ENQUEUE: Final = "insert into classic_job (queue, kind, args) values (%s, %s, %s)"

ENQUEUE_MANY: Final = """
insert into classic_job (queue, kind, args, run_at)
select %s, %s, jsonb_build_object('i', i), clock_timestamp() + %s * interval '1 second'
from generate_series(1, %s) i
"""

#: With an array, which is made once. With ``in``, a plan for a table that looks empty runs the
#: subquery for each row, and takes all jobs that wait, whatever the limit.
CLAIM: Final = """
update classic_job set claimed_at = now(), attempts = attempts + 1
where id = any (array(
    select id from classic_job
    where queue = %s and claimed_at is null and run_at <= now()
    order by run_at, id
    for update skip locked
    limit %s))
returning id, kind, args, attempts, run_at
"""

FINISH: Final = "delete from classic_job where id = any(%s)"

#: A failed job: ready again at once.
RETRY: Final = "update classic_job set claimed_at = null where id = any(%s)"


def create(conn: psycopg.Connection[Any]) -> None:
    """Make the table and its index."""
    conn.execute(SCHEMA)


def fill(conn: psycopg.Connection[Any], count: int, *, delay_seconds: float = 0) -> None:
    """Enqueue this number of jobs in one statement."""
    conn.execute(ENQUEUE_MANY, ["bench", "noop", delay_seconds, count])


def claim(conn: psycopg.Connection[Any], limit: int) -> list[Any]:
    """Take up to this number of jobs; commits where the connection does."""
    return conn.execute(CLAIM, ["bench", limit], prepare=True).fetchall()


def finish(conn: psycopg.Connection[Any], ids: Sequence[int]) -> None:
    """Delete what is done."""
    conn.execute(FINISH, [list(ids)], prepare=True)


def retry(conn: psycopg.Connection[Any], ids: Sequence[int]) -> None:
    """Make jobs ready again."""
    conn.execute(RETRY, [list(ids)], prepare=True)


def dead_rows(conn: psycopg.Connection[Any]) -> int:
    """Return how many dead rows the statistics count in the table.

    They run a second or so behind.
    """
    row = conn.execute(
        "select n_dead_tup from pg_stat_user_tables where relname = 'classic_job'"
    ).fetchone()
    assert row is not None
    return int(row[0])
