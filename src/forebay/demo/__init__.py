"""The demo: Forebay's main job on real input, and the count of what was lost.

Every module of the Python standard library on this machine becomes a row and a job in one
transaction. Workers parse each, and write what they find in the transaction that also completes the
job. One of them is killed half-way. What came of it is counted by plain SQL, in tables that
anybody can look at with ``forebay demo --keep``; ``docs/reference/cli.md`` has the queries.
"""

from forebay.demo._ledger import Result
from forebay.demo._run import run_demo

__all__ = ["Result", "run_demo"]
