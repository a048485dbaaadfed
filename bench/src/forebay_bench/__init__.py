"""Benchmarks that anybody can repeat on their own database: ``forebay bench <scenario>``.

A scenario compares engines on one server, in turns, within one run: figures of different runs or machines
are never set side by side. Each makes databases of its own and drops them.

- ``_place``: the server, and databases on it
- ``_measure``: turns, medians and spread, CPU time, write-ahead log
- ``_machine_speed``: how steady the machine was meanwhile
- ``_report``: what a scenario found, as a table, as a line of JSON, as a plot
- ``scenarios``: one module each, named as the command names it
- ``engines``: the ordinary ways to build a queue, small and readable, to compare with
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
