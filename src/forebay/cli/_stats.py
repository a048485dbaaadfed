"""forebay stats: the counters of jobs."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

from forebay.cli._commands import option
from forebay.cli._database import client_of
from forebay.cli.exit import ExitCode
from forebay.cli.options import Dsn, Json, Queue
from forebay.cli.output import print_json, table
from forebay.cli.text import console

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
        result = client.audit_stats(queue)
        if as_json:
            print_json(asdict(result))
        else:
            out = console()
            out.print(
                f"{result.counted:,} counted; the counters "
                + ("agree." if result.equal else "differ:")
            )
            for difference in result.differences:
                out.print(" ".join(f"{name}={value}" for name, value in difference.items()))
        if not result.equal:
            raise SystemExit(ExitCode.FAILED)
        return
    found = client.stats(queue)
    if as_json:
        print_json(found)
        return
    out = console()
    if not found:
        out.print("No jobs.", style="dim")
        return
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
    out.print(rows)
