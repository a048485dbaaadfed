"""console: what each page of the console costs beside very many jobs, and what viewers cost.

As many jobs wait as have ended, in 1,000 queues: see ``_console_jobs``. No worker serves a queue,
so that each of them is a problem. The console runs in another process. The pages are read in turns,
over HTTP, on one connection.

A viewer does as the script of the console does: it waits for a change and reads the overview again.
``viewers_core_share`` is what 50 viewers cost more than one, in cores, of the console and of the
server together.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import statistics
import time
from typing import TYPE_CHECKING, Any, Final

from forebay.errors import ConfigError
from forebay_bench._console_client import Console
from forebay_bench._console_jobs import BATCH, fill
from forebay_bench._measure import percentile, round_figure
from forebay_bench._processes import scripts
from forebay_bench._report import Bar, Report, Table

if TYPE_CHECKING:
    from collections.abc import Callable

    from forebay_bench._place import Place
    from forebay_bench._run import Options

_FULL_JOBS: Final = 10_000_000
_QUICK_JOBS: Final = 100_000
_QUEUES: Final = 1_000
_ROUNDS: Final = 20
_VIEWERS: Final = 50
_VIEW_SECONDS: Final = 20.0
_IDLE_SECONDS: Final = 10.0

#: By name, its address; {} is replaced by what the database has.
_PAGES: Final = {
    "overview": "",
    "queue": "queue?queue=busy",
    "queue, a month": "queue?queue=busy&span=month",
    "small queue": "queue?queue=queue_7",
    "jobs": "jobs",
    "jobs of a queue": "jobs?queue=queue_7",
    "jobs, done": "jobs?state=done",
    "jobs, dead": "jobs?state=dead",
    "jobs, running": "jobs?state=running",
    "jobs, no match": "jobs?kind=nothing",
    "jobs, no text": "jobs?contains=nothing+like+it",
    "waiting job": "job?what={waiting}",
    "dead job": "job?what={dead}",
    "correlation id": "job?what=order-42",
    "failures": "failures",
    "cause": "cause?cause={cause}",
    "workers": "workers",
    "keys": "keys",
    "schedules": "schedules",
    "endpoints": "endpoints",
    "mirrors": "mirrors",
    "database": "database",
    "events": "events",
    "doctor": "doctor",
}


def run(place: Place, options: Options, progress: Callable[[str], None]) -> Report:
    """Run the scenario."""
    if any(importlib.util.find_spec(name) is None for name in ("starlette", "jinja2", "uvicorn")):
        raise ConfigError(
            "console",
            "needs the pages, which are not installed",
            hint="pip install 'forebay[console]'",
        )
    jobs = max(BATCH, int((_FULL_JOBS if options.full else _QUICK_JOBS) * options.scale))
    share = min(1.0, options.scale)
    with contextlib.ExitStack() as stack:
        dsn = stack.enter_context(place.database("console"))
        found = fill(dsn, jobs, max(10, int(_QUEUES * share)), progress)
        (script,) = stack.enter_context(scripts("forebay_bench._console", [dsn]))
        console = stack.enter_context(contextlib.closing(Console(script, place.postmaster_pid)))
        return measure(
            console,
            {name: path.format(**found) for name, path in _PAGES.items()},
            rounds=options.rounds or max(2, int(_ROUNDS * share)),
            share=share,
            jobs=jobs,
            progress=progress,
        )


def measure(
    console: Console,
    pages: dict[str, str],
    *,
    rounds: int,
    share: float,
    jobs: int,
    progress: Callable[[str], None],
) -> Report:
    """Read each page in turns, then let viewers look, then count the statements without any."""
    millis: dict[str, list[float]] = {name: [] for name in pages}
    cpu: dict[str, list[float]] = {name: [] for name in pages}
    statements: dict[str, int] = dict.fromkeys(pages, 0)
    sizes: dict[str, int] = {}
    refused: dict[str, int] = dict.fromkeys(pages, 0)
    for number in range(-1, rounds):
        for name, path in pages.items():
            progress(f"round {number + 1} of {rounds}: {name}")
            sent, spent = console.used()
            began = time.perf_counter()
            sizes[name], is_page = console.read(path)
            seconds = time.perf_counter() - began
            after = console.used()
            if number >= 0:  # the first round opens sessions and reads pages from disk
                refused[name] += not is_page
                millis[name].append(1000 * seconds)
                cpu[name].append(1000 * (after[1] - spent))
                statements[name] = max(statements[name], after[0] - sent)
    return _report(
        {
            "jobs": jobs,
            "p95_ms": {name: percentile(found, 0.95) for name, found in millis.items()},
            "cpu_ms": {name: statistics.median(found) for name, found in cpu.items()},
            "statements": statements,
            "bytes": sizes,
            "refused": refused,
            **_viewers(console, share, progress),
        },
        rounds,
    )


def _viewers(console: Console, share: float, progress: Callable[[str], None]) -> dict[str, Any]:
    """Measure many viewers beside one, and then none."""
    costs: list[float | None] = []
    changes = 0.0
    for viewers in (1, _VIEWERS):
        progress(f"{viewers} viewers")
        before = console.used()[1]
        changes = asyncio.run(console.view(viewers, _VIEW_SECONDS * share)) / viewers
        # Per change: how many samples fall into the time differs.
        costs.append((console.used()[1] - before) / changes if changes else None)
    one, many = costs
    per_second = changes / (_VIEW_SECONDS * share)
    cores = None if one is None or many is None else max(0.0, many - one) * per_second
    progress("no viewer")
    time.sleep(1)  # what was under way ends
    before_idle = console.used()[0]
    time.sleep(_IDLE_SECONDS * share)
    return {
        "viewers_core_share": cores,
        "changes_per_s": per_second,
        "idle_statements": console.used()[0] - before_idle,
    }


def _report(figures: dict[str, Any], rounds: int) -> Report:
    rows = [
        (
            name,
            f"{figures['p95_ms'][name]:.0f}",
            f"{figures['cpu_ms'][name]:.0f}",
            str(figures["statements"][name]),
            f"{figures['bytes'][name] / 1000:.0f}",
        )
        for name in figures["p95_ms"]
    ]
    columns = ["page", "p95 ms", "CPU ms", "statements", "kB"]
    for name in ("p95_ms", "cpu_ms"):
        figures[name] = {page: round_figure(value) for page, value in figures[name].items()}
    p95 = figures["p95_ms"]
    slowest = max(p95, key=lambda name: p95[name])
    most = max(figures["statements"], key=lambda name: figures["statements"][name])
    return Report(
        figures,
        [Table(columns, rows, right=columns[1:])],
        [
            Bar(f"slowest page, p95 in ms: {slowest}", p95[slowest], at_most=100),
            Bar(
                "pages that the database did not answer in time",
                sum(figures["refused"].values()),
                at_most=0,
            ),
            Bar(f"most statements: {most}", figures["statements"][most], at_most=40),
            Bar(f"{_VIEWERS} viewers, in cores", figures["viewers_core_share"], at_most=0.05),
            Bar("statements without a viewer", figures["idle_statements"], at_most=0),
        ],
        notes=[
            f"{figures['jobs']:,} jobs wait, and as many have ended; {rounds} reads of each page",
            "CPU: median of the console and the server together, where the server is ours",
        ],
    )
