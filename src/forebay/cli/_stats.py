"""forebay stats: the counters of jobs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from forebay.cli._commands import option
from forebay.cli._database import client_of
from forebay.cli.exit import ExitCode
from forebay.cli.options import Dsn, Json, Queue
from forebay.cli.output import print_json, table
from forebay.cli.text import Table, console

if TYPE_CHECKING:
    from forebay.model.stats import Stats, StatsAudit

_LEVELS = ("scheduled", "ready", "held", "claimed", "running", "retrying")
_TOTALS = ("done", "failed", "dead", "expired", "cancelled", "snoozed", "released", "lost")


def stats(
    *,
    queue: Queue = None,
    audit: Annotated[
        bool,
        option(
            "--audit", "Compare the counters with a full count of all jobs; it reads every job."
        ),
    ] = False,
    dsn: Dsn = None,
    as_json: Json = False,
) -> None:
    """Count jobs that wait, run and have ended, by queue, kind and tag.

    The numbers are exact. The cost depends on the number of kinds and tags, not on the number of
    jobs. With --audit the exit code is 1 if the counters differ from a full count.
    """
    client = client_of(dsn)
    if audit:
        _print_audit(client.audit_stats(queue), as_json)
        return
    found = client.stats(queue)
    if as_json:
        print_json(found)
    elif found:
        console().print(_table(found))
    else:
        console().print("No jobs.", style="dim")


def _print_audit(result: StatsAudit, as_json: bool) -> None:
    if as_json:
        print_json(result)
    else:
        out = console()
        agree = "agree." if result.equal else "differ:"
        out.print(f"{result.counted:,} counted; the counters {agree}")
        for difference in result.differences:
            out.print(" ".join(f"{name}={value}" for name, value in difference.items()))
    if not result.equal:
        raise SystemExit(ExitCode.FAILED)


def _table(found: list[Stats]) -> Table:
    has_groups = any(line.group != "default" for line in found)
    has_tags = any(line.tag is not None for line in found)
    # A column without a number is left out.
    numbers = [
        name for name in (*_LEVELS, *_TOTALS) if any(getattr(line, name) for line in found)
    ] or ["ready", "done"]
    rows = table(
        "queue",
        "prio",
        *(["group"] if has_groups else []),
        "kind",
        *(["tag"] if has_tags else []),
        *numbers,
        right=("prio", *numbers),
        loose=("queue", "group", "kind", "tag"),
    )
    for line in found:
        rows.add_row(
            line.queue,
            str(line.priority),
            *([line.group] if has_groups else []),
            line.kind or "(others)",
            *([line.tag or ""] if has_tags else []),
            *(f"{value:,}" if (value := getattr(line, name)) else "-" for name in numbers),
        )
    return rows
