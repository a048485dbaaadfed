"""A sign of life while the database works for a command."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from forebay.cli.text import console
from forebay.errors import ForebayError
from forebay.model.text import counted

#: Seconds until the first line, and from one to the next.
FIRST: Final = 2.0
NEXT: Final = 10.0


class Progress:
    """How far a command is.

    Attributes:
        what: what it does, such as "counting".
        reached: how far it is; empty: unknown.
        again: what finishes it after an interruption; empty: it changes nothing.
    """

    def __init__(self, what: str, again: str = "") -> None:
        self.what = what
        self.reached = ""
        self.again = again
        self._begun = time.monotonic()

    def note(self, count: int, of: str = "job") -> None:
        """Note how many were done, by the word for one of them."""
        self.reached = counted(count, of)

    def line(self) -> str:
        """Return the line that says it."""
        reached = f"{self.reached}, " if self.reached else ""
        return f"{self.what}: {reached}{time.monotonic() - self._begun:.0f} s so far"


@contextmanager
def patience(what: str, again: str = "") -> Iterator[Progress]:
    """Say on stderr what takes longer than two seconds, and again every ten; if it ends before it
    is over, say how far it came and what finishes it.
    """
    is_over = threading.Event()
    progress = Progress(what, again)

    def report() -> None:
        wait = FIRST
        while not is_over.wait(wait):
            console(stderr=True).print(progress.line(), style="dim", soft_wrap=True)
            wait = NEXT

    reporter = threading.Thread(target=report, name="forebay-patience", daemon=True)
    reporter.start()
    try:
        yield progress
    except (KeyboardInterrupt, ForebayError) as error:
        if progress.again and (progress.reached or isinstance(error, KeyboardInterrupt)):
            out = console(stderr=True)
            out.print(f"{progress.what}: {progress.reached or 'interrupted'}", soft_wrap=True)
            out.print(f"→ {progress.again}", soft_wrap=True)
        raise
    finally:
        is_over.set()
        reporter.join()
