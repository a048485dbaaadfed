"""Writers in random commit order, and what handlers and the database say of their jobs, in one
ledger.

Writers write down in this process what they committed; handlers write to the file of
``tests.support.effects`` and, in their own transactions, to the table ``effect``. ``read_run`` adds
both, and the database's settlements, to the ledger.
"""

import random
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import psycopg

from tests.support.effects import Effects
from tests.support.engine import connect, depth
from tests.support.ledger import Ledger
from tests.support.waiting import wait_for

KINDS = ("work", "write", "work_in_thread", "write_in_thread")
WRITING_KINDS = ("write", "write_in_thread")

#: How each handed-out row of the log ended, as often as it did.
_ENDINGS = """
    select coalesce(l.job_id, l.seq) as job_id, b.lease_id,
           case when s.offsets is null then 'd'
                else coalesce(s.outcomes[array_position(s.offsets, u.nr::smallint)], 'd') end
                    as outcome
    from forebay.batch b
    cross join lateral unnest(b.seqs) with ordinality u (seq, nr)
    join forebay.log l on l.seq = u.seq
    join forebay.settlement s on s.lease_id = b.lease_id and s.claim_no = b.claim_no
                             and (s.offsets is null or u.nr = any (s.offsets))
"""


@dataclass
class Writers:
    """Threads that enqueue and commit, or roll back, in random order."""

    dsn: str
    seed: int
    count: int = 8
    pause_seconds: float = 0.06
    kinds: Sequence[str] = KINDS
    ledger: Ledger = field(default_factory=Ledger)
    unknown: list[dict[int, str]] = field(default_factory=list)
    failures: list[BaseException] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(target=self._run, args=(random.Random(f"{self.seed} {n}"),))
            for n in range(self.count)
        ]

    def __enter__(self) -> "Writers":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Let every writer finish its transaction, and end."""
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def resolve(self, conn: psycopg.Connection) -> int:
        """Settle commits whose answer was lost, by the witness; return how many there were.

        The number of a transaction would not do: after a crash it is given out again if nothing of
        the transaction had reached the disk.
        """
        seen = {row[0] for row in conn.execute("select entry from witness")}
        for entries in self.unknown:
            assert entries.keys() <= seen or not entries.keys() & seen
            if entries.keys() <= seen:
                record_committed(self.ledger, entries)
            else:
                self.ledger.record_rolled_back([*entries])
        assert self.ledger.committed == seen
        return len(self.unknown)

    def _run(self, rng: random.Random) -> None:
        conn = None
        while not self._stop.is_set():
            try:
                if conn is None or conn.closed:
                    conn = psycopg.connect(self.dsn, connect_timeout=2)
                self._write_once(conn, rng)
            except psycopg.OperationalError:
                conn = None
                self._stop.wait(0.05)
            except BaseException as error:
                self.failures.append(error)
                return
        if conn is not None:
            conn.close()

    def _write_once(self, conn: psycopg.Connection, rng: random.Random) -> None:
        entries: dict[int, str] = {}
        in_doubt = False
        try:
            for _ in range(rng.randint(1, 4)):
                (entry,) = self.ledger.draw(1)
                kind = rng.choice(self.kinds)
                entries[entry] = kind
                conn.execute(
                    "select forebay.enqueue(%s, jsonb_build_object('entry', %s::bigint,"
                    " 'seconds', %s::float8))",
                    [kind, entry, rng.random() ** 4 * 0.3],
                )
                conn.execute("insert into witness values (%s)", [entry])
                self._stop.wait(rng.random() * self.pause_seconds)
            if rng.random() < 0.3:
                conn.rollback()
            else:
                in_doubt = True
                conn.commit()
                in_doubt = False
                record_committed(self.ledger, entries)
                return
        except psycopg.OperationalError:
            if in_doubt:
                self.unknown.append(entries)
            else:
                self.ledger.record_rolled_back([*entries])
            raise
        self.ledger.record_rolled_back([*entries])


def record_committed(ledger: Ledger, entries: Mapping[int, str]) -> None:
    """Write down a transaction that committed: its entries, each with the kind of its job."""
    ledger.record_committed([*entries], 0)
    ledger.writing |= {entry for entry, kind in entries.items() if kind in WRITING_KINDS}


def wait_until_drained(dsn: str, seconds: float = 90, describe=lambda: "") -> None:
    """Wait until no group has anything ready, held by a worker, or waiting for a time."""

    def drained() -> bool:
        try:
            with connect(dsn) as conn:
                numbers = depth(conn)
        except psycopg.OperationalError:
            return False  # It is recovering from a crash.
        return bool(numbers) and not any(sum(each) for each in numbers.values())

    def seen() -> str:
        with connect(dsn) as conn:
            return f"{depth(conn)}\n{describe()}"

    wait_for(drained, seconds, seen)


def read_run(ledger: Ledger, conn: psycopg.Connection, effects: Effects) -> None:
    """Write into the ledger what handlers and the database say of a run that has come to rest."""
    job_of = {effect.entry: effect.job_id for effect in effects.all("start")}
    entry_of = {job_id: entry for entry, job_id in job_of.items()}
    starts = effects.count("start")
    ledger.record_handed("default", [*starts.elements()])

    # A handler may end and then run again, because a crash cut off its settlement. What must not
    # happen twice is a row that a handler wrote in its own transaction, and a settlement that says
    # that the job has ended.
    rows = dict(conn.execute("select entry, count(*) from effect group by 1").fetchall())
    for entry in effects.entries("end"):
        times = rows.get(entry, 0) if entry in ledger.writing else 1
        ledger.record_ended("default", [entry] * times)
    ended_twice = conn.execute(
        f"select job_id from ({_ENDINGS}) e where outcome not in ('l', 'h', 'r', 's')"
        " group by 1 having count(*) > 1"
    ).fetchall()
    ledger.record_ended("default", [entry_of[job_id] for (job_id,) in ended_twice] * 2)

    sent_back = conn.execute(
        f"select job_id from ({_ENDINGS}) e where outcome in ('l', 'h', 'r')"
    ).fetchall()
    again = [entry_of[job_id] for (job_id,) in sent_back if job_id in entry_of]
    ledger.record_rerun("default", again)


def for_seconds(seconds: float) -> "Clock":
    """Return a clock that runs for this long."""
    return Clock(time.monotonic() + seconds)


@dataclass
class Clock:
    """How long a run lasts."""

    ends_at: float

    def __bool__(self) -> bool:
        return time.monotonic() < self.ends_at
