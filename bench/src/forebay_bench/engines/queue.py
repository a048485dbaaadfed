"""What every engine can do, so that one loop can drive them all."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import psycopg

T = TypeVar("T")

#: For the sessions of every engine: look jobs up through the index made for it. A table that statistics take for empty is
#: read and sorted as a whole otherwise, a hundred times as slow, which has nothing to do with who holds what.
STEADY_PLANS: Final = "-c enable_seqscan=off -c enable_bitmapscan=off -c enable_sort=off"

#: Pages that this session asked for since it last reported: tables, indexes and sequences, those of the system left out.
_PAGES: Final = """
select coalesce(sum(pg_stat_get_xact_blocks_fetched(oid)), 0)::bigint from pg_class
where relnamespace <> 'pg_catalog'::regnamespace
"""


class Taken(NamedTuple):
    """A job that was handed out."""

    key: Any
    """What the engine needs to end it."""
    number: int
    """The same at each of its attempts."""
    attempts: int
    """Before this one."""
    written_at: float
    """When it was enqueued, or for an engine that keeps only that, when it was due: seconds since 1970."""


class Queue(Protocol):
    """An engine on one connection."""

    def enqueue(self, count: int, delay_seconds: float = 0) -> int:
        """Enqueue so many jobs in one statement, due after a delay; how many it made."""

    def write_one(self, conn: psycopg.Connection[Any]) -> None:
        """Enqueue one job in another session's transaction."""

    def claim(self, limit: int) -> list[Taken]:
        """Take up to so many jobs."""

    def claim_counted(self, limit: int) -> tuple[list[Taken], int | None]:
        """Take up to so many jobs; also how many pages the server read for it, in memory or not; None: not only the server."""

    def end(self, done: Sequence[Taken], failed: Sequence[Taken]) -> None:
        """End what the last claim took; what failed is ready again at once."""

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
    """Call in a transaction of its own; return the result, and how many pages the server read for it, in memory or not.

    That is the work itself, whatever else the machine is doing and however quick it is.
    """
    with conn.transaction():
        before = _pages(conn)
        result = call()
        return result, _pages(conn) - before


def _pages(conn: psycopg.Connection[Any]) -> int:
    row = conn.execute(_PAGES).fetchone()
    assert row is not None
    return int(row[0])
