"""The command line: only arguments and printing.

Exit codes: 0, done; 1, not done, or the doctor found an error; 2, wrong usage or configuration; 3,
the database cannot be used (unreachable, no schema, foreign cluster); 130, interrupted.
"""

from forebay.cli._start import main, run

__all__ = ["main", "run"]
