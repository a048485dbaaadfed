"""start: how much a process pays before its first job, and what it holds without work.

``import forebay`` and an app with a handler are compared with ``import psycopg``, by processor time
and in turns. One job waits while ``forebay worker`` starts; the time runs from the start of the
process to the start of the job. Afterwards the worker is idle, and its memory and its connections
are counted.
"""

from __future__ import annotations

import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

import psycopg

from forebay_bench._journal import Journal
from forebay_bench._measure import in_turns, ratio_of_rounds, round_figure
from forebay_bench._processes import wait_until, workers
from forebay_bench._report import Bar, Report, Table

if TYPE_CHECKING:
    from collections.abc import Callable

    from forebay_bench._place import Place
    from forebay_bench._run import Options

_QUICK_ROUNDS: Final = 5
_FULL_ROUNDS: Final = 15

#: For connections that the start needs and that are closed again.
_REST_SECONDS: Final = 5.0

_PROGRAMS: Final = {
    "python": "pass",
    "psycopg": "import psycopg",
    "forebay": "import forebay",
    "app": "import forebay; app = forebay.App(); app.job(lambda number: None, name='work')",
}
_ENQUEUE: Final = "select forebay.enqueue('record_start', '{\"number\": 1}', 'pickup')"
#: The first process keeps what it compiled, which is the default of Python. Otherwise each start
#: compiles the library.
_WITH_BYTECODE: Final = {"PYTHONDONTWRITEBYTECODE": ""}

_CONNECTIONS: Final = (
    "select count(*) from pg_stat_activity where datname = current_database() and "
    "application_name like 'forebay %'"
)


def run(place: Place, options: Options, progress: Callable[[str], None]) -> Report:
    """Run the scenario."""
    rounds = options.rounds or (_FULL_ROUNDS if options.full else _QUICK_ROUNDS)
    for code in _PROGRAMS.values():
        _cpu_seconds(code)  # compiles the modules
    imports = in_turns(
        {name: lambda code=code: _cpu_seconds(code) for name, code in _PROGRAMS.items()},  # type: ignore[misc]  # a default binds
        rounds,
        progress,
    )
    starts, cpu, memory, connections = _starts(place, rounds, progress)
    seconds = statistics.median(starts)
    import_ratio = ratio_of_rounds(imports["forebay"], imports["psycopg"])
    app_ratio = ratio_of_rounds(imports["app"], imports["psycopg"])
    start_ratio = ratio_of_rounds(cpu, imports["psycopg"])
    rows = [
        (name, f"{statistics.median(found) * 1000:.0f}", f"{min(found) * 1000:.0f}")
        for name, found in {
            **imports,
            "worker to first job": cpu,
            "the same, elapsed": starts,
        }.items()
    ]
    return Report(
        {
            "start_to_first_job_s": round_figure(seconds),
            "start_cpu_s": round_figure(statistics.median(cpu)),
            "start_ratio": round_figure(start_ratio),
            "import_ratio": round_figure(import_ratio),
            "app_ratio": round_figure(app_ratio),
            "rss_mb": round_figure(statistics.median(memory)),
            "connections": connections,
        },
        [Table(["process", "median ms", "least ms"], rows, right=["median ms", "least ms"])],
        [
            Bar("start of a worker to its first job, s", seconds, at_most=0.2),
            Bar("import forebay / import psycopg", import_ratio, at_most=1.4),
            Bar("memory of an idle worker, MB", statistics.median(memory), at_most=45.0),
            Bar("connections of an idle worker", float(connections), at_most=3.0),
        ],
        notes=[
            (
                "python, psycopg, forebay and app: processor time of a process that does only "
                "this, the interpreter included"
            ),
            (
                "app: import forebay, an App and a handler; start_ratio: processor time of a "
                "worker to its first job / import psycopg"
            ),
        ],
    )


def _starts(
    place: Place, rounds: int, progress: Callable[[str], None]
) -> tuple[list[float], list[float], list[float], int]:
    """Return, of workers started one after another, the seconds to the first job, the processor
    time until then, the memory at rest in MB, and the connections at rest.
    """
    starts, cpu, memory, connections = [], [], [], 0
    with tempfile.TemporaryDirectory(prefix="forebay-bench-") as folder:
        for number in range(rounds + 1):
            progress(f"worker {number} of {rounds} starts")
            notes = Journal(Path(folder) / f"notes{number}")
            settings = {"FOREBAY_QUEUE": "pickup", **notes.environment, **_WITH_BYTECODE}
            with (
                place.database("start") as dsn,
                workers(dsn, settings=settings) as processes,
                psycopg.connect(dsn, autocommit=True) as conn,
            ):
                conn.execute(_ENQUEUE)
                began = time.monotonic()
                processes.start(wait=False)
                wait_until(lambda notes=notes: notes.count, 60.0, ("the first job runs"))  # type: ignore[misc]  # a default binds
                used = _cpu_of(processes.members[0].pid)
                if number == 0:
                    continue  # the first one compiles
                starts.append(notes.read()[0][1] - began)
                cpu.append(used)
                memory.append(_resident_mb(processes.members[0].pid))
                if number == rounds:
                    time.sleep(_REST_SECONDS)
                    row = conn.execute(_CONNECTIONS).fetchone()
                    assert row is not None
                    connections = int(row[0])
    return starts, cpu, memory, connections


def _cpu_seconds(code: str) -> float:
    """Return the processor time of a new interpreter that runs a text."""
    environment = {**os.environ, **_WITH_BYTECODE}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-c", code], check=True, env=environment)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def _cpu_of(pid: int) -> float:
    """Return the processor time of a process so far, in seconds; to a hundredth."""
    user, system = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


def _resident_mb(pid: int) -> float:
    """Return the resident memory of a process, in MB of 2 to the power of 20 bytes."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20
