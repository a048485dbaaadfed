"""Producers of the storm: threads over plain psycopg that write down what they know of their
transactions.

Each job has a row in the table ``witness``, written in the same transaction. What a producer was
told is kept in this process: confirmed, denied (rolled back for certain), or in doubt. At the end
the witness decides what is in doubt.
"""

import json
import random
import threading
import time
from collections import Counter, defaultdict
from dataclasses import dataclass, field

import psycopg
from psycopg import IsolationLevel

from tests.support.settings import OF_APPLICATIONS

_LEVELS = (*[IsolationLevel.READ_COMMITTED] * 3, IsolationLevel.REPEATABLE_READ)
_WRITING = ("write", "write_in_thread")
_KINDS = ("plain", "plain_in_thread", "short", "short_in_thread", *_WRITING * 2)
_SETTINGS = (*OF_APPLICATIONS, "jit_above_cost = 0")
_BAD = (
    ("work it", "{}", "default"),
    ("plain", "[1]", "default"),
    ("plain", "{}", "no such queue!"),
    ("plain", json.dumps({"entry": 0, "pad": "x" * 5_000_000}), "default"),
)


@dataclass
class Account:
    """What the producers know, kept outside the database."""

    confirmed: set[int] = field(default_factory=set)
    denied: set[int] = field(default_factory=set)
    doubtful: set[int] = field(default_factory=set)
    writing: set[int] = field(default_factory=set)
    keys: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    transactions: Counter[str] = field(default_factory=Counter)
    errors: Counter[str] = field(default_factory=Counter)
    failures: list[BaseException] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._lock = threading.Lock()
        self._last = 0

    def draw(self) -> int:
        with self._lock:
            self._last += 1
            return self._last


class Producers:
    """Threads that enqueue until they are stopped; every second one is hostile."""

    def __init__(
        self, dsn: str, seed: int, count: int = 6, pause_seconds: float = 0.5, slow_share: float = 0
    ) -> None:
        self.account = Account()
        self._dsn = dsn
        self._pause_seconds = pause_seconds
        self._slow_share = slow_share
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(target=self._run, args=(n, random.Random(f"{seed} {n}")), daemon=True)
            for n in range(count)
        ]

    def __enter__(self) -> "Producers":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(120)
        assert not any(thread.is_alive() for thread in self._threads), "a producer hangs"

    def _run(self, number: int, rng: random.Random) -> None:
        producer = _Producer(self._dsn, self.account, number, rng, self._slow_share)
        while not self._stop.is_set():
            try:
                producer.write_once()
            except psycopg.Error as error:
                self.account.errors[error.sqlstate or type(error).__name__] += 1
                producer.reset()
                self._stop.wait(0.2)
            except BaseException as error:
                self.account.failures.append(error)
                return
            self._stop.wait(rng.expovariate(1 / self._pause_seconds))
        producer.finish()


class _Producer:
    def __init__(
        self, dsn: str, account: Account, number: int, rng: random.Random, slow_share: float
    ) -> None:
        self.dsn = dsn
        self.account = account
        self.number = number
        self.rng = rng
        self.slow_share = slow_share
        self.is_hostile = number % 2 == 1
        self.conn: psycopg.Connection | None = None
        self.prepared: list[tuple[str, set[int]]] = []
        self.began = time.monotonic()

    def reset(self) -> None:
        if self.conn is not None:
            self.conn.close()
        self.conn = None

    def finish(self) -> None:
        """End what was prepared, if that can be done."""
        try:
            while self.prepared:
                self._end_prepared(self._connection())
        except psycopg.Error:
            pass
        self.reset()

    def write_once(self) -> None:
        """Run a transaction; any error ends it, and leaves a true account."""
        conn, rng, account = self._connection(), self.rng, self.account
        if self.prepared and rng.random() < 0.5:
            self._end_prepared(conn)
        if self.is_hostile:
            for setting in rng.sample(_SETTINGS, 2):
                conn.execute(f"set {setting}")
            conn.commit()
            conn.isolation_level = rng.choice(_LEVELS)
        fate = rng.choices(("commit", "rollback", "prepare"), (75, 15, 10 * self.is_hostile))[0]
        kept: set[int] = set()
        keyed: list[tuple[str, int]] = []
        sent = False
        try:
            for _ in range(rng.randint(1, 4)):
                entry = account.draw()
                kept.add(entry)
                key = None
                if fate != "prepare" and rng.random() < 0.3:
                    key = f"{self.number}/{rng.randrange(3)}"
                    keyed.append((key, entry))
                self._put(conn, entry, key)
                if self.is_hostile:
                    kept |= self._try_things(conn, may_wait=fate != "prepare")
            if fate == "rollback":
                conn.rollback()
            elif fate == "prepare":
                gid = f"storm-{min(kept)}"
                sent = True
                conn.execute(f"prepare transaction '{gid}'")
                self.prepared.append((gid, kept))
                account.doubtful |= kept
            else:
                sent = True
                conn.commit()
                for key, entry in keyed:
                    account.keys[key].append(entry)
                account.confirmed |= kept
        except psycopg.Error:
            if sent:
                account.doubtful |= kept
                account.transactions["in doubt"] += 1
            else:
                account.denied |= kept
                account.transactions["failed"] += 1
            raise
        if fate == "rollback":
            account.denied |= kept
        account.transactions[fate] += 1
        if fate == "prepare":
            conn.rollback()

    def _put(self, conn: psycopg.Connection, entry: int, key: str | None) -> None:
        rng = self.rng
        kind = rng.choice(_KINDS)
        if kind in _WRITING:
            self.account.writing.add(entry)
        seconds = 1.0 if rng.random() < self.slow_share else rng.random() ** 6 * 0.5
        args: dict[str, object] = {"entry": entry, "seconds": seconds}
        if rng.random() < 0.02:
            args["pad"] = "é" * rng.choice([3_000, 100_000])
        # Other priorities in turn: lanes fall idle, and are forgotten.
        priority = 100 + int((time.monotonic() - self.began) / 5) % 40 + rng.randrange(2)
        delay = "0.5 seconds" if key is None and rng.random() < 0.1 else None
        conn.execute(
            "select forebay.enqueue(%s, %s::jsonb, priority => %s, delay => %s::interval,"
            " ordering_key => %s)",
            [kind, json.dumps(args), 100 if key else priority, delay, key],
        )
        conn.execute("insert into witness values (%s)", [entry])

    def _try_things(self, conn: psycopg.Connection, *, may_wait: bool) -> set[int]:
        """Use savepoints, bad input and unique keys that others use; return what stays."""
        rng, account = self.rng, self.account
        chance = rng.random()
        entry = account.draw()
        conn.execute("savepoint s")
        if chance < 0.3:
            self._put(conn, entry, None)
            if rng.random() < 0.5:
                conn.execute("release savepoint s")
                return {entry}
            conn.execute("rollback to savepoint s")
            account.denied.add(entry)
        elif chance < 0.4:
            kind, args, queue = rng.choice(_BAD)
            try:
                conn.execute("select forebay.enqueue(%s, %s::jsonb, %s)", [kind, args, queue])
            except psycopg.DatabaseError as error:
                if error.sqlstate not in {"JQ001", "JQ002", "JQ003"}:
                    raise
                conn.execute("rollback to savepoint s")
            else:
                raise AssertionError("bad input was taken")
        elif chance < 0.6 and may_wait:
            unique = json.dumps({"once": f"key {rng.randrange(4)}", "on_busy": "raise"})
            try:
                (is_new,) = conn.execute(
                    "select is_new from forebay.enqueue_unique('plain',"
                    " jsonb_build_object('entry', %s::bigint, 'seconds', 0), %s::jsonb)",
                    [entry, unique],
                ).fetchone()
            except psycopg.DatabaseError as error:
                if error.sqlstate not in {"JQ004", "40001"}:
                    raise
                conn.execute("rollback to savepoint s")
                is_new = False
            if is_new:
                conn.execute("insert into witness values (%s)", [entry])
                return {entry}
            account.denied.add(entry)
        return set()

    def _end_prepared(self, conn: psycopg.Connection) -> None:
        gid, kept = self.prepared.pop(0)
        conn.autocommit = True
        if self.rng.random() < 0.6:
            conn.execute(f"commit prepared '{gid}'")
            self.account.confirmed |= kept
        else:
            conn.execute(f"rollback prepared '{gid}'")
            self.account.denied |= kept
        self.account.doubtful -= kept
        conn.autocommit = False

    def _connection(self) -> psycopg.Connection:
        if self.conn is None or self.conn.closed:
            self.conn = psycopg.connect(self.dsn, connect_timeout=5)
        return self.conn
