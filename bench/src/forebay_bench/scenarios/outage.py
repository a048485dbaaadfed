"""outage: the server is killed and comes back; how soon do jobs run again?

Three worker processes with default settings. For each downtime all processes of the server are killed at once, and the server is
started after that time. From the moment at which it accepts connections the scenario measures

- ``first job``: until a handler starts a job that was enqueued at that moment
- ``revoked``: until the lease of a worker that held a long job is revoked, if the outage was longer than the lease

Quick: 1, 5 and 28 s. ``--full``: twenty outages of 5 to 90 s.
"""

from __future__ import annotations

import contextlib
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import psycopg

from forebay.embedded import EmbeddedServer
from forebay.errors import ForebayError
from forebay_bench._journal import Journal
from forebay_bench._place import SERVER_SETTINGS
from forebay_bench._processes import Workers, wait_until, workers
from forebay_bench._report import Bar, Report, Table

if TYPE_CHECKING:
    from collections.abc import Callable

    from forebay_bench._place import Place
    from forebay_bench._run import Options

_DOWNTIMES: Final = (1.0, 5.0, 28.0)
_DOWNTIMES_FULL: Final = (
    (5.0,) * 4 + (10.0,) * 4 + (20.0,) * 4 + (30.0,) * 4 + (60.0,) * 3 + (90.0,)
)

_WORKERS: Final = 3

#: A worker gives its lease up after this time without an answer: lease_seconds less lease_margin_seconds.
_TRUSTED_SECONDS: Final = 25.0

_FIRST_JOB_SECONDS_MAX: Final = 2.0
_REVOKED_SECONDS_MAX: Final = 8.0
_WAIT_SECONDS: Final = 90.0

_ENQUEUE: Final = "select forebay.enqueue('record_effect', jsonb_build_object('entry', %s::bigint, 'seconds', %s::float8), 'crash')"
_LEASE_OF: Final = (
    "select lease_id from forebay.lease where closed_at is null and worker ="
    " (select worker from forebay.job(%s))"
)


def run(place: Place, options: Options, progress: Callable[[str], None]) -> Report:
    """Run the scenario.

    Raises:
        ForebayError: the benchmark did not start the server, so it must not kill it.
    """
    if place.data_dir is None:
        raise ForebayError("the scenario kills the server: leave out --dsn")
    settings = {"dynamic_shared_memory_type": "mmap", **SERVER_SETTINGS}
    server = EmbeddedServer(place.data_dir, place.bin_dir, extra_settings=settings)
    downtimes = [
        seconds * options.scale for seconds in (_DOWNTIMES_FULL if options.full else _DOWNTIMES)
    ]
    rows: list[tuple[float, float, float | None]] = []
    with tempfile.TemporaryDirectory(prefix="forebay-bench-") as folder:
        journal = Journal(Path(folder) / "notes")
        environment = {"FOREBAY_QUEUE": "crash", **journal.environment}
        with (
            place.database("outage") as dsn,
            workers(dsn, concurrency=5, settings=environment) as processes,
        ):
            processes.start(_WORKERS)
            for number, downtime in enumerate(downtimes, 1):
                progress(f"outage {number} of {len(downtimes)}, {downtime:g} s")
                first, revoked = _outage(
                    server, dsn, processes, journal, number=number, downtime=downtime
                )
                rows.append((downtime, first, revoked))
    return _report(rows)


def _outage(
    server: EmbeddedServer,
    dsn: str,
    processes: Workers,
    journal: Journal,
    *,
    number: int,
    downtime: float,
) -> tuple[float, float | None]:
    """Make one outage; return the seconds until the first job, and until the revocation if there is one."""
    with psycopg.connect(dsn, autocommit=True) as conn:
        row = conn.execute(_ENQUEUE, [-number, 600.0]).fetchone()
        assert row is not None
        (long_job,) = row
        lease = wait_until(
            lambda: conn.execute(_LEASE_OF, [long_job]).fetchone(), _WAIT_SECONDS, "a job runs"
        )
        # The claim must survive the kill.
        conn.execute("select pg_switch_wal()")
        server.kill()
    time.sleep(downtime)
    starter = threading.Thread(target=server.start)
    starter.start()
    found = wait_until(lambda: _connected(dsn), _WAIT_SECONDS, "the server accepts connections")
    accepted_at = time.monotonic()
    with found[0] as conn:
        conn.execute(_ENQUEUE, [number, 0.0])
        began = wait_until(lambda: _started(journal, number), _WAIT_SECONDS, "the first job runs")
        assert began is not None
        revoked = None
        if downtime > _TRUSTED_SECONDS:
            query = "select 1 from forebay.lease where lease_id = %s and closed_at is not null"
            wait_until(
                lambda: conn.execute(query, lease).fetchone(), _WAIT_SECONDS, "it is revoked"
            )
            revoked = time.monotonic() - accepted_at
        conn.execute("select forebay.cancel(%s)", [long_job])
    starter.join()
    processes.raise_when_one_ended()
    return max(0.0, began - accepted_at), revoked


def _connected(dsn: str) -> list[psycopg.Connection[Any]]:
    with contextlib.suppress(psycopg.OperationalError):
        return [psycopg.connect(dsn, autocommit=True)]
    return []


def _started(journal: Journal, number: int) -> float | None:
    return next((at for found, at in journal.read() if found == number), None)


def _report(rows: list[tuple[float, float, float | None]]) -> Report:
    firsts = [first for _, first, _ in rows]
    revoked = [seconds for _, _, seconds in rows if seconds is not None]
    figures = {
        "outages": len(rows),
        "first_job_seconds": [round(first, 2) for first in firsts],
        "revoked_seconds": [round(seconds, 2) for seconds in revoked],
    }
    table = Table(
        ["downtime, s", "first job, s", "revoked, s"],
        [
            (f"{downtime:g}", f"{first:.2f}", "" if seconds is None else f"{seconds:.2f}")
            for downtime, first, seconds in rows
        ],
        right=["downtime, s", "first job, s", "revoked, s"],
    )
    bars = [
        Bar("slowest first job, s", round(max(firsts), 2), at_most=_FIRST_JOB_SECONDS_MAX),
    ]
    if revoked:
        bars.append(
            Bar("slowest revocation, s", round(max(revoked), 2), at_most=_REVOKED_SECONDS_MAX)
        )
    notes = ["from the moment at which the server accepts connections"]
    return Report(figures, [table], bars, notes)
