"""Values that the other parts exchange: jobs, options, outcomes, states. No behaviour, no I/O."""

from forebay.model.job import Job, JobState
from forebay.model.options import JobOptionChanges, JobOptions
from forebay.model.outcome import Cancel, Dead, Outcome, Retry, Snooze

__all__ = [
    "Cancel",
    "Dead",
    "Job",
    "JobOptionChanges",
    "JobOptions",
    "JobState",
    "Outcome",
    "Retry",
    "Snooze",
]
