"""A stress run in which groups of the queue are opened and closed, one after another, while
everything else runs.
"""

import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import psycopg

from tests.support.engine import Reader, connect, enqueue, one, open_group
from tests.support.ledger import Ledger
from tests.support.stress import QUEUE, StressRun

VISITORS = "visitors"
"""The name in the ledger of all groups that are closed."""


@dataclass
class _Ledger(Ledger):
    def record_rerun(self, group: str, entries: list[int]) -> None:
        """The same, by the common name of the groups that are closed."""
        super().record_rerun(VISITORS if group.startswith("visit") else group, entries)


@dataclass
class ClosingRun(StressRun):
    """A stress run with groups that are closed.

    With ``groups`` empty, the group that is closed is the queue's only one, and the next one takes
    over what came meanwhile; then the last one stays.

    Args:
        visitors: how many readers the group that will be closed has.
    """

    visitors: int = 3
    closed: dict[int, float] = field(default_factory=dict)
    """When each closing had committed, by the id of the group."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.ledger = _Ledger((*self.groups, VISITORS))
        self.claimed_late: list[str] = []
        self.given_up = 0
        self.rolled_back = 0
        self._current: str | None = None
        self._opening = threading.Lock()

    def problems(self) -> dict[str, list[int]]:
        """Return what is wrong in the ledger.

        A closed group may have given up jobs that committed before it was closed.
        """
        found = self.ledger.problems()
        last = max(self.closed.values())
        lost = [e for e in found.pop(f"lost by {VISITORS}", []) if self.ledger.spans[e][0] > last]
        if lost and not self.groups:
            found["lost after the last closing"] = lost
        if self.claimed_late:
            found["claimed late"] = []
        return found

    def _further_duties(self) -> list[tuple[str, Callable[[random.Random], None]]]:
        visitors = [(f"visitor {n}", self._visit) for n in range(self.visitors)]
        return [*visitors, ("closer", self._open_and_close), ("closing", self._continue_closing)]

    def _count(self, rng: random.Random) -> None:
        """Nothing: the independent count knows only groups that began at the beginning."""

    def _put(self, conn: psycopg.Connection, rng: random.Random) -> list[int]:
        if rng.random() < 0.8:
            return super()._put(conn, rng)
        (entry,) = self.ledger.draw(1)
        job = enqueue(
            conn,
            queue=QUEUE,
            args={"entry": entry},
            unique_as=f'{{"once": "{rng.randrange(300)}"}}',
        )
        # Another job may stand for it.
        mine = "select count(*) from forebay.log where seq = %s and (args ->> 'entry')::bigint = %s"
        return [entry] if one(conn, mine, job, entry) else []

    def _write_once(self, conn: psycopg.Connection, rng: random.Random) -> None:
        try:
            super()._write_once(conn, rng)
        except psycopg.errors.DeadlockDetected as error:  # Unique keys in different orders.
            raise psycopg.errors.SerializationFailure from error

    def _claim(self, reader: Reader, rng, lanes):
        began_at = time.monotonic()
        found = super()._claim(reader, rng, lanes)
        if found and began_at > self.closed.get(reader.group_id, float("inf")):
            self.claimed_late.append(f"group {reader.group_id}: {found}")
        if found and reader.group == VISITORS:
            time.sleep(rng.random() ** 2 * 0.1)  # The group is often closed while its jobs run.
        return found

    def _visit(self, rng: random.Random) -> None:
        while self._running.is_set() and not self.errors:
            with self._opening:
                name = self._current
                reader = None if name is None else Reader(self.dsn, QUEUE, name)
            if reader is None:
                time.sleep(0.005)
                continue
            reader.group = VISITORS
            with reader:
                with self._lock:
                    self.leases[threading.current_thread().name] = reader
                while self._current == name and self._running.is_set() and not self.errors:
                    try:
                        if not self._claim_once(reader, rng):
                            time.sleep(0.005)
                    except psycopg.Error as error:
                        if error.sqlstate == "JQ010":  # Its lease was taken away.
                            reader.open_lease()
                        elif error.sqlstate not in ("JQ012", "JQ014"):
                            raise

    def _open_and_close(self, rng: random.Random) -> None:
        number = 0
        with connect(self.dsn) as conn:
            while not self.errors:
                number += 1
                name = f"visit{number}"
                with self._opening:
                    group_id = open_group(conn, QUEUE, name)
                    self._current = name
                is_last = not self._writing.is_set()
                if is_last and not self.groups:
                    return
                time.sleep(0.1 + rng.random() * 0.5)
                self._close_group(rng, name, group_id)
                # The next group of a queue without another one must find the implied one.
                if is_last or not self.groups or rng.random() < 0.5:
                    self._wait_until_closed(conn, group_id, rng)
                if is_last:
                    return

    def _close_group(self, rng: random.Random, name: str, group_id: int) -> None:
        call = "select cancelled from forebay.close_group(%s, %s, true, %s)"
        with psycopg.connect(self.dsn) as conn:
            one(conn, call, QUEUE, name, True)
            conn.rollback()
            while rng.random() < 0.3:
                one(conn, call, QUEUE, name, False)
                time.sleep(rng.random() * 0.05)
                conn.rollback()
                self.rolled_back += 1
            self.given_up += one(conn, call, QUEUE, name, False)
            time.sleep(rng.random() ** 3 * 0.3)  # Claims run between the marking and its commit.
            conn.commit()
        self.closed[group_id] = time.monotonic()
        with self._opening:
            self._current = None

    def _wait_until_closed(
        self, conn: psycopg.Connection, group_id: int, rng: random.Random
    ) -> None:
        query = "select count(*) from forebay.closed_group where group_id = %s and lanes is null"
        deadline = time.monotonic() + 60
        while not one(conn, query, group_id):
            assert time.monotonic() < deadline, f"group {group_id} is not closed after 60 s"
            if self.errors:
                return
            if not self._close_step(conn, rng):
                time.sleep(0.01)

    def _continue_closing(self, rng: random.Random) -> None:
        with connect(self.dsn) as conn:
            while self._running.is_set() and not self.errors:
                if not self._close_step(conn, rng):
                    time.sleep(rng.random() * 0.02)

    def _close_step(self, conn: psycopg.Connection, rng: random.Random) -> int:
        try:
            return one(conn, "select forebay.close_groups(%s)", rng.choice([1, 7, 10000]))
        except psycopg.errors.LockNotAvailable:
            return 0
        except psycopg.Error as error:
            if error.sqlstate != "JQ012":  # The machine delayed the call for seconds.
                raise
            return 0


LEFT = {
    "batches": "select count(*) from forebay.batch where group_id <> all (%(groups)s)",
    "parked": "select count(*) from forebay.parked where group_id <> all (%(groups)s)",
    "key runs": "select count(*) from forebay.key_run where group_id <> all (%(groups)s)",
    "limiters": "select count(*) from forebay.limiter where group_id <> all (%(groups)s)",
    "counts": (
        "select count(*) from forebay.counter_waiting where group_id <> all (%(groups)s) and "
        "group_id <> 0"
    ),
    "forgotten": "select count(*) from forebay.forgotten where group_id <> all (%(groups)s)",
    "lanes": (
        "select count(*) from forebay.lane where audience <> 0 and abs(audience) <> all "
        "(%(groups)s)"
    ),
    "deferred": (
        "select count(*) from forebay.deferred d where not exists (select from forebay.lane l "
        "where l.lane = d.lane)"
    ),
    "settlements": "select count(*) from forebay.settlement s where not exists"
    " (select from forebay.batch b where b.lease_id = s.lease_id and b.claim_no = s.claim_no)",
    "suspects": "select count(*) from forebay.suspect_start s where not exists"
    " (select from forebay.batch b where b.lease_id = s.lease_id and b.claim_no = s.claim_no)",
    "leaders": "select count(*) from pg_class where relname like 'leader\\_%%' and relkind = 'S'"
    " and relname <> all (select 'leader_' || g from unnest(array[0, -1] || "
    "%(groups)s::bigint[]) g)",
    "to clear": "select count(*) from forebay.closed_group where lanes is not null",
    "segments": "select count(*) from forebay.segment s cross join lateral"
    " forebay._segment_holders(array[s.segment_id], false) h join forebay.seal f on "
    "f.segment_id = s.segment_id"
    " where s.removed_at is null and h.group_id <> all (%(groups)s)",
}


def left_of_closed_groups(dsn: str) -> dict[str, int]:
    """Return the rows that are left of groups that do not exist any more, by what they are."""
    with connect(dsn) as conn:
        groups = one(conn, "select array(select group_id from forebay.queue_group)")
        counts = {name: one_of(conn, query, groups) for name, query in LEFT.items()}
    return {name: count for name, count in counts.items() if count}


def one_of(conn: psycopg.Connection, query: str, groups: list[int]) -> int:
    """Run a query of ``LEFT``."""
    row = conn.execute(query, {"groups": groups}).fetchone()
    assert row is not None
    return row[0]
