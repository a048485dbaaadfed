"""Benchmarks that you can repeat on your own database: ``forebay bench <scenario>``.

A scenario compares engines on one server, in turns, within one run. Figures of different runs or machines
are never compared. Each scenario creates databases and drops them.

- ``_place``: the server, and databases on it
- ``_measure``: turns, medians and spread, CPU time, write-ahead log
- ``_machine_speed``: how steady the machine was during the run
- ``_report``: the result of a scenario, as a table, a line of JSON, a plot
- ``scenarios``: one module each, with the name that the command uses
- ``engines``: common ways to build a queue, small and readable, for comparison
- ``peers``: other libraries, when installed
"""

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
