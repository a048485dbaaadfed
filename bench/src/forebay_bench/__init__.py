"""Benchmarks that you can repeat on your own database: ``forebay bench <scenario>``.

A scenario compares engines on one server, in turns, within one run. Figures of different runs or
machines are never compared. Each scenario creates databases and drops them.

- ``_place``: the server, and databases on it
- ``_measure``: turns, medians and spread, CPU time, write-ahead log
- ``_machine_speed``: how steady the machine was during the run
- ``_report``: the result of a scenario, as a table, a line of JSON, a plot
- ``scenarios``: one module each, with the name that the command uses
- ``engines``: common ways to build a queue, small and readable, for comparison
- ``peers``: other libraries, when installed
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from forebay_bench._place import Place, open_place
    from forebay_bench._report import Report, Table
    from forebay_bench._run import SCENARIOS, Options, describe, run_scenario

__all__ = [
    "SCENARIOS",
    "Options",
    "Place",
    "Report",
    "Table",
    "describe",
    "open_place",
    "run_scenario",
]

# Worker processes of the scenarios import the package for their handlers alone, and must not be
# slower to start than those of users.
if not TYPE_CHECKING:
    _PLACES = {
        "SCENARIOS": "_run",
        "Options": "_run",
        "Place": "_place",
        "Report": "_report",
        "Table": "_report",
        "describe": "_run",
        "open_place": "_place",
        "run_scenario": "_run",
    }

    def __getattr__(name: str) -> Any:
        """Import on first use."""
        if name not in _PLACES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        found = getattr(importlib.import_module(f"{__name__}.{_PLACES[name]}"), name)
        globals()[name] = found
        return found

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
