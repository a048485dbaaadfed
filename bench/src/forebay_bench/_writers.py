"""A process that writes and enqueues in one transaction, and rolls some of them back.

Started by the scenario ``crash``: the address, its number, a seed. It works until the command to stop, also while the server
crashes, and answers with the outcome of each of its entries: committed, rolled back, or in doubt if the answer
to a commit was lost. It keeps the outcomes in its memory, because this process is not killed, and reads no table of Forebay.
"""

from __future__ import annotations

import itertools
import random
import sys
import threading
import time
from typing import TYPE_CHECKING, Any, Final

import psycopg

from forebay_bench._child import answer, commands

if TYPE_CHECKING:
    from collections.abc import Iterator

#: Entries of a process are numbered from its number times this.
NUMBERS: Final = 10_000_000

_ROLLBACK_SHARE: Final = 0.15
_SAVEPOINT_SHARE: Final = 0.1
_TRANSACTIONAL_SHARE: Final = 0.5
_JOBS_MAX: Final = 5

_PAUSE_SECONDS: Final = 0.1
_RECONNECT_SECONDS: Final = 0.05

_WRITE: Final = "insert into ledger.entry (entry, effect_in_transaction) values (%s, %s)"
_ENQUEUE: Final = "select forebay.enqueue(%s, jsonb_build_object('entry', %s::bigint, 'seconds', %s::float8), 'crash')"


class Writer:
    """One producer and its record of what it did."""

    def __init__(self, dsn: str, number: int, seed: str) -> None:
        self._dsn = dsn
        self._numbers: Iterator[int] = itertools.count(number * NUMBERS)
        self._random = random.Random(f"{seed} {number}")
        self._stop = threading.Event()
        self.committed: list[int] = []
        self.rolled_back: list[int] = []
        self.in_doubt: list[int] = []

    def stop(self) -> None:
        """Make the current transaction the last one."""
        self._stop.set()

    def run(self) -> None:
        """Write until the command to stop; open a lost connection again."""
        while not self._stop.is_set():
            try:
                with psycopg.connect(self._dsn, connect_timeout=2) as conn:
                    while not self._stop.is_set():
                        self._write(conn)
                        time.sleep(self._random.random() * _PAUSE_SECONDS)
            except psycopg.OperationalError:
                self._stop.wait(_RECONNECT_SECONDS)

    def _write(self, conn: psycopg.Connection[Any]) -> None:
        """Run one transaction, and record its outcome."""
        kept: list[int] = []
        undone: list[int] = []
        outcome = self.rolled_back
        try:
            for _ in range(self._random.randint(1, _JOBS_MAX)):
                entry = next(self._numbers)
                if self._random.random() < _SAVEPOINT_SHARE:
                    undone.append(entry)
                    with conn.transaction(force_rollback=True):
                        self._enqueue(conn, entry)
                else:
                    kept.append(entry)
                    self._enqueue(conn, entry)
            if self._random.random() < _ROLLBACK_SHARE:
                conn.rollback()
            else:
                outcome = self.in_doubt
                conn.commit()
                outcome = self.committed
        finally:
            outcome += kept
            self.rolled_back += undone

    def _enqueue(self, conn: psycopg.Connection[Any], entry: int) -> None:
        in_transaction = self._random.random() < _TRANSACTIONAL_SHARE
        conn.execute(_WRITE, [entry, in_transaction])
        kind = "write_effect" if in_transaction else "record_effect"
        conn.execute(_ENQUEUE, [kind, entry, self._random.random() ** 4 * 0.2])


def main() -> None:
    """Run as the scenario commands: the first command is to stop."""
    dsn, number, seed = sys.argv[1:]
    writer = Writer(dsn, int(number), seed)
    failures: list[str] = []

    def run() -> None:
        try:
            writer.run()
        except Exception as error:
            failures.append(repr(error))

    thread = threading.Thread(target=run)
    thread.start()
    try:
        for _ in commands():
            break
    finally:
        writer.stop()
        thread.join()
    answer(
        {
            "committed": writer.committed,
            "rolled_back": writer.rolled_back,
            "in_doubt": writer.in_doubt,
            "failures": failures,
        }
    )


if __name__ == "__main__":
    main()
