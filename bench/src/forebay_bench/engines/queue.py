"""The interface of every engine, so that one loop can drive them all."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import psycopg

T = TypeVar("T")

#: For the sessions of every engine: look jobs up through the intended index. Otherwise a table that
#: looks empty in the statistics is read and sorted as a whole, which is a hundred times slower and
#: unrelated to held transactions.
STEADY_PLANS: Final = "-c enable_seqscan=off -c enable_bitmapscan=off -c enable_sort=off"

#: Pages that this session read since it last reported: tables, indexes and sequences, those of the
#: system left out.
_PAGES: Final = """
select coalesce(sum(pg_stat_get_xact_blocks_fetched(oid)), 0)::bigint from pg_class
where relnamespace <> 'pg_catalog'::regnamespace
"""


class Taken(NamedTuple):
    """A claimed job."""

    key: Any
    """What the engine needs to end the job."""
    number: int
    """The job's number, the same at each attempt."""
    attempts: int
    """Before this one."""
    written_at: float
    """When it was enqueued, or, for an engine that keeps only the due time, when it was due.

    In seconds since 1970.
    """


class Queue(Protocol):
    """An engine on one connection."""

    def enqueue(self, count: int, delay_seconds: float = 0) -> int:
        """Enqueue this number of jobs in one statement, due after a delay.

        Return how many it made.
        """

    def write_one(self, conn: psycopg.Connection[Any]) -> None:
        """Enqueue one job in another session's transaction."""

    def claim(self, limit: int) -> list[Taken]:
        """Take up to this number of jobs."""

    def claim_counted(self, limit: int) -> tuple[list[Taken], int | None]:
        """Take up to this number of jobs.

        Also return how many pages the server read, cached or not; None: other programs took part.
        """

    def end(self, done: Sequence[Taken], failed: Sequence[Taken]) -> None:
        """End the jobs of the last claim; failed jobs are ready again at once."""

    def dead_rows(self) -> int:
        """Return how many dead rows the statistics count in its tables."""

    def close(self) -> None:
        """Hang up."""


def dead_rows_of(conn: psycopg.Connection[Any], table: str) -> int:
    """Return how many dead rows the statistics count in one table."""
    row = conn.execute(
        "select n_dead_tup from pg_stat_user_tables where relname = %s", [table]
    ).fetchone()
    return int(row[0]) if row else 0


def counted(conn: psycopg.Connection[Any], call: Callable[[], T]) -> tuple[T, int]:
    """Call in a new transaction.

    Return the result, and how many pages the server read for it, cached or not.

    The number of pages is independent of the machine's speed and other load.
    """
    with conn.transaction():
        before = _pages(conn)
        result = call()
        return result, _pages(conn) - before


def _pages(conn: psycopg.Connection[Any]) -> int:
    row = conn.execute(_PAGES).fetchone()
    assert row is not None
    return int(row[0])
