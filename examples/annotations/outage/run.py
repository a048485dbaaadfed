"""The outage from start to end."""

import contextlib
import json
import os
import subprocess
import tempfile
import threading
import time
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
from psycopg import conninfo, sql

import forebay
from annotations import corpus, store
from annotations.outage import old_order
from annotations.outage.ledger import Counts, Ledger, Record, Request, percentile
from annotations.outage.machine import BUSY_FROM, Machine
from annotations.outage.processes import ProcessGroup, line_of, process_group, send, send_line
from annotations.outage.view import View
from forebay.embedded import EmbeddedServer, default_server, start_or_find, temporary_server
from forebay.mirror import PostgresTarget

DATABASE = "forebay_outage"

#: As many writes as were lost in the outage that motivated this demo.
WRITES = 21_500

_RATE_MAX = 300.0
_OLD_RATE = 40.0

#: When the outage begins and ends, as shares of the writes. People then keep writing until the
#: backlog is worked off.
_CUT_AT, _HEAL_AT = 0.12, 0.92

#: Minimum time at the steady rate before the outage: with few writes the outage begins later.
_STEADY_SECONDS = 5.0

_DEADLINE_MS = 250

#: The p99 up to which no request waited for the index: the deadline, and as much for the request
#: itself; on a slow machine ten times what it takes when nothing is wrong.
_P99_MS_MAX = 2 * _DEADLINE_MS
_P99_RATIO_MAX = 10

#: After the outage both services commit to the same disk while the backlog is worked off. A pause
#: of the machine stops both, so writes that wait for an index have this to be measured by.
_OLD_RATIO_MAX = 2

#: The service's settings. A grace of a minute, as is usual, would only make the demo longer.
_SETTINGS = {
    "ANNOTATIONS_DEADLINE_SECONDS": str(_DEADLINE_MS / 1000),
    "ANNOTATIONS_GRACE_SECONDS": "3",
    "ANNOTATIONS_INTERVAL_SECONDS": "1",
    "ANNOTATIONS_TIMEOUT_SECONDS": "2",
}

#: On a slow machine people write less in all: the time before the outage, and the outage, end at
#: these times.
_BEFORE_SECONDS_MAX, _OUTAGE_SECONDS_MAX = 60.0, 200.0

_SECONDS_MAX = 600.0

#: The backlog is worked off when the jobs left are those of writes of the last seconds, within
#: their grace.
_LEFT_SECONDS = 6.0

#: People stop writing this long after the end of the outage, even if there is a backlog.
_CATCH_UP_SECONDS_MAX = 120.0


def limit_of(before: float) -> int:
    """Return the p99 in ms up to which no request waited for the index; ``before``: the outage."""
    return round(max(_P99_MS_MAX, _P99_RATIO_MAX * before))


@dataclass(frozen=True, slots=True)
class Result:
    """The result; the names are those of the line of JSON.

    Attributes:
        writes: annotations created, changed and deleted under load.
        failed_writes: of these, not answered with success.
        lost_writes: answered with success, and not in the database.
        deadline_ms: the longest that a write may wait for the index.
        limit_ms: the p99 up to which no request waited for the index; on a slow machine more.
        limit_ms_after: the same after the outage; more where writes of the service with the old
            order, which has no index to wait for, took longer too.
        write_p99_ms_before: the time that 99 of 100 writes did not exceed, before the outage.
        write_p99_ms_during: the same during the outage.
        write_p99_ms_after: after it, while the backlog was worked off.
        read_p99_ms_before: requests that do not need the index, before the outage.
        read_p99_ms_during: the same during the outage.
        read_p99_ms_after: the same after it.
        others_before: the largest share of the machine's processors that other programs used for
            ten seconds; None if it is not known.
        others_during: the same during the outage.
        others_after: the same after it.
        outage_seconds: how long broker and index did not answer.
        outage_writes: writes in that time.
        behind_at_most: the largest number of annotations without a right copy in the index.
        missing_after: annotations without a copy, at the end.
        stale_after: with an old copy.
        orphaned_after: copies without an annotation.
        jobs_after: jobs that have not ended.
        recovery_seconds: from the end of the outage until the backlog was worked off, while people
            kept writing; None if it was not, or if the index was not right in the end.
        old_order: the broker of the service with the old order.
        old_order_writes: what that service saved and answered with success.
        old_order_lost: of these, not in its index in the end.
        old_order_p99_ms_during: its writes in the outage.
        old_order_p99_ms_after: its writes after it.
        rate: writes a second.
        seconds: all of it.
        plot: the file of the plot; None if it could not be drawn.
        dsn: the database with the annotations.
        target: the database with the index.
    """

    writes: int
    failed_writes: int
    lost_writes: int
    deadline_ms: int
    limit_ms: int
    limit_ms_after: int
    write_p99_ms_before: float
    write_p99_ms_during: float
    write_p99_ms_after: float
    read_p99_ms_before: float
    read_p99_ms_during: float
    read_p99_ms_after: float
    others_before: float | None
    others_during: float | None
    others_after: float | None
    outage_seconds: float
    outage_writes: int
    behind_at_most: int
    missing_after: int
    stale_after: int
    orphaned_after: int
    jobs_after: int
    recovery_seconds: float | None
    old_order: str
    old_order_writes: int
    old_order_lost: int
    old_order_p99_ms_during: float
    old_order_p99_ms_after: float
    rate: float
    seconds: float
    plot: str | None
    dsn: str
    target: str

    @property
    def is_right(self) -> bool:
        """Whether the guarantees held, and the old order broke them."""
        nothing = (
            *(self.failed_writes, self.lost_writes, self.jobs_after),
            *(self.missing_after, self.stale_after, self.orphaned_after),
        )
        return not any(nothing) and self.behind_at_most > 0 and self.old_order_lost > 0

    @property
    def is_fast(self) -> bool:
        """Whether no request waited for the index: before, during and after the outage, each by
        itself; and whether the backlog was worked off while people wrote.
        """
        return self.slowest is None and self.recovery_seconds is not None

    @property
    def slowest(self) -> tuple[float, int] | None:
        """The largest p99 of writes beyond its limit, and the limit; None: none was."""
        phases = (
            (self.write_p99_ms_before, self.limit_ms),
            (self.write_p99_ms_during, self.limit_ms),
            (self.write_p99_ms_after, self.limit_ms_after),
        )
        return max((phase for phase in phases if phase[0] > phase[1]), default=None)

    @property
    def others(self) -> float | None:
        """The largest share of the machine that other programs used; None if it is not known."""
        known = [self.others_before, self.others_during, self.others_after]
        return max((share for share in known if share is not None), default=None)

    @property
    def was_busy(self) -> bool:
        """Whether other programs used enough of the machine that slow requests say nothing."""
        return self.others is not None and self.others >= BUSY_FROM


def run_outage(view: View, *, keep: bool, writes: int, plot: Path | None) -> Result:
    """Run the outage and return the result.

    Args:
        view: where it is shown.
        keep: leave both servers running, to be counted in from outside.
        writes: how many.
        plot: the file that the plot is written to; None draws none.

    Raises:
        ForebayError: something did not start, or ended by itself.
    """
    begun = time.monotonic()
    with view, contextlib.ExitStack() as stack:
        view.event("starting two PostgreSQL servers: one for the annotations, one for the index")
        servers = stack.enter_context(_servers(keep=keep))
        dsn, target = (_fresh_database(server) for server in servers)
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="outage-")))
        os.environ |= {"FOREBAY_DATABASE_URL": dsn, "ANNOTATIONS_INDEX_URL": target}
        loaded = _prepare(dsn, target)
        view.event(f"{loaded:,} docstrings of the standard library loaded as annotations")
        people = stack.enter_context(process_group(folder / "log"))
        machine = Machine(pid for server in servers if (pid := server.pid) is not None)
        outage = _Outage(people, view, folder, machine, dsn=dsn, target=target, writes=writes)
        stack.callback(outage.close)
        outage.run()
        drawn = None
        if plot is not None:
            from annotations.outage.plot import draw  # noqa: PLC0415 - it takes a while to load

            drawn = str(draw(outage.record, _DEADLINE_MS, plot))
        result = outage.result(begun, drawn)
    view.result(result, _how_to_look(servers, result) if keep else [])
    return result


class _Outage:
    """The services at work, cut off in the middle."""

    def __init__(
        self,
        people: ProcessGroup,
        view: View,
        folder: Path,
        machine: Machine,
        *,
        dsn: str,
        target: str,
        writes: int,
    ) -> None:
        self._processes = people
        self._view = view
        self._folder = folder
        self._machine = machine
        self._dsn, self._target = dsn, target
        self._writes = writes
        self._ledger = Ledger(dsn, target)
        self._rate = 0.0
        self._begun = 0.0
        self._left: Counts | None = None
        #: Whether the load was told to end.
        self._is_stopped = False
        self.record = Record()

    def close(self) -> None:
        self._ledger.close()

    def run(self) -> None:
        self._start()
        self._begun = time.monotonic()
        load = self._processes.start(
            "the load", "annotations.outage.load",
            *(str(self._folder / "new"), str(self._folder / "old")),
            *(str(_RATE_MAX), str(_OLD_RATE)),
        )  # fmt: skip
        listener = threading.Thread(target=self._listen, args=(load.stdout,), daemon=True)
        listener.start()
        record, counts, next_count = self.record, self._ledger.counts(), 0.0
        while True:
            done = len(record.writes())
            now = time.monotonic() - self._begun
            steady = now - record.measured_at if self._rate else 0.0
            if record.cut_at is None and steady > _BEFORE_SECONDS_MAX:
                self._writes = min(self._writes, int(done / _CUT_AT))
            elif (
                record.cut_at and not record.healed_at and now - record.cut_at > _OUTAGE_SECONDS_MAX
            ):
                self._writes = min(self._writes, int(done / _HEAL_AT))
            if (
                record.cut_at is None
                and done >= _CUT_AT * self._writes
                and steady >= _STEADY_SECONDS
            ):
                send(self._wire, "cut")
                record.cut_at = time.monotonic() - self._begun
                self._view.event(
                    ("broker and index are black holes: they accept and never answer"), "bold red"
                )
            elif record.healed_at is None and done >= _HEAL_AT * self._writes:
                send(self._wire, "heal")
                record.healed_at = time.monotonic() - self._begun
                self._view.event("broker and index answer again", "bold yellow")
            if record.ended_at is None and not listener.is_alive():
                record.ended_at = now
                if load.wait() != 0 or len(record.writes()) < self._writes:
                    raise self._processes.failure("the load")
                self._view.event("people stop writing")
            if now >= next_count or record.ended_at is not None:
                counts = self._ledger.counts()
                record.counts.append((now, counts))
                record.uses.append((now, self._machine.use()))
                # Counting has a cost, which must not slow down the load.
                next_count = now + max(0.5, 20 * (time.monotonic() - self._begun - now))
                self._look_at_the_backlog(load, now, counts)
            self._view.draw(record, counts, self._writes, _DEADLINE_MS)
            if record.ended_at is not None and counts.behind == counts.jobs == 0:
                record.equal_at = now
                self._left = counts
                self._view.event("the index is right, and no job is left", "bold green")
                break
            if now > _SECONDS_MAX:
                self._left = counts
                self._view.event(f"not right after {_SECONDS_MAX:.0f} s", "bold red")
                break
            self._processes.check()
            time.sleep(0.25)
        self._let_the_old_order_finish()

    def _look_at_the_backlog(self, load: subprocess.Popen[str], now: float, counts: Counts) -> None:
        """Let people stop when they have written enough and the backlog is worked off, or much too
        late.
        """
        record = self.record
        if record.healed_at is None or self._is_stopped:
            return
        few = max(5.0, 0.1 * self._rate)  # written in this moment
        is_caught_up = counts.jobs <= _LEFT_SECONDS * self._rate and counts.behind <= few
        if is_caught_up and record.caught_up_at is None:
            record.caught_up_at = now
            self._view.event("the backlog is worked off", "bold green")
        done = len(record.writes())
        is_late = now - record.healed_at > _CATCH_UP_SECONDS_MAX
        if is_late:
            self._writes = min(self._writes, done)
        if is_late or (is_caught_up and done >= self._writes):
            self._is_stopped = True
            with contextlib.suppress(
                OSError
            ):  # it may have ended by itself, which is noticed elsewhere
                send_line(load, "stop")

    def _start(self) -> None:
        broker = self._processes.start("the broker", "annotations.outage.broker")
        self._broker_port = int(line_of(broker))
        (self._folder / "wire").mkdir()
        there = conninfo.conninfo_to_dict(self._target)
        name = f".s.PGSQL.{there['port']}"
        self._wire = self._processes.start(
            "the wire", "annotations.outage.wire",
            f"0={self._broker_port}", f"{self._folder / 'wire' / name}={there['host']}/{name}",
        )  # fmt: skip
        self._processes.environment = {
            "FOREBAY_DATABASE_URL": self._dsn,
            "ANNOTATIONS_INDEX_URL": conninfo.make_conninfo(
                self._target, host=str(self._folder / "wire")
            ),
            "ANNOTATIONS_BROKER_PORT": line_of(self._wire),
            **_SETTINGS,
        }
        self._processes.start(
            "the worker", "forebay", "worker", "annotations.app:app", "--log-level", "error",
            # Twice a second is enough, and leaves the machine to the load.
            settings={"FOREBAY_POLL_SECONDS": "0.5", "FOREBAY_LISTEN": "never"},
        )  # fmt: skip
        self._processes.start("the consumer", "annotations.outage.old_order")
        self._processes.serve("the service", "annotations.service:service", self._folder / "new")
        self._processes.serve(
            ("the service in the old order"),
            "annotations.outage.old_order:service",
            self._folder / "old",
        )
        self._view.event(
            "two services run: row and job in one transaction; and commit, then publish"
        )

    def _listen(self, lines: Any) -> None:
        for line in lines:
            said = json.loads(line)
            if "rate" in said:
                self._rate = said["rate"]
                self.record.measured_at = time.monotonic() - self._begun
                self._view.event(f"people write {self._rate:.0f} times a second")
            for kind, at, seconds, is_done in said.get("done", []):
                self.record.requests.append(Request(kind, at - self._begun, seconds, is_done))

    def _let_the_old_order_finish(self) -> None:
        """Wait until its broker is empty: annotations that are then missing in its index are
        lost.
        """
        until = time.monotonic() + 30
        while time.monotonic() < until:
            if _waiting_in(self._broker_port) == 0:
                break
            time.sleep(0.1)
        self._left = self._ledger.counts()
        self.record.counts.append((time.monotonic() - self._begun, self._left))

    def result(self, begun: float, plot: str | None) -> Result:
        record, left = self.record, self._left
        assert left is not None
        assert record.cut_at is not None
        assert record.healed_at is not None
        writes = record.writes()
        reads = [r for r in record.requests if r.kind == "read"]
        old = [r for r in record.requests if r.kind == "old"]
        done = sum(r.is_done for r in writes)
        before = percentile(record.before(writes), 0.99)
        old_after = percentile(record.after(old), 0.99)
        return Result(
            writes=len(writes),
            failed_writes=len(writes) - done,
            lost_writes=done - self._ledger.writes(),
            deadline_ms=_DEADLINE_MS,
            limit_ms=limit_of(before),
            limit_ms_after=max(limit_of(before), round(_OLD_RATIO_MAX * old_after)),
            write_p99_ms_before=before,
            write_p99_ms_during=percentile(record.during(writes), 0.99),
            write_p99_ms_after=percentile(record.after(writes), 0.99),
            read_p99_ms_before=percentile(record.before(reads), 0.99),
            read_p99_ms_during=percentile(record.during(reads), 0.99),
            read_p99_ms_after=percentile(record.after(reads), 0.99),
            others_before=record.share_of_others(record.measured_at, record.cut_at),
            others_during=record.share_of_others(record.cut_at, record.healed_at),
            others_after=record.share_of_others(record.healed_at, record.ended_at),
            outage_seconds=round(record.healed_at - record.cut_at, 1),
            outage_writes=len(record.during(writes)),
            behind_at_most=max(counts.behind for _, counts in record.counts),
            missing_after=left.missing,
            stale_after=left.stale,
            orphaned_after=left.orphaned,
            jobs_after=left.jobs,
            recovery_seconds=(
                None
                if record.equal_at is None or record.caught_up_at is None
                else round(record.caught_up_at - record.healed_at, 1)
            ),
            old_order="commit, then publish to a stand-in for a broker, a server on TCP",
            old_order_writes=left.old_items,
            old_order_lost=left.old_missing,
            old_order_p99_ms_during=percentile(record.during(old), 0.99),
            old_order_p99_ms_after=old_after,
            rate=round(self._rate, 1),
            seconds=round(time.monotonic() - begun, 1),
            plot=plot,
            dsn=self._dsn,
            target=self._target,
        )


def _waiting_in(broker_port: int) -> int:
    import socket  # noqa: PLC0415

    with socket.create_connection(("127.0.0.1", broker_port), timeout=5) as conn:
        conn.sendall(b'{"count": null}\n')
        return int(conn.makefile().readline())


def _prepare(dsn: str, target: str) -> int:
    """Make the tables, and load what people read."""
    forebay.migrate(dsn)
    for table in ("documents", "old_documents"):
        PostgresTarget(target, table=table).create()
    with psycopg.connect(dsn) as conn:
        conn.execute(store.SCHEMA)
        conn.execute(old_order.SCHEMA)
        return store.load(conn, corpus.modules(100))


# --- servers ---


@contextlib.contextmanager
def _servers(*, keep: bool) -> Generator[tuple[EmbeddedServer, EmbeddedServer], None, None]:
    if keep:
        yield start_or_find(), start_or_find(_second_folder())
    else:
        with temporary_server() as one, temporary_server() as two:
            yield one, two


def _second_folder() -> Path:
    """Return where the index's server has its data when it is kept, beside the user's own
    server.
    """
    first = default_server().data_dir
    return first.with_name(f"{first.name}-index")


def stop_kept() -> None:
    """Stop the index's server that was kept; the other one is the user's own."""
    EmbeddedServer(_second_folder()).stop()


def _fresh_database(server: EmbeddedServer) -> str:
    with psycopg.connect(server.dsn(), autocommit=True) as conn:
        name = sql.Identifier(DATABASE)
        conn.execute(sql.SQL("drop database if exists {} with (force)").format(name))
        conn.execute(sql.SQL("create database {} template template0").format(name))
    return server.dsn(DATABASE)


def _how_to_look(servers: tuple[EmbeddedServer, EmbeddedServer], result: Result) -> list[str]:
    psql = servers[0].binaries.program("psql")
    if not Path(psql).exists():
        psql = "psql"
    return [
        "",
        "Both servers still run. The annotations, and the index's copies:",
        (
            f"  {psql} '{result.dsn}' -c 'select count(*), sum(version) from annotation where "
            f"not deleted'"
        ),
        (
            f"  {psql} '{result.target}' -c 'select count(*), sum(version) from documents "
            f"where not gone'"
        ),
        "Stop them with: forebay dev --stop; scripts/demo --outage --stop",
    ]
