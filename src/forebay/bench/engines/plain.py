"""No queue at all: the row of a job in a plain table, with our columns and our index. What the work costs anyway."""

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
    headers        jsonb
);
create index plain_job_claim on plain_job (lane, xid, seq);
"""

INSERT: Final = "insert into plain_job (lane, kind, args) values (%s, %s, %s)"


def create(conn: psycopg.Connection[Any]) -> None:
    """Make the table and its index."""
    conn.execute(SCHEMA)
