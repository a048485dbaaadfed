"""The job whose handler runs, for the jobs that it enqueues."""

from __future__ import annotations

from contextvars import ContextVar
from typing import Final

#: Its id and correlation id; None outside of handlers, and in batch handlers.
RUNNING: Final[ContextVar[tuple[int, str | None] | None]] = ContextVar(
    "forebay_running", default=None
)

#: With this begin the headers that the library sets: what a job is a part of.
OWN_HEADERS: Final = "forebay-"

#: The header of a job that names its parent: an id, or JSON if a gather waits for it.
PARENT_HEADER: Final = "forebay-parent"
