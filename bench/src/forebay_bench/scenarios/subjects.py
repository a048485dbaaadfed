"""subjects: standing subjects that come due again, beside the rows of an ordinary table, as FetchQ keeps them.

One per cent of the subjects is due in a minute, and another session holds an old snapshot of both databases from the start. A step takes ten due subjects, runs them, and
plans each of them again, one session each, in turns. In the table that is a pass of maintenance, which makes planned rows pending, a pick and a
completion; in Forebay a promotion, which issues the runs, a claim and a settlement. At the end ten hot subjects are due in every step. Pages that
a step reads do not depend on the speed of the machine. Before the steps the server is idle: only the duties of a worker run.
"""

from __future__ import annotations

import json
import statistics
import time
from contextlib import ExitStack
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import psycopg

from forebay.ops import protocol
from forebay.ops.claimed import ClaimedJob
from forebay_bench._maintenance import maintenance
from forebay_bench._measure import server_cpu_seconds
from forebay_bench._report import Bar, Report, Table
from forebay_bench.engines.forebay_log import Log
from forebay_bench.engines.queue import counted
from forebay_bench.scenarios.status import SCHEMA

if TYPE_CHECKING:
    from collections.abc import Callable

    from forebay_bench._place import Place
    from forebay_bench._run import Options

_SUBJECTS: Final = 1_000_000
_FULL_SUBJECTS: Final = 10_000_000
_BATCH: Final = 10
_CHUNK: Final = 20_000
#: All subjects are due once within this time: one per cent in a minute.
_ROUND_SECONDS: Final = 6000.0
_IDLE_SECONDS: Final = 5.0
_HOT_STEPS: Final = 300

_FILL_TABLE: Final = """
insert into docs (subject, status, next_iteration, payload)
select 'subject ' || i, 0, %s::timestamptz + make_interval(secs => i * %s), jsonb_build_object('i', i) from generate_series(%s::integer, %s) i"""
_PENDING: Final = """
update docs set status = 1 where subject in (
    select subject from docs where lock_upgrade is null and status = 0 and next_iteration <= clock_timestamp()
    order by next_iteration, attempts limit %s for update skip locked)"""
_PICK: Final = """
update docs set status = 2, attempts = attempts + 1, next_iteration = clock_timestamp() + interval '5 minutes'
where subject in (
    select subject from docs
    where lock_upgrade is null and status = 1 and version = 0 and next_iteration <= clock_timestamp()
    order by priority desc, next_iteration, attempts limit %s for update skip locked)
returning subject"""
_RESCHEDULE: Final = """
update docs set status = 0, attempts = 0, iterations = iterations + 1, last_iteration = clock_timestamp(),
                next_iteration = clock_timestamp() + make_interval(secs => %s)
where subject = any(%s) and lock_upgrade is null and status = 2"""
_WRITTEN: Final = """
select coalesce(sum(n_tup_ins + n_tup_upd + n_tup_del), 0)::bigint from pg_stat_user_tables"""
_HEADS: Final = (
    "engine", "pick p50 ms: first", "last", "hot", "pages: first", "last", "hot: first", "last", "rows a run", "WAL bytes a run",
)  # fmt: skip


class _Docs:
    """Subjects in a table with a status and partial indexes."""

    def __init__(self, dsn: str) -> None:
        self.conn = psycopg.connect(dsn, autocommit=True)
        self.conn.execute(SCHEMA)

    def fill(self, first: int, end: int, start: float, apart: float) -> None:
        for low in range(first, end, _CHUNK):
            high = min(low + _CHUNK, end) - 1
            self.conn.execute(_FILL_TABLE, [_instant(start), apart, low, high])
        self.conn.execute("analyze docs")

    def heat(self, subjects: int) -> None:
        """Let ten subjects be due from now on."""
        self.conn.execute(
            "update docs set next_iteration = '2000-01-01' where subject = any(%s)",
            [[f"subject {subjects - 1 - i}" for i in range(_BATCH)]],
        )

    def pick(self) -> list[str]:
        self.conn.execute(_PENDING, [_BATCH], prepare=True)
        return [row[0] for row in self.conn.execute(_PICK, [_BATCH], prepare=True).fetchall()]

    def plan(self, found: list[str], seconds: float) -> None:
        assert len(found) == _BATCH, len(found)
        self.conn.execute(_RESCHEDULE, [seconds, found], prepare=True)

    def tidy(self) -> None:
        """Autovacuum does it."""


class _Subjects:
    """The same number of subjects of Forebay."""

    def __init__(self, dsn: str) -> None:
        self._log = Log(dsn)
        self.conn = self._log.conn

    def fill(self, first: int, end: int, start: float, apart: float) -> None:
        for low in range(first, end, _CHUNK):
            rows = [
                {"kind": "noop", "queue": "bench", "subject": f"subject {i}", "args": {"i": i}, "run_at": _instant(start + i * apart)}
                for i in range(low, min(low + _CHUNK, end))
            ]  # fmt: skip
            self.conn.execute("select count(*) from forebay.push_subjects(%s)", [json.dumps(rows)])
        self.conn.execute("analyze")

    def idle(self) -> None:
        """Poll as a worker does, and see that no run is issued."""
        until = time.perf_counter() + _IDLE_SECONDS
        while time.perf_counter() < until:
            assert not self._log.ready(), "a subject was due too early"
            time.sleep(0.05)

    def heat(self, subjects: int) -> None:
        rows = [
            {"queue": "bench", "subject": f"subject {subjects - 1 - i}", "delay": 0}
            for i in range(_BATCH)
        ]
        self.conn.execute("select count(*) from forebay.upsert_subjects(%s)", [json.dumps(rows)])

    def pick(self) -> tuple[int, list[ClaimedJob]]:
        self.conn.execute("select forebay.promote_v1(%s)", [_BATCH], prepare=True)
        return self._log.claim_lane(_BATCH)

    def counted_pick(self) -> tuple[tuple[int, list[ClaimedJob]], int]:
        """Pick, and count the pages of both calls: each must be alone in its transaction."""
        _, promoted = counted(
            self.conn,
            lambda: self.conn.execute("select forebay.promote_v1(%s)", [_BATCH], prepare=True),
        )
        found, claimed = counted(self.conn, lambda: self._log.claim_lane(_BATCH))
        return found, promoted + claimed

    def plan(self, found: tuple[int, list[ClaimedJob]], seconds: float) -> None:
        claim_no, jobs = found
        assert len(jobs) == _BATCH, len(jobs)
        ended = [
            protocol.Ended(
                job.offset, "done", subject=protocol.SubjectEnd(then="again", after=seconds)
            )
            for job in jobs
        ]
        answer = self._log.run(
            protocol.settle(self._log.lease_id, [protocol.Flush(claim_no, 1, done=[], ended=ended)])
        )
        assert list(answer) == ["settled"], answer

    def tidy(self) -> None:
        for part in ("deferred", "subject_states", "subject_counts"):
            self.conn.execute("select forebay.trim_v1(%s)", [part])
        self.conn.execute("select * from forebay.summarize_v1()")


def run(place: Place, options: Options, progress: Callable[[str], None]) -> Report:
    """Run the scenario."""
    subjects = max(3000, int((_FULL_SUBJECTS if options.full else _SUBJECTS) * options.scale))
    steps = max(60, subjects // 100 // _BATCH)  # The subjects of a minute.
    figures: dict[str, Any] = {"subjects": subjects, "due": steps * _BATCH}
    with ExitStack() as stack:
        dsn = stack.enter_context(place.database("subjects"))
        ours = _Subjects(dsn)
        engines: dict[str, _Docs | _Subjects] = {
            "forebay": ours,
            "status table": _Docs(stack.enter_context(place.database("docs", migrated=False))),
        }
        due = steps * _BATCH
        for name, engine in engines.items():
            stack.callback(engine.conn.close)
            started = time.perf_counter()
            engine.fill(due, subjects, time.time() + _ROUND_SECONDS, _ROUND_SECONDS / subjects)
            figures[name] = {"pushed_per_s": (subjects - due) / (time.perf_counter() - started)}
            holder = stack.enter_context(psycopg.connect(engine.conn.info.dsn))
            holder.execute("set transaction isolation level repeatable read")
            holder.execute("select 1")
            progress(f"{name}: {subjects:,} subjects wait, and an old snapshot is held")
        figures["idle_core_share"] = _idle_share(place, dsn, ours)
        start = time.time() + 2 + due / 2000
        for engine in engines.values():
            engine.fill(0, due, start, 0.0001)
        time.sleep(max(0.0, start + due * 0.0001 + 0.5 - time.time()))
        rows = {name: _rows_written(engine.conn) for name, engine in engines.items()}
        _steps(engines, figures, steps, _ROUND_SECONDS, "")
        for name, engine in engines.items():
            figures[name]["rows_per_run"] = (_rows_written(engine.conn) - rows[name]) / due
        for engine in engines.values():
            engine.heat(subjects)
        _steps(engines, figures, max(30, int(_HOT_STEPS * min(1.0, options.scale))), 0.0, "hot_")
    found = figures["forebay"]
    table = figures["status table"]
    figures |= {
        key: found[key] for key in ("pick_p50_first_ms", "pick_p50_last_ms", "rows_per_run")
    }
    return Report(
        {"subjects": figures},
        [
            Table(
                _HEADS,
                [
                    [
                        name,
                        *[
                            f"{figures[name][key]:.2f}"
                            for key in (
                                "pick_p50_first_ms",
                                "pick_p50_last_ms",
                                "hot_pick_p50_last_ms",
                            )
                        ],
                        *[
                            f"{figures[name][key]:,.0f}"
                            for key in (
                                "pages_first",
                                "pages_last",
                                "hot_pages_first",
                                "hot_pages_last",
                            )
                        ],
                        f"{figures[name]['rows_per_run']:.1f}",
                        f"{figures[name]['wal_bytes_per_run']:,.0f}",
                    ]
                    for name in engines
                ],
                right=_HEADS[1:],
            )
        ],
        [
            Bar(
                "pick p50, last steps to first",
                found["pick_p50_last_ms"] / found["pick_p50_first_ms"],
                at_most=1.2,
            ),
            Bar(
                "pages of a step, last to first",
                found["pages_last"] / found["pages_first"],
                at_most=1.2,
            ),
            Bar(
                "the same of hot subjects",
                found["hot_pages_last"] / found["hot_pages_first"],
                at_most=1.2,
            ),
            Bar("share of a core while none is due", figures["idle_core_share"], at_most=0.05),
        ],
        notes=[
            f"{subjects:,} subjects, {steps * _BATCH:,} runs, ten a step, in turns; first and last tenth of the steps; pick: until the runs are claimed",
            f"pages of hot subjects in the table: {table['hot_pages_first']:,.0f} to {table['hot_pages_last']:,.0f}",
            f"pushed per second: forebay {found['pushed_per_s']:,.0f}, status table {table['pushed_per_s']:,.0f}",
        ],
    )


def _idle_share(place: Place, dsn: str, ours: _Subjects) -> float:
    """The share of one core that the server takes for a worker's duties and polls while no subject is due."""
    with maintenance(dsn):
        time.sleep(1.0)
        before = None if place.postmaster_pid is None else server_cpu_seconds(place.postmaster_pid)
        ours.idle()
        after = None if place.postmaster_pid is None else server_cpu_seconds(place.postmaster_pid)
    return (after - before) / _IDLE_SECONDS if before is not None and after is not None else 0.0


def _steps(
    engines: dict[str, Any], figures: dict[str, Any], steps: int, seconds: float, prefix: str
) -> None:
    """Run due subjects in turns, so that other load of the machine meets both, and add the figures."""
    picks: dict[str, list[float]] = {name: [] for name in engines}
    pages: dict[str, list[int]] = {name: [] for name in engines}
    written = {name: [0, 0, 0] for name in engines}
    for number in range(steps):
        for name, engine in engines.items():
            if number % 10 == 5:
                found, read = (
                    counted(engine.conn, engine.pick)
                    if name != "forebay"
                    else engine.counted_pick()
                )
                pages[name].append(read)
                engine.plan(found, seconds)
                continue
            before = _wal(engine.conn) if number % 100 == 0 else 0
            started = time.perf_counter()
            found = engine.pick()
            picks[name].append((time.perf_counter() - started) * 1000)
            engine.plan(found, seconds)
            if number % 100 == 0:
                written[name][0] += _wal(engine.conn) - before
                written[name][1] += _BATCH
            if number % 100 == 99:
                engine.tidy()
    tenth = max(1, steps // 11)
    for name in engines:
        few = max(1, len(pages[name]) // 10)
        figures[name] |= {
            f"{prefix}pick_p50_first_ms": statistics.median(picks[name][:tenth]),
            f"{prefix}pick_p50_last_ms": statistics.median(picks[name][-tenth:]),
            f"{prefix}pages_first": statistics.median(pages[name][:few]),
            f"{prefix}pages_last": statistics.median(pages[name][-few:]),
            f"{prefix}wal_bytes_per_run": written[name][0] / max(1, written[name][1]),
        }


def _rows_written(conn: psycopg.Connection[Any]) -> int:
    conn.execute("select pg_stat_force_next_flush()")
    row = conn.execute(_WRITTEN).fetchone()
    assert row is not None
    return int(row[0])


def _instant(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat()


def _wal(conn: psycopg.Connection[Any]) -> int:
    row = conn.execute("select pg_current_wal_insert_lsn() - '0/0'").fetchone()
    assert row is not None
    return int(row[0])
