"""forebay events: what operators did."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

from forebay.cli._commands import Commands, option
from forebay.cli._database import client_of
from forebay.cli.options import Dsn, Json, Limit, Queue, instant_or_age
from forebay.cli.output import ago, one_line, print_json, table
from forebay.cli.text import console

if TYPE_CHECKING:
    from forebay.model.events import Event

commands = Commands()


@commands.add("list")
def list_(
    *,
    queue: Queue = None,
    act: Annotated[
        str | None,
        option(
            "--act ACT",
            "Only this act, such as queues.pause, or all of a command group, such as queues.",
        ),
    ] = None,
    since: Annotated[
        str | None,
        option("--since TIME", "Only from this time on: an age such as 2h, or ISO 8601."),
    ] = None,
    until: Annotated[str | None, option("--until TIME", "Only before this time.")] = None,
    limit: Limit = 50,
    dsn: Dsn = None,
    as_json: Json = False,
) -> None:
    """List what operators did, newest first.

    Every act is there: pause, resume, limit, shard, cancel, redrive, purge, keep, configure, adopt,
    groups opened by name or closed, backfills, and what the guard ended.
    """
    found = client_of(dsn).events(
        queue=queue,
        act=act,
        since=instant_or_age(since, "--since"),
        until=instant_or_age(until, "--until"),
        limit=limit,
    )
    if as_json:
        print_json(found)
        return
    out = console()
    if not found:
        out.print("No events.", style="dim")
        return
    rows = table("when", "who", "act", "what", "count", right=("count",), loose=("who", "what"))
    for event in found:
        rows.add_row(
            ago(event.at),
            event.actor or event.role,
            event.act,
            one_line(_what(event)),
            "-" if event.count is None else f"{event.count:,}",
        )
    out.print(rows)


def _what(event: Event) -> str:
    """Return the subject, the change and the detail of an event in a line."""
    queue = event.queue
    if event.group is not None and (queue is not None or event.group != "default"):
        queue = f"{queue}/{event.group}" if queue is not None else f"group {event.group}"
    subject = [queue, event.kind, None if event.subject_id is None else str(event.subject_id)]
    parts = [part for part in (*subject, event.detail) if part]
    if event.old is not None and event.new is not None:
        parts.append(f"{_short(event.old)} -> {_short(event.new)}")
    elif event.new is not None or event.old is not None:
        parts.append(_short(event.old if event.new is None else event.new))
    return " ".join(parts) or "-"


def _short(value: object) -> str:
    if isinstance(value, dict):
        return " ".join(f"{name}={_short(item)}" for name, item in value.items()) or "none"
    if value == "":
        return "''"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
