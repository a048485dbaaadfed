"""cancel: a tenth of the waiting jobs is cancelled by a filter while another queue is claimed from.

Every tenth block of jobs has the tag ``wrong``. A session enqueues, claims and settles ten jobs of another queue at a time, for as long without
the act as beside it, in turns. The act is what ``forebay jobs cancel --tag wrong`` does: a dry run, then the steps with its token. Beside the
act there is one turn only, so further dry runs, which read the same jobs, make it as long as the turns without.
"""

from __future__ import annotations

import statistics
import threading
import time
from typing import TYPE_CHECKING, Any, Final, Self

import forebay
from forebay_bench._report import Bar, Report, Table
from forebay_bench.engines.forebay_log import Log

if TYPE_CHECKING:
    from collections.abc import Callable

    from forebay_bench._place import Place
    from forebay_bench._run import Options

_QUICK_JOBS: Final = 200_000
_FULL_JOBS: Final = 1_000_000
_BLOCK_JOBS: Final = 10_000
_BATCH_JOBS: Final = 10
_QUIET_SECONDS: Final = 4.0
_FILL: Final = """\
select forebay.enqueue_many('noop', array_fill('{}'::jsonb, array[%s]), queue => 'filled', tag => %s)"""


class _Front:
    """Claims of another queue, timed, in a thread."""

    def __init__(self, dsn: str) -> None:
        self.seconds: dict[bool, list[float]] = {False: [], True: []}
        self.is_beside = False
        self._log = Log(dsn, queue="front")
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        self._log.close()

    def _run(self) -> None:
        while not self._stop.is_set():
            self._log.enqueue(_BATCH_JOBS)
            beside, started = self.is_beside, time.perf_counter()
            self._log.claim_and_settle(_BATCH_JOBS)
            self.seconds[beside].append(time.perf_counter() - started)


def run(place: Place, options: Options, progress: Callable[[str], None]) -> Report:
    """Run the scenario."""
    jobs = max(_BLOCK_JOBS * 10, int((_FULL_JOBS if options.full else _QUICK_JOBS) * options.scale))
    quiet = _QUIET_SECONDS * min(1.0, options.scale * 5)
    which = forebay.JobFilter(tag="wrong")
    with place.database("cancel") as dsn:
        log = Log(dsn, queue="filled")
        progress(f"{jobs:,} jobs are enqueued, a tenth of them wrong")
        for block in range(jobs // _BLOCK_JOBS):
            log.conn.execute(_FILL, [_BLOCK_JOBS, "wrong" if block % 10 == 4 else "right"])
        client = forebay.Client(dsn)
        with _Front(dsn) as front:
            time.sleep(quiet)
            progress("the wrong ones are counted and cancelled")
            front.is_beside = True
            started = time.perf_counter()
            plan = client.plan_change("cancel", which)
            counted = time.perf_counter()
            result = client.cancel_matching(which, token=plan.token)
            cancelled = time.perf_counter()
            while time.perf_counter() < started + 2 * quiet:
                client.plan_change("cancel", which)
            front.is_beside = False
            time.sleep(quiet)
        others = log.conn.execute(
            "select count(*) from forebay.tombstone t where not exists ("
            " select from forebay.log l where l.seq = t.job_id and l.tag = 'wrong')"
        ).fetchone()
        log.close()
    assert others is not None
    claims = {
        name: _figures(front.seconds[beside])
        for name, beside in (("without", False), ("beside", True))
    }
    figures: dict[str, Any] = {
        "jobs": jobs,
        "counted": plan.jobs,
        "cancelled": result.taken,
        "others_touched": others[0],
        "count_seconds": counted - started,
        "cancel_seconds": cancelled - counted,
        "claims": claims,
    }
    return Report(
        {"cancel": figures},
        [
            Table(
                ("jobs", "counted", "cancelled", "others", "count s", "cancel s"),
                [
                    [
                        f"{jobs:,}",
                        f"{plan.jobs:,}",
                        f"{result.taken:,}",
                        f"{others[0]:,}",
                        f"{counted - started:.1f}",
                        f"{cancelled - counted:.1f}",
                    ]
                ],
                right=("jobs", "counted", "cancelled", "others", "count s", "cancel s"),
            ),
            Table(
                ("claims", "number", "p50 ms", "p99 ms"),
                [
                    [
                        name,
                        f"{found['count']:,}",
                        f"{found['p50_ms']:.2f}",
                        f"{found['p99_ms']:.2f}",
                    ]
                    for name, found in claims.items()
                ],
                right=("number", "p50 ms", "p99 ms"),
            ),
        ],
        [
            Bar("cancelled to counted", result.taken / plan.jobs, at_least=1, at_most=1),
            Bar("other jobs touched", float(others[0]), at_most=0),
            Bar(
                "claims p99, beside to without",
                claims["beside"]["p99_ms"] / claims["without"]["p99_ms"],
                at_most=1.5,
            ),
        ],
        notes=["claims and settlements of 10 jobs of another queue, one session"],
    )


def _figures(seconds: list[float]) -> dict[str, float]:
    cuts = statistics.quantiles(seconds, n=100)
    return {"count": len(seconds), "p50_ms": cuts[49] * 1000, "p99_ms": cuts[98] * 1000}
