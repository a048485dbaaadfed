"""crash: load, and worker processes killed in the middle of it; then an audit of every job.

Producers in separate processes write rows and enqueue jobs in one transaction, and roll some of them back, whole or
to a savepoint. Worker processes with default settings run the jobs. Every three seconds one of them is killed (SIGKILL) and
replaced. ``--full`` also kills the server, all its processes at once, if the benchmark started it.

After the load the scenario waits until no job is claimed or waiting. Then it compares the result by plain SQL
with the records of producers and handlers (``_audit``):

- ``counted``: jobs whose transaction committed
- ``lost``: committed jobs that took no effect, and commits that were confirmed and are gone
- ``phantom``: effects of transactions that were rolled back
- ``double``: jobs that ended for good more than once, and effects that were applied twice by a handler whose transaction
  also completes the job

A handler outside such a transaction may run again after a kill; the guarantees allow that, and it is counted as ``run_again``.
"""

from __future__ import annotations

import contextlib
import random
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import psycopg

from forebay.embedded import EmbeddedServer
from forebay.errors import ForebayError
from forebay_bench._audit import SCHEMA, draw_up
from forebay_bench._journal import Journal
from forebay_bench._place import SERVER_SETTINGS
from forebay_bench._processes import Workers, scripts, wait_until, workers
from forebay_bench._report import Bar, Report, Table
from forebay_bench._writers import NUMBERS

if TYPE_CHECKING:
    from collections.abc import Callable

    from forebay_bench._place import Place
    from forebay_bench._run import Options

_WRITERS: Final = 3
_WORKERS: Final = 3
_CONCURRENCY: Final = 5

_KILL_EVERY_SECONDS: Final = 3.0

#: Every third kill of a worker is replaced by a kill of the server.
_SERVER_KILL_EVERY: Final = 3

#: Leases of killed workers are noticed after some seconds, backoffs of their jobs come on top.
_REST_SECONDS: Final = 300.0

#: Jobs that are enqueued in bulk where the database is kept.
_KEPT_JOBS: Final = 100_000

_MORE: Final = """
with entry as (
    insert into ledger.entry (entry, effect_in_transaction) select i, false from generate_series(%(first)s::bigint, %(last)s::bigint) i returning entry)
select forebay.enqueue_many('record_effect', array(select jsonb_build_object('entry', e.entry, 'seconds', 0.0) from entry e order by e.entry), 'crash')
"""

_UNFINISHED: Final = "select coalesce(sum(scheduled + ready + claimed + running + retrying), -1)::bigint from forebay.depth('crash')"


def run(place: Place, options: Options, progress: Callable[[str], None]) -> Report:
    """Run the scenario."""
    seconds = max(1.0, (90.0 if options.full else 12.0) * options.scale)
    seed = str(time.time_ns())
    server = _server(place) if options.full else None
    with tempfile.TemporaryDirectory(prefix="forebay-bench-") as folder:
        notes = Journal(Path(folder) / "notes")
        settings = {"FOREBAY_QUEUE": "crash", **notes.environment}
        with (
            place.database("crash", keep=options.keep) as dsn,
            workers(dsn, concurrency=_CONCURRENCY, settings=settings) as worker_processes,
        ):
            with psycopg.connect(dsn, autocommit=True) as conn:
                conn.execute(SCHEMA)
            progress("workers start")
            worker_processes.start(_WORKERS)
            account: dict[str, list[int]] = {"committed": [], "rolled back": [], "in doubt": []}
            arguments = ([dsn, str(number), seed] for number in range(1, _WRITERS + 1))
            with scripts("forebay_bench._writers", *arguments) as writers:
                began = time.monotonic()
                kills, server_kills = _kill(worker_processes, notes, server, seconds, progress)
                for writer in writers:
                    writer.send("stop")
                for writer in writers:
                    answer = writer.read_message()
                    if answer["failures"]:
                        raise ForebayError(f"a producer failed: {answer['failures'][0]}")
                    for outcome, entries in account.items():
                        entries.extend(answer[outcome.replace(" ", "_")])
            if options.keep:
                progress("more jobs, in bulk")
                account["committed"].extend(
                    _enqueue_more(dsn, max(1, int(_KEPT_JOBS * options.scale)))
                )
                kills += _kill(worker_processes, notes, None, seconds, progress)[0]
            progress("waiting until everything is done")
            wait_until(lambda: _unfinished(dsn) == 0, _REST_SECONDS, "everything is done")
            worker_processes.raise_when_one_ended()
            took = time.monotonic() - began
            progress("audit")
            with psycopg.connect(dsn, autocommit=True) as conn:
                found = draw_up(conn, account, (number for number, _ in notes.read()))
    found["double"] = found["settled_twice"] + found["applied_twice"]
    report = _report(found, kills, server_kills, took, can_kill_server=server is not None)
    if not options.keep:
        return report
    figures = {**report.figures, "dsn": dsn}
    return replace(report, figures=figures, notes=[*report.notes, f"the database was kept: {dsn}"])


def _enqueue_more(dsn: str, jobs: int) -> range:
    """Enqueue many jobs in one transaction; return their entries."""
    first = (_WRITERS + 1) * NUMBERS
    with psycopg.connect(dsn) as conn:
        conn.execute(_MORE, {"first": first, "last": first + jobs - 1})
    return range(first, first + jobs)


def _server(place: Place) -> EmbeddedServer | None:
    """Return control of the server, if the benchmark started it."""
    if place.data_dir is None:
        return None
    settings = {"dynamic_shared_memory_type": "mmap", **SERVER_SETTINGS}
    return EmbeddedServer(place.data_dir, place.bin_dir, extra_settings=settings)


def _kill(
    worker_processes: Workers,
    notes: Journal,
    server: EmbeddedServer | None,
    seconds: float,
    progress: Callable[[str], None],
) -> tuple[int, int]:
    """Kill workers for a time, and the server if it can be controlled; return how many of each."""
    kills = server_kills = 0
    every = min(_KILL_EVERY_SECONDS, seconds / 2)
    end = time.monotonic() + seconds
    while time.monotonic() + every < end or not kills:
        seen = notes.count
        time.sleep(every)
        # An unused process is not killed.
        wait_until(lambda seen=seen: notes.count > seen, _REST_SECONDS, "jobs are run")  # type: ignore[misc]
        worker_processes.raise_when_one_ended()
        if server is not None and (kills + server_kills) % _SERVER_KILL_EVERY == 2:
            server.kill()
            server.start()
            server_kills += 1
        else:
            victim = random.randrange(len(worker_processes.members))
            worker_processes.members[victim].kill()
            worker_processes.restart(victim)
            kills += 1
        progress(f"{kills} workers killed, the server {server_kills} times")
    return kills, server_kills


def _unfinished(dsn: str) -> int | None:
    """Return how many jobs have not ended; None while the server recovers."""
    with contextlib.suppress(psycopg.OperationalError):
        with psycopg.connect(dsn, autocommit=True) as conn:
            row = conn.execute(_UNFINISHED).fetchone()
        return int(row[0]) if row else None
    return None


def _report(
    found: dict[str, int], kills: int, server_kills: int, took: float, *, can_kill_server: bool
) -> Report:
    figures: dict[str, Any] = {
        **{name: found[name] for name in ("counted", "lost", "phantom", "double")},
        "settled_twice": found["settled_twice"],
        "applied_twice": found["applied_twice"],
        "run_again": found["run_again"],
        "sent_back": found["sent_back"],
        "dead": found["dead"],
        "rolled_back": found["rolled_back"],
        "in_doubt": found["in_doubt"],
        "worker_kills": kills,
        "server_kills": server_kills,
        "seconds": round(took, 1),
    }
    labels = {
        "counted": "committed jobs",
        "lost": "lost",
        "phantom": "phantom",
        "double": "ended or applied twice",
        "rolled_back": "rolled back",
        "in_doubt": "commits whose answer was lost",
        "worker_kills": "worker processes killed",
        "server_kills": "times the server was killed",
        "sent_back": "jobs sent back from lost leases",
        "run_again": "of them run again outside a transaction",
        "dead": "dead letters",
    }
    rows = [(label, f"{figures[name]:,}") for name, label in labels.items()]
    notes = [
        "lost, phantom and double are counted by SQL against the records of producers and handlers",
        "a handler outside the completing transaction may run again after a kill",
    ]
    if not can_kill_server:
        notes.append("the server is killed with --full only, and only if the benchmark started it")
    bars = [Bar(name, found[name], at_most=0) for name in ("lost", "phantom", "double")]
    return Report(figures, [Table(["", "jobs"], rows, right=["jobs"])], bars, notes)
