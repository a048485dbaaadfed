"""slots: how many of the slots of a limit run a handler, while workers are killed now and then.

Four worker processes serve two queues with jobs of 100 ms, more than they can do: in one queue a limit key has five slots, the other
queue has five slots itself. Every few seconds one worker is killed (SIGKILL) and replaced. Its jobs hold their slots until its lease
is revoked: how long is read from the database, and shown apart, since no job may take their place before.

A handler counts as 100 ms.
"""

from __future__ import annotations

import random
import tempfile
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import psycopg

from forebay.errors import ForebayError
from forebay_bench._journal import Journal
from forebay_bench._measure import round_figure
from forebay_bench._processes import Workers, wait_until, workers
from forebay_bench._report import Bar, Report, Table
from forebay_bench.jobs import SLOW_SECONDS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from forebay_bench._place import Place
    from forebay_bench._run import Options

_SLOTS: Final = 5
_WORKERS: Final = 4
_CONCURRENCY: Final = 10
_KILL_EVERY_SECONDS: Final = 20.0
_QUICK_SECONDS: Final = 30.0
_FULL_SECONDS: Final = 180.0
#: Of the load before the measurement: workers that have just started measure their handlers.
_WARM_SECONDS: Final = 3.0
_WAIT_SECONDS: Final = 60.0
#: How long the jobs last beyond what is planned.
_SPARE_SECONDS: Final = 60.0

#: A queue, its limit, and the limit key of its jobs. The number of a job is the place of its queue here.
_QUEUES: Final = (
    ("slots_key", "key_concurrency", "tenant"),
    ("slots_queue", "concurrency", None),
)

_FILL: Final = """
select forebay.enqueue_many(jsonb_agg(
    jsonb_build_object('kind', 'wait_a_little', 'queue', %s::text, 'args', jsonb_build_object('number', %s::integer))
    || case when %s::text is not null then jsonb_build_object('limit_key', %s::text) else '{}' end))
from generate_series(1, %s) i
"""

#: The slots of a killed worker: jobs of its batches that no settlement before has, and how long until its lease was revoked. The revocation
#: settles them too.
_HELD: Final = """
select array_position(%(queues)s::text[], g.queue) - 1,
       sum((select count(*) from generate_subscripts(b.seqs, 1) o
            where not exists (select from forebay.settlement s where s.lease_id = b.lease_id and s.claim_no = b.claim_no and s.settled_at < %(killed_at)s
                                and (s.offsets is null or o = any (s.offsets)))))
       * extract(epoch from max(e.closed_at) - %(killed_at)s)
from forebay.lease e
join forebay.batch b on b.lease_id = e.lease_id
join forebay.queue_group g on g.group_id = b.group_id
where split_part(e.worker, ':', 2)::integer = %(pid)s and g.queue = any (%(queues)s)
group by g.queue
"""

_REVOKED: Final = """
select bool_and(closed_at is not null) from forebay.lease where split_part(worker, ':', 2)::integer = %s
"""


@dataclass
class Share:
    """Of the slots of one queue, the shares of their time."""

    used: float
    held: float
    """By jobs of killed workers until their leases were revoked."""

    @property
    def of_the_rest(self) -> float:
        """How much of the time in which no killed worker held them was used."""
        return self.used / (1 - self.held) if self.held < 1 else 0.0


def run(place: Place, options: Options, progress: Callable[[str], None]) -> Report:
    """Run the scenario."""
    seconds = (_FULL_SECONDS if options.full else _QUICK_SECONDS) * options.scale
    names = [name for name, _, _ in _QUEUES]
    with tempfile.TemporaryDirectory(prefix="forebay-bench-") as folder:
        notes = Journal(Path(folder) / "notes")
        settings = {"FOREBAY_QUEUE": ",".join(names), **notes.environment}
        with (
            place.database("slots") as dsn,
            workers(dsn, concurrency=_CONCURRENCY, settings=settings) as worker_processes,
            psycopg.connect(dsn, autocommit=True) as conn,
        ):
            progress("workers start")
            worker_processes.start(_WORKERS)
            lasts = _WARM_SECONDS + 2 * seconds + _SPARE_SECONDS
            for number, (name, limit, key) in enumerate(_QUEUES):
                conn.execute(f"select forebay.limit_queue(%s, {limit} => %s)", [name, _SLOTS])
                count = int(lasts * _SLOTS / SLOW_SECONDS)
                conn.execute(_FILL, [name, number, key, key, count])
            wait_until(partial(_has_started, notes), _WAIT_SECONDS, "jobs of both queues run")
            time.sleep(min(_WARM_SECONDS, seconds))
            progress("no worker is killed")
            quiet = _measure(notes, conn, seconds / 3, None, progress)
            killed = _measure(notes, conn, seconds, worker_processes, progress)
            row = conn.execute(
                "select min(ready) from forebay.depth() where queue = any (%s)", [names]
            ).fetchone()
            if row is None or not row[0]:
                raise ForebayError("the slots ran out of jobs during the measurement")
            for worker in worker_processes.members:
                worker.kill()  # An orderly end is not needed, since the database is dropped.
    return _report(quiet, *killed)


def _has_started(notes: Journal) -> bool:
    return {number for number, _ in notes.read()} == set(range(len(_QUEUES)))


def _measure(
    notes: Journal,
    conn: psycopg.Connection[Any],
    seconds: float,
    worker_processes: Workers | None,
    progress: Callable[[str], None],
) -> tuple[list[Share], int]:
    """Return what became of the slots in a time, and how many workers were killed in it."""
    before, began = notes.count, time.monotonic()
    killed: list[tuple[int, object]] = []
    if worker_processes is not None:
        parts = max(1, int(seconds // _KILL_EVERY_SECONDS))
        for part in range(parts):  # In the middle of each part.
            time.sleep(max(0.0, began + (part + 0.5) * seconds / parts - time.monotonic()))
            killed.append(_kill(conn, worker_processes))
            progress(f"{len(killed)} workers killed")
    time.sleep(max(0.0, began + seconds - time.monotonic()))
    took = time.monotonic() - began
    ended = [number for number, at in notes.read(before) if at < began + took]
    slots_seconds = _SLOTS * took
    held = [0.0] * len(_QUEUES)
    for pid, killed_at in killed:
        wait_until(partial(_is_revoked, conn, pid), _WAIT_SECONDS, "a killed worker's lease ends")
        parameters = {
            "pid": pid,
            "killed_at": killed_at,
            "queues": [name for name, _, _ in _QUEUES],
        }
        for place, slot_seconds in conn.execute(_HELD, parameters).fetchall():
            held[place] += float(slot_seconds)
    return [
        Share(ended.count(number) * SLOW_SECONDS / slots_seconds, held[number] / slots_seconds)
        for number in range(len(_QUEUES))
    ], len(killed)


def _kill(conn: psycopg.Connection[Any], worker_processes: Workers) -> tuple[int, object]:
    """Kill a worker and replace it; return its process id, and when that was by the server's clock."""
    worker_processes.raise_when_one_ended()
    victim = random.randrange(len(worker_processes.members))
    pid = worker_processes.members[victim].pid
    worker_processes.members[victim].kill()
    row = conn.execute("select clock_timestamp()").fetchone()
    assert row is not None
    worker_processes.restart(victim)
    return pid, row[0]


def _is_revoked(conn: psycopg.Connection[Any], pid: int) -> bool:
    row = conn.execute(_REVOKED, [pid]).fetchone()
    return row is not None and row[0] is not False


def _report(quiet: tuple[list[Share], int], shares: Sequence[Share], kills: int) -> Report:
    names = ["key", "queue"]
    figures = {
        name: {
            "used_quiet": round_figure(without.used),
            "used": round_figure(share.used),
            "held_by_killed": round_figure(share.held),
            "used_of_the_rest": round_figure(share.of_the_rest),
        }
        for name, without, share in zip(names, quiet[0], shares, strict=True)
    }
    columns = ["limit of 5 of", "no kills", "with kills", "held by killed", "used of the rest"]
    rows = [
        (name, *(f"{value:.3f}" for value in found.values())) for name, found in figures.items()
    ]
    bars = [
        Bar(f"limit of a {name}: slots that run a handler, {when}", value, at_least=0.95)
        for name, without, share in zip(names, quiet[0], shares, strict=True)
        for when, value in (("no kills", without.used), ("with kills", share.of_the_rest))
    ]
    return Report(
        {**figures, "kills": kills},
        [Table(columns, rows, right=columns[1:])],
        bars,
        notes=[
            f"{_WORKERS} workers of {_CONCURRENCY} slots serve both queues at the same time, each with {_SLOTS} slots; {kills} workers killed",
            "a handler counts as 100 ms, even if a busy machine makes it wait longer",
            "held by killed: jobs of a killed worker until its lease was revoked; no other job may have their slots",
        ],
    )
