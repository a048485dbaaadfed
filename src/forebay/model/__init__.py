"""Values that all packages exchange: jobs, options, outcomes, states. No behaviour, no I/O."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from forebay.model.again import Again, Complete, Drop
    from forebay.model.job import Job, JobState
    from forebay.model.options import JobOptionChanges, JobOptions
    from forebay.model.outcome import Cancel, Dead, Outcome, Retry, Snooze
    from forebay.model.unique import (
        Coalesce,
        Debounce,
        Idempotent,
        JobId,
        Once,
        Replace,
        Throttle,
        Unique,
    )

__all__ = [
    "Again",
    "Cancel",
    "Coalesce",
    "Complete",
    "Dead",
    "Debounce",
    "Drop",
    "Idempotent",
    "Job",
    "JobId",
    "JobOptionChanges",
    "JobOptions",
    "JobState",
    "Once",
    "Outcome",
    "Replace",
    "Retry",
    "Snooze",
    "Throttle",
    "Unique",
]

if not TYPE_CHECKING:  # a type checker would accept any attribute of the module
    _PLACES = {
        "again": ("Again", "Complete", "Drop"),
        "job": ("Job", "JobState"),
        "options": ("JobOptionChanges", "JobOptions"),
        "outcome": ("Cancel", "Dead", "Outcome", "Retry", "Snooze"),
        "unique": (
            "Coalesce",
            "Debounce",
            "Idempotent",
            "JobId",
            "Once",
            "Replace",
            "Throttle",
            "Unique",
        ),
    }

    def __getattr__(name: str) -> Any:
        """Import on first use: the command line needs few of them."""
        for place, names in _PLACES.items():
            if name in names:
                found = getattr(importlib.import_module(f"forebay.model.{place}"), name)
                globals()[name] = found
                return found
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
