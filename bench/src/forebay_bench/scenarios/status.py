"""status: picks from a table with a status column and partial indexes, as FetchQ keeps a queue, beside claims from the log.

Both in one run, one session each, while another session holds an old snapshot of both databases. A step takes ten jobs and completes
them. In the table that is an update for the pick and one for the completion, and each moves the row from one partial index to another. FetchQ also
appends its counters, which are left out here. Autovacuum is on, as usual, and the maintenance of a worker
runs beside the log. Pages that a pick reads do not depend on the speed of the machine.
"""

from __future__ import annotations

import statistics
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Final

import psycopg

from forebay_bench._maintenance import maintenance
from forebay_bench._report import Bar, Report, Table
from forebay_bench.engines.forebay_log import Log
from forebay_bench.engines.queue import counted

if TYPE_CHECKING:
    from collections.abc import Callable

    from forebay_bench._place import Place
    from forebay_bench._run import Options

_QUICK_JOBS: Final = 20_000
_FULL_JOBS: Final = 100_000
_BATCH: Final = 10

#: The tables and indexes of a queue of FetchQ 4, with other names. Status: 0 planned, 1 pending, 2 active, 3 completed.
SCHEMA: Final = """
create table docs (
    subject        varchar(50) primary key,
    version        integer not null default 0,
    priority       integer not null default 0,
    status         integer not null default 0,
    attempts       integer not null default 0,
    iterations     bigint not null default 0,
    next_iteration timestamptz not null,
    lock_upgrade   timestamptz,
    created_at     timestamptz not null default now(),
    last_iteration timestamptz,
    payload        jsonb not null
);
create index docs_for_pick on docs (priority desc, next_iteration, attempts) where lock_upgrade is null and status = 1 and version = 0;
create index docs_for_pnd on docs (next_iteration, attempts) where lock_upgrade is null and status = 0;
create index docs_for_orp on docs (next_iteration, attempts) where lock_upgrade is null and status = 2 and attempts < 5;
create index docs_for_dod on docs (next_iteration, attempts) where lock_upgrade is null and status = 2 and attempts >= 5;
create index docs_for_ups on docs (subject) where lock_upgrade is null and status <> 2;
"""
_PUSH: Final = """\
insert into docs (subject, status, next_iteration, payload)
select gen_random_uuid()::text, 1, clock_timestamp(), jsonb_build_object('i', i) from generate_series(1, %s) i"""
_PICK: Final = """\
update docs set status = 2, attempts = attempts + 1, next_iteration = now() + interval '5 minutes', last_iteration = now()
where subject in (
    select subject from docs
    where lock_upgrade is null and status = 1 and version = 0 and next_iteration <= now()
    order by priority desc, next_iteration, attempts limit %s for update skip locked)
returning subject, payload"""
_COMPLETE: Final = """\
update docs set status = 3, attempts = 0, iterations = iterations + 1, next_iteration = '2970-01-01', last_iteration = now()
where subject = any(%s) and lock_upgrade is null and status = 2"""


_HEADS: Final = (
    "engine", "pick p50 ms: first", "last", "pages of a pick: first", "last", "WAL bytes a job",
)  # fmt: skip


class _Docs:
    """A queue in such a table."""

    def __init__(self, dsn: str) -> None:
        self.conn = psycopg.connect(dsn, autocommit=True)
        self.conn.execute(SCHEMA)

    def fill(self, jobs: int) -> None:
        self.conn.execute(_PUSH, [jobs])
        self.conn.execute("analyze docs")

    def step(self) -> float:
        started = time.perf_counter()
        found = self._pick()
        seconds = time.perf_counter() - started
        self._complete(found)
        return seconds

    def pages_of_step(self) -> int:
        found, pages = counted(self.conn, self._pick)
        self._complete(found)
        return pages

    def _pick(self) -> list[Any]:
        return self.conn.execute(_PICK, [_BATCH], prepare=True).fetchall()

    def _complete(self, found: list[Any]) -> None:
        assert len(found) == _BATCH
        self.conn.execute(_COMPLETE, [[subject for subject, _ in found]], prepare=True)


class _Jobs:
    """The same number of jobs in the log."""

    def __init__(self, dsn: str) -> None:
        self._log = Log(dsn)
        self.conn = self._log.conn

    def fill(self, jobs: int) -> None:
        self.conn.execute(
            "select forebay.enqueue_many('noop', array(select jsonb_build_object('i', i) from generate_series(1, %s) i), 'bench')",
            [jobs],
        )

    def step(self) -> float:
        seconds, jobs = self._log.claim_and_settle(_BATCH)
        assert jobs == _BATCH
        return seconds

    def pages_of_step(self) -> int:
        return self._log.pages_of_claim(_BATCH)


def run(place: Place, options: Options, progress: Callable[[str], None]) -> Report:
    """Run the scenario."""
    jobs = max(1000, int((_FULL_JOBS if options.full else _QUICK_JOBS) * options.scale))
    figures: dict[str, Any] = {"jobs": jobs}
    with ExitStack() as stack:
        engines: dict[str, _Docs | _Jobs] = {
            "forebay": _Jobs(stack.enter_context(place.database("log"))),
            "status table": _Docs(stack.enter_context(place.database("docs", migrated=False))),
        }
        seconds: dict[str, list[float]] = {name: [] for name in engines}
        pages: dict[str, list[int]] = {name: [] for name in engines}
        written: dict[str, int] = dict.fromkeys(engines, 0)
        stack.enter_context(maintenance(engines["forebay"].conn.info.dsn))
        for name, engine in engines.items():
            stack.callback(engine.conn.close)
            engine.fill(jobs)
            holder = stack.enter_context(psycopg.connect(engine.conn.info.dsn))
            holder.execute("set transaction isolation level repeatable read")
            holder.execute("select 1")
            progress(f"{name}: {jobs:,} jobs wait, and an old snapshot is held")
        steps = jobs // _BATCH
        for number in range(steps):
            # In turns, so that other load of the machine meets both.
            for name, engine in engines.items():
                if number % 10 == 5:
                    pages[name].append(engine.pages_of_step())
                    continue
                before = _wal(engine.conn) if number % 100 == 0 else 0
                seconds[name].append(engine.step())
                if number % 100 == 0:
                    written[name] += _wal(engine.conn) - before
    sampled = len(range(0, steps, 100)) * _BATCH
    tenth = max(1, steps // 11)
    for name in engines:
        first = statistics.median(seconds[name][:tenth]) * 1000
        last = statistics.median(seconds[name][-tenth:]) * 1000
        figures[name] = {
            "pick_p50_first_ms": first,
            "pick_p50_last_ms": last,
            "ratio": last / first,
            "pages_first": statistics.median(pages[name][: max(1, len(pages[name]) // 10)]),
            "pages_last": statistics.median(pages[name][-max(1, len(pages[name]) // 10) :]),
            "wal_bytes_per_job": written[name] / sampled,
        }
    return Report(
        {"status": figures},
        [
            Table(
                _HEADS,
                [
                    [
                        name,
                        f"{figures[name]['pick_p50_first_ms']:.2f}",
                        f"{figures[name]['pick_p50_last_ms']:.2f}",
                        f"{figures[name]['pages_first']:,.0f}",
                        f"{figures[name]['pages_last']:,.0f}",
                        f"{figures[name]['wal_bytes_per_job']:,.0f}",
                    ]
                    for name in engines
                ],
                right=_HEADS[1:],
            )
        ],
        [
            Bar(
                "pages of a pick at the end, table to log",
                figures["status table"]["pages_last"] / figures["forebay"]["pages_last"],
                at_least=5,
            )
        ],
        notes=[
            f"{jobs:,} jobs, ten a step, in turns; first and last tenth of the steps; WAL of pick and completion"
        ],
    )


def _wal(conn: psycopg.Connection[Any]) -> int:
    row = conn.execute("select pg_current_wal_insert_lsn() - '0/0'").fetchone()
    assert row is not None
    return int(row[0])
