"""A worker in another language, as a test plays it: public SQL functions, and nothing else."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Self

import psycopg
from psycopg.rows import dict_row

from tests.support.engine import connect, one

Row = dict[str, Any]


@dataclass
class Consumer:
    """One process: a connection and the token of ``forebay.enter``."""

    dsn: str
    queues: list[str] = field(default_factory=lambda: ["default"])
    name: str = "consumer"
    lease: str = "30 seconds"
    group: str = "default"
    worker: str = ""

    def __post_init__(self) -> None:
        self.conn: psycopg.Connection[Any] = connect(self.dsn)
        self.enter()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.conn.close()

    def enter(self) -> None:
        """Begin anew, as another process."""
        query = "select forebay.enter(%s, %s, %s::interval, %s, app => 'test (plain)')"
        self.worker = one(self.conn, query, self.name, self.queues, self.lease, self.group)

    def take(self, n: int = 10, queue: str | None = None) -> list[Row]:
        """Take jobs of the first queue, or of the one named."""
        query = "select * from forebay.take(%s, %s, %s, %s)"
        with self.conn.cursor(row_factory=dict_row) as cursor:
            params = [queue or self.queues[0], self.worker, n, self.group]
            return cursor.execute(query, params).fetchall()

    def take_ids(self, n: int = 10, queue: str | None = None) -> list[int]:
        """Take jobs, and return their ids."""
        return [job["id"] for job in self.take(n, queue)]

    def settle(self, how: str, jobs: list[Row], *more: object, **options: object) -> list[str]:
        """Call one of done, failed, snooze, dead and release; return the statuses."""
        return self.settle_tokens(how, [job["token"] for job in jobs], *more, **options)

    def settle_tokens(
        self, how: str, tokens: list[str], *more: object, **options: object
    ) -> list[str]:
        """Do as ``settle`` by tokens; the answer is in their order."""
        places = ["%s", *("%s" for _ in more), *(f"{name} => %s" for name in options)]
        query = f"select token, status from forebay.{how}({', '.join(places)})"
        rows = self.conn.execute(query, [tokens, *more, *options.values()]).fetchall()
        assert [token for token, _ in rows] == tokens
        return [status for _, status in rows]

    def extend(self) -> Row:
        """Extend the lease."""
        with self.conn.cursor(row_factory=dict_row) as cursor:
            row = cursor.execute("select * from forebay.extend(%s)", [self.worker]).fetchone()
        assert row is not None
        return row

    def leave(self) -> int | None:
        """Give everything back."""
        return one(self.conn, "select forebay.leave(%s)", self.worker)
