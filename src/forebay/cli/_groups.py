"""forebay groups: list and close consumer groups."""

from __future__ import annotations

import time
from collections.abc import Collection
from typing import Annotated, Final

from forebay.cli._commands import Commands, argument, option
from forebay.cli._database import address_of, client_of
from forebay.cli.exit import ExitCode
from forebay.cli.options import Dsn, Json, Queue
from forebay.cli.output import ago, print_json, table
from forebay.cli.text import Text, console
from forebay.model.groups import ClosedGroup, GroupOverview
from forebay.model.text import counted

commands = Commands()

#: Pause between the steps of a closing that waits for running jobs.
_PAUSE_SECONDS: Final = 0.2


@commands.add("list")
def list_(*, queue: Queue = None, dsn: Dsn = None, as_json: Json = False) -> None:
    """List consumer groups: what each has unread, runs, and keeps in the log.

    The command reads every waiting job: seconds for millions of jobs.
    """
    from forebay.model.text import human_bytes

    found = client_of(dsn).groups(queue)
    if as_json:
        print_json(found)
        return
    out = console()
    if not found:
        out.print("No groups.", style="dim")
        return
    has_notes = any(_note(group) for group in found)
    rows = table(
        "queue", "group", "unread", "oldest", "running", "keeps", "last claim",
        *([""] if has_notes else []),
        right=("unread", "running"), loose=("queue", "group"),
    )  # fmt: skip
    for group in found:
        rows.add_row(
            group.queue,
            group.group,
            f"{group.unread:,}",
            ago(group.oldest_unread_at),
            f"{group.running:,}",
            human_bytes(group.held_bytes) if group.held_segments else "-",
            ago(group.claimed_at),
            *([Text(_note(group), style="bold yellow")] if has_notes else []),
        )
    out.print(rows)


@commands.add("close")
def close(
    name: Annotated[str, argument("GROUP", "The group.")],
    *,
    queue: Annotated[str, option("--queue QUEUE", "The queue of the group.")] = "default",
    dry_run: Annotated[
        bool, option("--dry-run", "Only show what would be cancelled and released.")
    ] = False,
    force: Annotated[bool, option("--force", "Close it although workers serve it.")] = False,
    wait: Annotated[
        float, option("--wait SECONDS", "How long to wait for its running jobs.", min=0)
    ] = 30.0,
    dsn: Dsn = None,
    as_json: Json = False,
) -> None:
    """Close a consumer group: cancel the jobs that wait for it and release what only it keeps.

    Running jobs finish first. Other groups and dead letters are not changed. Without workers, the
    command does all steps itself. If it is interrupted, the workers continue.
    """
    report = client_of(dsn).close_group(queue, name, force=force, dry_run=dry_run)
    is_closed = not dry_run and are_closed(queue, [name], dsn, wait)
    if as_json:
        print_json(
            {
                "queue": queue,
                "group": name,
                "closed": is_closed,
                "cancelled": report.cancelled,
                "running": report.running,
                "segments": report.segments,
                "bytes": report.bytes,
            }
        )
    elif dry_run:
        console().print(f"would close group {name} of queue {queue}\n{_effects(report)}")
    elif is_closed:
        console().print(f"closed group {name} of queue {queue}\n{_effects(report)}")
    else:
        console().print(f"group {name} of queue {queue} closes when its running jobs have ended")
    if not is_closed and not dry_run:
        raise SystemExit(ExitCode.FAILED)


def are_closed(queue: str, names: Collection[str], dsn: str | None, wait_seconds: float) -> bool:
    """Do the steps that close groups.

    Return whether the groups of these names were closed in time.
    """
    from forebay.db.own import run_own
    from forebay.ops.queues import continue_closing

    deadline = time.monotonic() + wait_seconds
    address = address_of(dsn)
    client = client_of(dsn)
    while True:
        while run_own(address, continue_closing()):
            pass
        if not any(g.group in names and g.closing_at for g in client.groups(queue)):
            return True
        if time.monotonic() >= deadline:
            return False
        time.sleep(_PAUSE_SECONDS)


def _note(group: GroupOverview) -> str:
    if group.closing_at:
        return f"closing {ago(group.closing_at)}"
    if group.resume_at:
        return f"paused {ago(group.paused_at)}, ends {ago(group.resume_at)}"
    if group.paused_at:
        return f"paused {ago(group.paused_at)}"
    return "not served yet" if group.is_implied else ""


def _effects(report: ClosedGroup) -> str:
    from forebay.model.text import human_bytes

    size = f", {human_bytes(report.bytes)}" if report.segments else ""
    return (
        f"  cancelled: {counted(report.cancelled, 'waiting job')}\n"
        f"  released: {counted(report.segments, 'segment')}{size}"
    )
