"""No queue at all: the row of a job in a plain table, with Forebay's columns and index.

This is the cost of the work itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import psycopg

SCHEMA: Final = """
create table plain_job (
    xid            xid8 not null default pg_current_xact_id(),
    seq            bigint generated always as identity,
    lane           bigint not null,
    enqueued_at    timestamptz not null default clock_timestamp(),
    job_id         bigint,
    expires_at     timestamptz,
    attempt        integer,
    max_attempts   integer,
    pauses         integer,
    kind           text not null,
    args           jsonb not null,
    tag            text,
    correlation_id text,
    headers        jsonb,
    ordering_key   text,
    unique_key     text,
    ready_at       timestamptz,
    limit_key      text
);
create index plain_job_claim on plain_job (lane, xid, seq);
"""

INSERT: Final = "insert into plain_job (lane, kind, args) values (%s, %s, %s)"


def create(conn: psycopg.Connection[Any]) -> None:
    """Make the table and its index."""
    conn.execute(SCHEMA)


def insert_select(conn: psycopg.Connection[Any], count: int) -> None:
    """Insert this number of rows by one statement."""
    conn.execute(
        "insert into plain_job (lane, kind, args)"
        " select 1, 'noop', jsonb_build_object('number', i) from generate_series(1, %s) i",
        [count],
    )


def copy(conn: psycopg.Connection[Any], count: int) -> None:
    """Copy rows from an iterator, as text that needs no conversion."""
    with (
        conn.cursor() as cursor,
        cursor.copy("copy plain_job (lane, kind, args) from stdin") as copying,
    ):
        for number in range(count):
            copying.write('1\tnoop\t{"number": %d}\n' % number)  # noqa: UP031 - braces
