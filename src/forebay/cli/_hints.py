"""The commands of other queues, and what to call instead."""

from __future__ import annotations

from typing import Final

_COUNTS: Final = (
    "`forebay queues list` counts jobs, `forebay jobs list --state running` shows what "
    "runs, and `forebay doctor` finds"
    " problems."
)
_RETRY: Final = (
    "`forebay jobs retry JOB_ID` starts a waiting job now, `forebay dead redrive --job JOB_ID` "
    "brings back a dead one."
)
_DELETE: Final = (
    "`forebay jobs cancel` cancels jobs, by id or filter, `forebay queues purge QUEUE` all of "
    "a queue. Retention deletes jobs that have ended."
)

#: What to call instead, by the group of commands; the program itself has the name forebay.
HINTS: Final[dict[str, dict[str, str]]] = {
    "forebay": {
        "cancel": "`forebay jobs cancel JOB_ID`.",
        "cron": "Forebay has no scheduler: let cron or a systemd timer call `forebay enqueue`, "
        "with --unique"
        ' \'{"throttle": KEY, "period": SECONDS}\' against double starts.',
        "init": "`forebay migrate` makes the schema.",
        "inspect": _COUNTS,
        "list": "`forebay jobs list`.",
        "pause": "`forebay queues pause QUEUE`.",
        "purge": (
            "`forebay queues purge QUEUE` cancels all jobs of a queue. `forebay dead purge` "
            "deletes dead letters."
        ),
        "redrive": "`forebay dead redrive DEAD_ID`, or --job JOB_ID.",
        "resume": "`forebay queues resume QUEUE`.",
        "retry": _RETRY,
        "run": "`forebay worker MODULE:APP`.",
        "start": "`forebay worker MODULE:APP`.",
    },
    "jobs": {
        "delete": _DELETE,
        "purge": _DELETE,
        "redrive": _RETRY,
        "remove": _DELETE,
        "stats": _COUNTS,
    },
    "queues": {
        "create": (
            "A queue needs no creation: enqueue to it, and run a worker with `--queue QUEUE`."
        ),
        "stats": "`forebay queues list`.",
    },
    "dead": {
        "delete": "`forebay dead purge --older-than AGE`.",
        "retry": "`forebay dead redrive DEAD_ID`.",
    },
}
