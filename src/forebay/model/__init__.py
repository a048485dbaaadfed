"""Values that all packages exchange: jobs, options, outcomes, states. No behaviour, no I/O."""

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
