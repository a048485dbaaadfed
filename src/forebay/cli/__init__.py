"""The command line: arguments and printing, nothing else.

Exit codes: 0, it was done; 1, it was not done, or the doctor found an error; 2, wrong usage or configuration; 3, the
database cannot be used (not reached, no schema, foreign); 130, interrupted.
"""

from forebay.cli._main import main, run

__all__ = ["main", "run"]
