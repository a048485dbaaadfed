"""The usual queue behind the common interface of the engines."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import psycopg

from forebay_bench.engines import classic
from forebay_bench.engines.queue import STEADY_PLANS, Taken, counted

if TYPE_CHECKING:
    from collections.abc import Sequence


class ClassicQueue:
    """One worker's session on the usual table."""

    def __init__(self, dsn: str) -> None:
        self.conn = psycopg.connect(dsn, autocommit=True, options=STEADY_PLANS)
        if self.conn.execute("select to_regclass('classic_job')").fetchone() == (None,):
            classic.create(self.conn)

    def enqueue(self, count: int, delay_seconds: float = 0) -> int:
        """Enqueue this number of jobs in one statement."""
        classic.fill(self.conn, count, delay_seconds=delay_seconds)
        return count

    def write_one(self, conn: psycopg.Connection[Any]) -> None:
        """Enqueue one job in another session's transaction."""
        conn.execute(classic.ENQUEUE, ["bench", "noop", "{}"])

    def claim(self, limit: int) -> list[Taken]:
        """Claim in one statement."""
        return [
            Taken(job_id, job_id, attempts - 1, run_at.timestamp())
            for job_id, _, _, attempts, run_at in classic.claim(self.conn, limit)
        ]

    def claim_counted(self, limit: int) -> tuple[list[Taken], int | None]:
        """Claim, and count the pages read for it."""
        return counted(self.conn, lambda: self.claim(limit))

    def end(self, done: Sequence[Taken], failed: Sequence[Taken]) -> None:
        """Delete done jobs and make failed ones ready again, in one transaction."""
        if not failed:
            classic.finish(self.conn, [job.key for job in done])
            return
        with self.conn.transaction():
            classic.finish(self.conn, [job.key for job in done])
            classic.retry(self.conn, [job.key for job in failed])

    def dead_rows(self) -> int:
        """Return how many dead rows the statistics count in its table."""
        return classic.dead_rows(self.conn)

    def close(self) -> None:
        """Hang up."""
        self.conn.close()
