"""peers: what a job costs in each library, by the scenarios that compare them, one after the other.

These are ``one``, ``bulk``, ``drain``, ``trickle`` (few jobs a second, and idle workers), ``queues`` and ``transactional``, with all
libraries that can be used here: those of Python that are installed, and with node those that npm installs into the user's cache.
"""

from __future__ import annotations

import importlib
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from forebay_bench._report import Bar, Report, Table

if TYPE_CHECKING:
    from collections.abc import Callable

    from forebay_bench._place import Place
    from forebay_bench._run import Options

SCENARIOS: Final = ("one", "bulk", "drain", "trickle", "queues", "transactional")


def run(place: Place, options: Options, progress: Callable[[str], None]) -> Report:
    """Run the scenario."""
    figures: dict[str, Any] = {}
    tables: list[Table] = []
    bars: list[Bar] = []
    notes: list[str] = []
    for name in SCENARIOS:
        scenario = importlib.import_module(f"forebay_bench.scenarios.{name}")
        report: Report = scenario.run(place, options, lambda text, name=name: progress(f"{name}: {text}"))  # fmt: skip
        figures[name] = report.figures
        first, *others = report.tables
        tables += [replace(first, title=name), *others]
        bars += [replace(bar, what=f"{name}: {bar.what}") for bar in report.bars]
        notes += [note for note in report.notes if note not in notes]
    return Report(figures, tables, bars, notes)
