"""Writers in random commit order, and the account of a run: what was committed against what was done.

Writers keep book in this process; handlers in the file of ``tests.support.effects`` and, in their own transactions,
in the table ``effect``. The database's account of settlements comes last, and is compared with both.
"""

import random
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import psycopg

from tests.support.effects import Effects
from tests.support.engine import connect, depth
from tests.support.waiting import wait_for

KINDS = ("work", "write", "work_in_thread", "write_in_thread")
WRITING_KINDS = ("write", "write_in_thread")

#: How each handed-out row of the log ended, as often as it did.
_ENDINGS = """
    select coalesce(l.job_id, l.seq) as job_id, b.lease_id,
           case when s.offsets is null then 'd'
                else coalesce(s.outcomes[array_position(s.offsets, u.nr::smallint)], 'd') end as outcome
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
    committed: dict[int, str] = field(default_factory=dict)
    rolled_back: set[int] = field(default_factory=set)
    unknown: list[dict[int, str]] = field(default_factory=list)
    failures: list[BaseException] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._lock = threading.Lock()
        self._next = 0
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

        The number of a transaction would not do: after a crash it is given out again if nothing of the
        transaction had reached the disk.
        """
        seen = {row[0] for row in conn.execute("select entry from witness")}
        for entries in self.unknown:
            assert entries.keys() <= seen or not entries.keys() & seen
            if entries.keys() <= seen:
                self.committed.update(entries)
            else:
                self.rolled_back.update(entries)
        assert set(self.committed) == seen
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
                with self._lock:
                    self._next += 1
                    entry = self._next
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
                with self._lock:
                    self.committed.update(entries)
                return
        except psycopg.OperationalError:
            if in_doubt:
                with self._lock:
                    self.unknown.append(entries)
                raise
            with self._lock:
                self.rolled_back.update(entries)
            raise
        with self._lock:
            self.rolled_back.update(entries)


@dataclass(frozen=True)
class Account:
    """What a run came to. Lost, phantom and double must be empty."""

    committed: int
    rolled_back: int
    lost: set[int]
    phantom: set[int]
    double_effects: set[int]
    double_settlements: list[int]
    reruns: int
    sent_back: int
    run_too_often: dict[int, int]

    def assert_clean(self) -> None:
        """Fail with what is wrong."""
        print(
            f"committed {self.committed}, rolled back {self.rolled_back}, reruns {self.reruns} of"
            f" {self.sent_back} sent back"
        )
        assert not self.lost, f"lost: {sorted(self.lost)[:20]}"
        assert not self.phantom, f"phantom: {sorted(self.phantom)[:20]}"
        assert not self.double_effects, f"effects doubled: {sorted(self.double_effects)[:20]}"
        assert not self.double_settlements, f"settled twice: {self.double_settlements[:20]}"
        assert not self.run_too_often, f"run too often: {self.run_too_often}"
        assert self.reruns <= self.sent_back


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


def account(conn: psycopg.Connection, writers: Writers, effects: Effects) -> Account:
    """Draw up the account of a run that has come to rest."""
    assert not writers.failures, writers.failures
    committed = set(writers.committed)
    starts, ends = effects.count("start"), effects.entries("end")
    written = dict(conn.execute("select entry, count(*) from effect group by 1").fetchall())
    must_write = {e for e, kind in writers.committed.items() if kind in WRITING_KINDS}
    sent_back = dict(
        conn.execute(
            f"select job_id, count(*) from ({_ENDINGS}) e where outcome in ('l', 'h', 'r')"
            " group by 1"
        ).fetchall()
    )
    double = conn.execute(
        f"select job_id from ({_ENDINGS}) e where outcome not in ('l', 'h', 'r', 's')"
        " group by 1 having count(*) > 1"
    ).fetchall()
    job_of = {effect.entry: effect.job_id for effect in effects.all("start")}
    return Account(
        committed=len(committed),
        rolled_back=len(writers.rolled_back),
        lost=(committed - ends) | (must_write - set(written)),
        phantom=set(starts) - committed,
        double_effects={e for e, n in written.items() if n > 1},
        double_settlements=[row[0] for row in double],
        reruns=sum(n - 1 for n in starts.values()),
        sent_back=sum(sent_back.values()),
        run_too_often={e: n for e, n in starts.items() if n > 1 + sent_back.get(job_of[e], 0)},
    )


def for_seconds(seconds: float) -> "Clock":
    """Return a clock that runs for so long."""
    return Clock(time.monotonic() + seconds)


@dataclass
class Clock:
    """How long a storm goes on."""

    ends_at: float

    def __bool__(self) -> bool:
        return time.monotonic() < self.ends_at
