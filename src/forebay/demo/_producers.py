"""The producers: transactions that write a document and enqueue its job, and some that fail."""

from __future__ import annotations

import random
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import psycopg

from forebay._dataclass import dataclass
from forebay.demo.app import extract_docstrings

if TYPE_CHECKING:
    from forebay.demo._documents import SourceFile

Connection = psycopg.Connection[tuple[Any, ...]]

#: The most documents in one transaction.
_BATCH_MAX: Final = 12

_ROLLBACK_SHARE: Final = 0.08
_SAVEPOINT_SHARE: Final = 0.05


@dataclass(frozen=True, slots=True)
class Planned:
    """A document and its intended outcome."""

    document: SourceFile
    producer: int
    outcome: str


def plan(documents: Sequence[SourceFile], *, producers: int, seed: int) -> list[list[Planned]]:
    """Return transactions: each is committed or rolled back as a whole, some with savepoints."""
    random_ = random.Random(seed)
    transactions = []
    rest = list(documents)
    while rest:
        size = random_.randint(1, _BATCH_MAX)
        batch, rest = rest[:size], rest[size:]
        producer = random_.randrange(producers)
        rolled_back = random_.random() < _ROLLBACK_SHARE
        transactions.append(
            [
                Planned(
                    document,
                    producer,
                    "rollback"
                    if rolled_back
                    else "rollback to savepoint"
                    if random_.random() < _SAVEPOINT_SHARE
                    else "commit",
                )
                for document in batch
            ]
        )
    return transactions


def write_plan(dsn: str, transactions: Sequence[Sequence[Planned]]) -> None:
    """Commit the intended outcome of each document, before the demo begins."""
    with psycopg.connect(dsn) as conn:
        with conn.cursor() as cursor:
            cursor.executemany(
                "insert into demo.plan (path, producer, outcome) values (%s, %s, %s)",
                [(p.document.path, p.producer, p.outcome) for batch in transactions for p in batch],
            )


class Producers:
    """Threads that carry out a plan, each with a connection.

    Args:
        dsn: the database.
        transactions: the plan.
        count: the number of threads.
    """

    def __init__(self, dsn: str, transactions: Sequence[Sequence[Planned]], *, count: int) -> None:
        self._dsn = dsn
        self._errors: list[BaseException] = []
        self._threads = [
            threading.Thread(
                target=self._run,
                args=([batch for batch in transactions if batch[0].producer == number],),
                name=f"producer-{number}",
                daemon=True,
            )
            for number in range(count)
        ]

    def start(self) -> None:
        """Start the threads."""
        for thread in self._threads:
            thread.start()

    @property
    def is_done(self) -> bool:
        """Whether all threads have ended.

        Raises:
            BaseException: the error that stopped a thread.
        """
        if self._errors:
            raise self._errors[0]
        return not any(thread.is_alive() for thread in self._threads)

    def _run(self, transactions: list[Sequence[Planned]]) -> None:
        try:
            with psycopg.connect(self._dsn, autocommit=True) as conn:
                for batch in transactions:
                    _carry_out(conn, batch)
        except BaseException as error:
            self._errors.append(error)


def _carry_out(conn: Connection, batch: Sequence[Planned]) -> None:
    with conn.transaction(force_rollback=batch[0].outcome == "rollback"):
        for planned in batch:
            if planned.outcome == "rollback to savepoint":
                with conn.transaction(force_rollback=True):
                    _write(conn, planned.document)
            else:
                _write(conn, planned.document)


def _write(conn: Connection, document: SourceFile) -> None:
    """Write a document and enqueue its job, in the transaction of the connection."""
    row = conn.execute(
        "insert into demo.document (path, source) values (%s, %s) returning document_id",
        [document.path, document.source],
    ).fetchone()
    assert row is not None
    job_id = extract_docstrings.enqueue(conn, document_id=row[0])
    conn.execute("update demo.document set job_id = %s where document_id = %s", [job_id, row[0]])
