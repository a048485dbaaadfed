"""Which scenarios there are, and running one."""

from __future__ import annotations

import contextlib
import importlib
import os
import shlex
import subprocess
import sys
import time
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from forebay_bench._machine_speed import MachineSpeed
from forebay_bench._place import open_place
from forebay_bench.peers import available

if TYPE_CHECKING:
    from collections.abc import Callable

    from forebay_bench._report import Report

#: Name, and what it measures, in the order of the list.
SCENARIOS: Final = {
    "one": "single committed enqueues, beside the same row into a plain table",
    "bulk": "a million jobs at once, beside COPY and INSERT ... SELECT into a plain table",
    "drain": "a full queue emptied by one worker process, by kind of handler",
    "queues": "1,000 queues: a drain, an idle worker and the pickup, beside one queue",
    "transactional": (
        "handlers that update a row in the transaction that completes their job, beside their "
        "own transactions"
    ),
    "steps": ("flows: a step, once, a gather, parked flows, a resumption, beside absurd and DBOS"),
    "mixed": "producers and a worker at the same time",
    "latency": "from the commit to the handler's start",
    "trickle": (
        "CPU time and write-ahead log of a job at 300 jobs a second, and the cost of 20 idle "
        "workers"
    ),
    "start": "what a process costs before its first job, and without work",
    "held": "the cost of a claim while a transaction is held open",
    "backlog": "claims and enqueues by the number of waiting jobs",
    "archive": "claims and enqueues by the number of old segments",
    "history": "searches among ended jobs, and their replay",
    "stats": "the counters beside ten million jobs, and what counting costs",
    "console": "each page of the console beside very many jobs, and 50 viewers",
    "fleet": "1 to 64 worker processes on one queue",
    "simulated": "16 to 500 simulated workers on one queue: how much of their slots' time is used",
}


#: The other engines that ``Options.compare`` may name.
_ENGINES: Final = ("classic", "que")


@dataclass(frozen=True, slots=True)
class Options:
    """How to run a scenario."""

    full: bool = False
    """The full measurement instead of a quick one of under a minute."""
    scale: float = 1.0
    """Part of the work of each round: 0.01 only tries a scenario out; its figures mean nothing."""
    rounds: int | None = None
    """Turns of each engine; None: the scenario's number."""
    compare: tuple[str, ...] | None = None
    """Which other engines and peers take part; None: all installed ones that the scenario knows."""
    peers: bool = False
    """All peers that can be used here, those of Node.js among them, and all other engines;
    ``run_scenario`` makes it ``compare``.
    """
    mix: str | None = None
    """Which mix of jobs, where a scenario has several; None: the scenario's choice."""
    holder: str | None = None
    """What holds the snapshot, where a scenario has several; None: the scenario's choice."""


def run_scenario(
    name: str,
    options: Options,
    *,
    dsn: str | None = None,
    pg_bin: str | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> tuple[Report, dict[str, Any]]:
    """Run a scenario; return its report, and the facts of the run: machine and its speed,
    settings, commit, command.

    Args:
        name: one of ``SCENARIOS``.
        options: see ``Options``.
        dsn: the server; None starts one for this run.
        pg_bin: see ``open_place``.
        progress: receives progress messages, a line at a time.

    Raises:
        ConfigError: the server cannot be used, or an engine is not installed.
        KeyError: the scenario is unknown.
    """
    if name not in SCENARIOS:
        raise KeyError(name)
    scenario = importlib.import_module(f"forebay_bench.scenarios.{name}")
    started = time.perf_counter()
    notes: list[str] = []
    if options.peers:
        progress("libraries are looked for")
        names, notes = available()
        options = replace(options, compare=(*_ENGINES, *names))
    with open_place(dsn, pg_bin) as place:
        with MachineSpeed() as speed:
            report: Report = scenario.run(place, options, progress)
        report = replace(report, notes=[*report.notes, *notes])
        facts = describe(place.facts)
    facts["machine_speed"] = speed.facts()
    facts["seconds"] = round(time.perf_counter() - started, 1)
    return report, facts


def describe(server: Any) -> dict[str, Any]:
    """Return the facts without which a figure is worthless."""
    return {
        **server,
        "forebay": version("forebay"),
        "commit": _commit(),
        "command": shlex.join(["forebay", *sys.argv[1:]]),
    }


def _commit() -> str | None:
    """The commit of the checkout this runs from; None for an installed package."""
    source = Path(__file__).resolve().parents[3]
    if not (source / ".git").exists():
        return None
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        found = subprocess.run(
            ["git", "-C", os.fspath(source), "describe", "--always", "--dirty"],
            capture_output=True,
            text=True,
            timeout=10,
            check=True,
        )
        return found.stdout.strip() or None
    return None
