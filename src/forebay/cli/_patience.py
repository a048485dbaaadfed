"""A sign of life while the database works for a command."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from forebay.cli.text import console

#: Seconds until the first line, and from one to the next.
FIRST: Final = 2.0
NEXT: Final = 10.0


@contextmanager
def patience(what: str) -> Iterator[None]:
    """Say on stderr what takes longer than two seconds, and again every ten."""
    is_over = threading.Event()
    begun = time.monotonic()

    def report() -> None:
        wait = FIRST
        while not is_over.wait(wait):
            passed = time.monotonic() - begun
            console(stderr=True).print(f"{what}: {passed:.0f} s so far", style="dim")
            wait = NEXT

    reporter = threading.Thread(target=report, name="forebay-patience", daemon=True)
    reporter.start()
    try:
        yield
    finally:
        is_over.set()
        reporter.join()
