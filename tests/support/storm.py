"""A storm: faults of every kind, one after another, on workers, connections, servers, the disk
and the clock.
"""

import contextlib
import random
import re
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable
from functools import partial

import psycopg

from tests.support import storm_operators
from tests.support.effects import Effects
from tests.support.engine import STEPS, connect, depth, one
from tests.support.ledger import Ledger
from tests.support.storm_cluster import IS_ROOT, Cluster
from tests.support.storm_producers import Account
from tests.support.waiting import wait_for
from tests.support.worker_process import Crew, WorkerProcess, send_signal

FAULTS = (
    "kill_worker",
    "freeze_worker",
    "kill_process",
    "freeze_process",
    "end_sessions",
    "restart_server",
    "kill_server",
    "promote_standby",
    "cut_network",
    "lose_answers",
    "fill_disk",
    "step_clock",
    "hold_snapshot",
    "hold_transaction_id",
)
#: Every settlement as it is made, since Forebay forgets them during the storm. Only claims and
#: settlements are read, so that a settlement locks nothing more than without it.
_TABLES = """
    create table witness (entry bigint);
    create table effect (id bigserial, entry bigint);
    create table logged (seq bigint, entry bigint);
    create table ended (seq bigint, outcome "char");
    create function note_row() returns trigger language plpgsql security definer as $$
    begin
        insert into public.logged values (new.seq, (new.args ->> 'entry')::bigint);
        return null;
    end $$;
    create trigger note_row after insert on forebay.log for each row execute function note_row();
    create function note_ends() returns trigger language plpgsql security definer as $$
    begin
        insert into public.ended
        select u.seq, case when new.outcomes is null then 'd'
                           else new.outcomes[array_position(new.offsets, u.nr::smallint)] end
        from forebay.batch b
        cross join lateral unnest(b.seqs) with ordinality u (seq, nr)
        where b.lease_id = new.lease_id and b.claim_no = new.claim_no
          and (new.offsets is null or u.nr = any (new.offsets));
        return null;
    end $$;
    create trigger note_ends after insert
        on forebay.settlement for each row execute function note_ends();
"""
_MAINTENANCE = (
    *["select forebay.extend_v1()"] * 3,
    "select forebay.seal_v1()",
    STEPS["retain"],
    STEPS["trim"],
    STEPS["sweep"],
    "select forebay.summarize_v1()",
    "select forebay.forget_v1()",
    "select forebay.drop_segments_v1(5, '1 second')",
)


def prepare(dsn: str) -> None:
    """Make the tables of the storm, tiny segments, and nothing that is kept."""
    with connect(dsn) as conn:
        conn.execute(_TABLES)
        conn.execute(storm_operators.TABLES)
        one(conn, "select setval('forebay.log_seq', (select max(hi) - 1 from forebay.segment))")
        for name, value in (
            ("segment_rows", 300),
            ("reserve_rows", 6000),
            ("retention_days", 0),
            ("lane_idle_hours", 0),
        ):
            one(conn, "select forebay.configure(%s, %s)", name, value)
        one(conn, "select forebay.extend_v1()")
    storm_operators.apply_first(dsn)


class Storm:
    """Draws faults from a seed, and lets them happen.

    A fault that ends later is ended by ``tend``.
    """

    def __init__(
        self,
        cluster: Cluster,
        crew: Crew,
        rng: random.Random,
        *,
        set_clock: Callable[[int], None] | None,
        held_seconds: float = 20,
        faults: tuple[str, ...] = FAULTS,
    ) -> None:
        self.cluster = cluster
        self.crew = crew
        self.rng = rng
        self.done: Counter[str] = Counter()
        self.errors: Counter[str] = Counter()
        self.maintenance: Counter[str] = Counter()
        self.ended_alone: list[str] = []
        self._set_clock = set_clock
        self._held_seconds = held_seconds
        self.skipped = {"fill_disk"} if not IS_ROOT else set()
        if set_clock is None:
            self.skipped.add("step_clock")
        self._faults = [fault for fault in faults if fault not in self.skipped]
        self._deck: list[str] = []
        self._later: list[tuple[float, Callable[[], None]]] = []
        self._prepared: Counter[str] = Counter()
        self._stop = threading.Event()
        self._maintainer = threading.Thread(target=self._maintain, daemon=True)
        self.workers = [self._new_worker(n) for n in range(4)]

    def rage(self, seconds: float, every_seconds: float) -> None:
        """Let a fault happen every so many seconds."""
        self._maintainer.start()
        ends_at = time.monotonic() + seconds
        next_at = time.monotonic() + every_seconds
        while time.monotonic() < ends_at:
            self.tend()
            if time.monotonic() >= next_at:
                self._strike()
                next_at = max(next_at + every_seconds, time.monotonic() + every_seconds / 3)
            time.sleep(0.05)

    def calm(self) -> None:
        """End all that still lasts."""
        for _, end in self._later:
            end()
        self._later.clear()
        if self._set_clock is not None:
            self._set_clock(0)
        self.cluster.ensure_running()
        self._end_prepared(0)
        self.tend()

    def stop(self) -> None:
        """End the maintenance."""
        self._stop.set()
        self._maintainer.join(60)

    def tend(self) -> None:
        """End what is over, and restart workers that ended, as a supervisor does."""
        now = time.monotonic()
        for item in [item for item in self._later if item[0] <= now]:
            self._later.remove(item)
            item[1]()
        for n, member in enumerate(self.workers):
            if not member.is_running:
                self.ended_alone.append(member.log[-3000:])
                self.workers[n] = self._new_worker(n)

    def _new_worker(self, n: int) -> WorkerProcess:
        """Start one worker; every second one runs its handlers in child processes."""
        slots = {"processes": 4} if n % 2 else {"concurrency": 5}
        return self.crew.start(wait=False, **slots)

    def _strike(self) -> None:
        if not self._deck:
            self._deck = self.rng.sample(self._faults, len(self._faults))
        name = self._deck.pop()
        self.cluster.proxy.statements.clear()
        began = time.monotonic()
        getattr(self, f"_{name}")()
        self.done[name] += 1
        print(f"{time.strftime('%H:%M:%S')} {name}, {time.monotonic() - began:.1f} s", flush=True)
        self.cluster.ensure_running()
        self._end_prepared(4)

    def _after(self, seconds: float, end: Callable[[], None]) -> None:
        self._later.append((time.monotonic() + seconds, end))

    # --- faults ---

    def _kill_worker(self) -> None:
        n = self.rng.randrange(len(self.workers))
        self.workers[n].kill()
        self.workers[n] = self._new_worker(n)

    def _freeze_worker(self) -> None:
        victim = self.rng.choice(self.workers)
        victim.freeze()
        self._after(self.rng.choice([0.5, 6.0, 12.0]), victim.thaw)

    def _kill_process(self) -> None:
        for pid in self._some_children():
            send_signal(pid, signal.SIGKILL)

    def _freeze_process(self) -> None:
        for pid in self._some_children():
            send_signal(pid, signal.SIGSTOP)
            self._after(
                self.rng.choice([0.06, 0.5, 4.0]), partial(send_signal, pid, signal.SIGCONT)
            )

    def _some_children(self) -> list[int]:
        return self.workers[self.rng.choice([1, 3])].some_children(self.rng)

    def _end_sessions(self) -> None:
        share = self.rng.choice([0.1, 0.5, 1])
        with connect(self.cluster.direct) as admin:
            admin.execute(
                "select pg_terminate_backend(pid) from pg_stat_activity where backend_type "
                "= 'client backend'"
                " and pid <> pg_backend_pid() and random() < %s",
                [share],
            )

    def _restart_server(self) -> None:
        self.cluster.primary.stop()
        self.cluster.ensure_running()

    def _kill_server(self) -> None:
        if self.rng.random() < 0.5:
            self.cluster.primary.kill()
        else:
            self.cluster.primary.stop(immediate=True)
        self.cluster.ensure_running()

    def _promote_standby(self) -> None:
        self.cluster.promote()

    def _cut_network(self) -> None:
        with self.cluster.proxy.black_hole():
            time.sleep(self.rng.choice([1, 4, 8]))
            if self.rng.random() < 0.5:
                self.cluster.proxy.cut_all()

    def _lose_answers(self) -> None:
        proxy = self.cluster.proxy
        for text in ("COMMIT", "settle_v1", "claim_v1", "COMMIT"):
            proxy.lose_reply(text, times=2, skip=self.rng.randrange(20))

    def _fill_disk(self) -> None:
        with self.cluster.full_disk():
            time.sleep(self.rng.choice([2, 5]))

    def _step_clock(self) -> None:
        self._set_clock(self.rng.randint(-30, 30))

    def _hold_snapshot(self) -> None:
        self._hold("select 1 from witness limit 1")

    def _hold_transaction_id(self) -> None:
        self._hold("select pg_current_xact_id()")

    def _hold(self, statement: str) -> None:
        with contextlib.suppress(psycopg.Error):
            conn = psycopg.connect(self.cluster.direct)
            conn.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
            conn.execute(statement)
            self._after(self._held_seconds, conn.close)

    # --- maintenance ---

    def _end_prepared(self, most: int) -> None:
        """Roll back prepared transactions that have lasted for more than so many faults."""
        with contextlib.suppress(psycopg.Error), connect(self.cluster.direct) as admin:
            found = {
                gid for (gid,) in admin.execute("select gid from pg_prepared_xacts").fetchall()
            }
            self._prepared = Counter({gid: self._prepared[gid] + 1 for gid in found})
            for gid in [gid for gid, times in self._prepared.items() if times > most]:
                with contextlib.suppress(psycopg.errors.UndefinedObject):
                    admin.execute(f"rollback prepared '{gid}'")

    def _maintain(self) -> None:
        """Do in the storm, all the time, what workers do now and then."""
        rng = random.Random(self.rng.random())
        conn = None
        while not self._stop.wait(0.1):
            statement = rng.choice(_MAINTENANCE)
            try:
                if conn is None or conn.closed:
                    conn = psycopg.connect(self.cluster.dsn, autocommit=True, connect_timeout=5)
                count = one(conn, statement)
                if isinstance(count, tuple):  # What it did, and whether there is more.
                    count = count[0]
                self.maintenance[_name(statement)] += int(count or 0)
            except psycopg.Error as error:
                self.errors[f"{_name(statement)}: {error.sqlstate or type(error).__name__}"] += 1
                if isinstance(error, psycopg.OperationalError) and conn is not None:
                    conn.close()
        if conn is not None:
            conn.close()


def _name(statement: str) -> str:
    """Return the name of the maintenance function that a statement calls."""
    found = re.search(r"forebay\.(\w+)_v1", statement)
    assert found is not None, statement
    return found[1]


def problems(conn: psycopg.Connection, account: Account, effects: Effects) -> dict[str, object]:
    """Compare what producers know, what handlers noted and what the database holds."""
    witness = [entry for (entry,) in conn.execute("select entry from witness").fetchall()]
    seen = set(witness)
    ledger = Ledger(committed=seen, writing=account.writing)
    ends = conn.execute(
        "select l.entry from ended e join logged l using (seq)"
        " where e.outcome in ('d', 'c', 'x') and l.entry is not null"
    ).fetchall()
    ledger.record_ended("default", [entry for (entry,) in ends])
    starts = effects.count("start")
    rows = Counter(dict(conn.execute("select entry, count(*) from effect group by 1").fetchall()))
    # A job whose commit was never confirmed may run, and be lost with its server.
    unknown = account.doubtful - seen
    run = {entry for entry in starts if entry not in unknown} | set(rows)
    ledger.record_handed("default", [*run])
    done = effects.entries("end")
    writing = seen & account.writing
    found: dict[str, object] = {
        **ledger.problems(),
        "confirmed and gone": sorted(account.confirmed - seen),
        "denied and there": sorted(account.denied & seen),
        "witnessed twice": len(witness) - len(seen),
        "never finished": sorted(seen - done),
        "effect missing": sorted(writing - set(rows)),
        "effect twice": sorted(entry for entry, n in rows.items() if n > 1),
        "effect of nothing": sorted(set(rows) - writing),
        "out of order": _out_of_order(conn, account, effects, seen),
        "dead": conn.execute(
            "select reason, kind, args from forebay.dead_letter where redriven_at is null limit 3"
        ).fetchall(),
        "producers failed": account.failures,
    }
    print(
        f"{len(seen)} jobs committed, {len(account.confirmed)} confirmed, "
        f"{len(account.denied)} denied,"
        f" {len(account.doubtful)} in doubt of which {len(account.doubtful & seen)} committed;"
        f" {starts.total()} starts, {starts.total() - len(starts)} reruns,"
        f" {sum(1 for entry in unknown if entry in starts)} runs of jobs lost in doubt;"
        f" {rows.total()} effects; {len(account.keys)} keys with"
        f" {sum(map(len, account.keys.values()))} jobs"
    )
    return {name: what for name, what in found.items() if what}


def _out_of_order(
    conn: psycopg.Connection, account: Account, effects: Effects, seen: set[int]
) -> list[str]:
    """Return confirmed jobs of a key that started before an earlier one had ended, or wrote
    before it.
    """
    first_start: dict[int, float] = {}
    first_end: dict[int, float] = {}
    for effect in effects.all():
        times = first_start if effect.what == "start" else first_end
        times.setdefault(effect.entry, effect.at)
    place = dict(conn.execute("select entry, id from effect").fetchall())
    wrong = []
    for key, entries in account.keys.items():
        newest_end, newest_place = 0.0, 0
        for entry in [entry for entry in entries if entry in seen]:
            if first_start.get(entry, float("inf")) < newest_end:
                wrong.append(f"key {key}: {entry} started early")
            newest_end = max(newest_end, first_end.get(entry, 0.0))
            if entry in place:
                if place[entry] < newest_place:
                    wrong.append(f"key {key}: {entry} wrote early")
                newest_place = max(newest_place, place[entry])
    return wrong[:20]


def wait_until_calm(cluster: Cluster, storm: Storm, seconds: float) -> None:
    """Wait until every group has nothing ready, held or waiting."""

    def numbers() -> dict[str, tuple[int, ...]]:
        storm.tend()
        with connect(cluster.direct) as conn:
            return depth(conn)

    wait_for(
        lambda: (found := numbers()) and not any(map(sum, found.values())),
        seconds,
        lambda: f"{numbers()}\n{storm.crew.logs[-20_000:]}",
    )
