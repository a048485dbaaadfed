"""The demo: Forebay's main task on real input, and a count of lost jobs.

Every module of the Python standard library on this machine becomes a row and a job in one
transaction. Workers parse each module, and write the result in the transaction that also completes
the job. One worker is killed half-way. Plain SQL counts the results, in tables that remain with
``forebay demo --keep``; ``docs/reference/cli.md`` has the queries.
"""

from forebay.demo._ledger import Result
from forebay.demo._run import run_demo

__all__ = ["Result", "run_demo"]
