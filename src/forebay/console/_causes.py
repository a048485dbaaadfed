"""Where a page shows the cause of a problem."""

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
    **dict.fromkeys(("lost-workers", "unchecked", "workers"), ("workers", "")),
    **dict.fromkeys(("snapshot", "dead-rows", "maintenance", "reserve"), ("database", "")),
    "endpoint-full": ("endpoint", "name"),
    "drift": ("mirrors", ""),
    "schedule": ("schedule", "name"),
}


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
