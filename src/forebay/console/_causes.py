"""What a problem is called, and where a page shows its cause."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlencode

if TYPE_CHECKING:
    from collections.abc import Mapping

    from forebay.model.problems import Problem

#: The page on which the cause of a problem is to be seen, by its code, and its field for the
#: subject. ``breaker`` is not here: endpoints, limit keys and mirrors have one.
_SHOWN_ON: Final = {
    **dict.fromkeys(("A1", "A2", "oldest", "unserved"), ("queue", "queue")),
    **dict.fromkeys(("A3", "dead-growing"), ("failures", "queue")),
    **dict.fromkeys(("lost-workers", "overdue", "unchecked", "workers"), ("workers", "")),
    **dict.fromkeys(("snapshot", "dead-rows", "maintenance", "reserve"), ("database", "")),
    "endpoint-full": ("endpoint", "name"),
    "drift": ("mirrors", ""),
    "schedule": ("schedule", "name"),
}


#: What a problem is, by its code, for a person who does not know the codes; {} is its subject.
_TITLES: Final = {
    "A1": "Queue {} gets too little done",
    "A2": "Too many jobs wait in queue {}",
    "A3": "Dead letters in queue {}",
    "dead-growing": "Many jobs of queue {} die",
    "oldest": "A job waits too long in queue {}",
    "unserved": "No worker serves queue {}",
    "overdue": "Due jobs do not start",
    "lost-workers": "Workers were lost",
    "endpoint-full": "Endpoint {} is full",
    "breaker": "The breaker of {} is open",
    "drift": "Mirror {} is out of step",
    "schedule": "Schedule {} misses its time",
    "snapshot": "A transaction stays open",
    "dead-rows": "Too many dead rows",
    "maintenance": "Maintenance is behind",
    "reserve": "Few job numbers are left",
    "export": "Old segments wait for an export",
    "writes": "Writes fail",
    "size": "The database grows too large",
    "unchecked": "No process checks the alerts",
}


def titled(problem: Problem) -> str:
    """Return what a problem is, in a few words."""
    title = _TITLES.get(problem.code)
    if title is None or ("{}" in title and not problem.subject):
        return problem.name
    group = problem.group and problem.group != "default"
    return title.format(problem.subject) + (f", group {problem.group}" if group else "")


def shown_on(problem: Problem, data: Mapping[str, Any]) -> str:
    """Return the path of the page on which the cause of a problem is to be seen.

    ``data`` are the measurements behind the overview.
    """
    if problem.code == "breaker":
        if any(one["endpoint"] == problem.subject for one in data["endpoints"]):
            path, field = "endpoint", "name"
        elif any(one["mirror"] == problem.subject for one in data["mirrors"]):
            path, field = "mirrors", ""
        else:
            path, field = "keys", "queue"
    else:
        path, field = _SHOWN_ON.get(problem.code, ("doctor", ""))
    return f"{path}?{urlencode({field: problem.subject})}" if field and problem.subject else path
