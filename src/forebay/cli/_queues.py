"""forebay queues: how deep they are; pause and resume them, give up their order, limit them."""

from __future__ import annotations

from dataclasses import fields
from typing import Annotated, Any

import typer
from rich.text import Text

from forebay.cli.options import Dsn, Group, Json, Queue
from forebay.cli.output import ago, console, print_json, table
from forebay.client import Client, address_of
from forebay.db.own import run_own
from forebay.model.limits import Limits, QueueLimits
from forebay.ops.overview import queue_overview
from forebay.ops.queues import limit_queue

commands = typer.Typer(
    help="Queues: how deep they are; pause, resume, spread, limit.", no_args_is_help=True
)

Name = Annotated[str, typer.Argument(metavar="QUEUE", help="Which queue.")]


@commands.command("list")
def list_(*, queue: Queue = None, dsn: Dsn = None, as_json: Json = False) -> None:
    """Count what waits and runs, by queue, priority and reader.

    Every waiting job is visited: seconds at millions.
    """
    found = run_own(address_of(dsn), queue_overview(queue))
    if as_json:
        print_json(found)
        return
    out = console()
    if not found:
        out.print("no queue has had a job yet", style="dim")
        return
    rows = table(
        "queue", "priority", "group", "scheduled", "ready", "claimed", "running", "retrying", "dead",
        "last claim", "",
        right=("priority", "scheduled", "ready", "claimed", "running", "retrying", "dead"),
    )  # fmt: skip
    for line in found:
        rows.add_row(
            line.queue,
            str(line.priority),
            line.group,
            _number(line.scheduled, "yellow"),
            _number(line.ready, "blue"),
            _number(line.claimed, "cyan"),
            _number(line.running, "cyan"),
            _number(line.retrying, "red"),
            _number(line.dead, "red"),
            ago(line.claimed_at),
            Text(f"paused {ago(line.paused_at)}", style="bold yellow") if line.paused_at else "",
        )
    out.print(rows)


@commands.command("pause")
def pause(queue: Name, *, group: Group = None, dsn: Dsn = None, as_json: Json = False) -> None:
    """Let nothing more of a queue be claimed; what runs goes on, and enqueuing too."""
    _changed(queue, "paused", Client(dsn).pause_queue(queue, group=group), as_json)


@commands.command("resume")
def resume(queue: Name, *, group: Group = None, dsn: Dsn = None, as_json: Json = False) -> None:
    """Let a paused queue be claimed again."""
    _changed(queue, "resumed", Client(dsn).resume_queue(queue, group=group), as_json)


@commands.command("spread")
def spread(
    queue: Name,
    lanes: Annotated[
        int, typer.Argument(metavar="LANES", min=1, max=64, help="1 keeps the order.")
    ] = 8,
    *,
    dsn: Dsn = None,
    as_json: Json = False,
) -> None:
    """Give up the order of a queue's jobs, so that claims of many worker processes need not take turns."""
    before = Client(dsn).shard_queue(queue, lanes)
    if as_json:
        print_json({"queue": queue, "lanes": lanes, "before": before})
    elif lanes == 1:
        console().print(f"queue {queue} keeps the order of its jobs")
    else:
        console().print(
            f"queue {queue} gives up the order of its jobs: {lanes} lanes of each priority"
        )


def _number_option(flag: str, text: str) -> Any:
    return typer.Option(flag, metavar="NUMBER", help=text, show_default=False)


@commands.command("limit")
def limit(
    queue: Annotated[
        str | None, typer.Argument(metavar="[QUEUE]", help="Which queue.", show_default=False)
    ] = None,
    *,
    max_waiting: Annotated[
        int | None, _number_option("--max-waiting", "How many jobs may wait; more are refused.")
    ] = None,
    rate: Annotated[
        float | None, _number_option("--rate", "How many start per second, also below 1.")
    ] = None,
    burst: Annotated[
        int | None,
        _number_option("--burst", "How many may start at once after a rest (a second's worth)."),
    ] = None,
    concurrency: Annotated[
        int | None, _number_option("--concurrency", "How many jobs run at once.")
    ] = None,
    key_rate: Annotated[
        float | None, _number_option("--key-rate", "How many of a limit key start per second.")
    ] = None,
    key_burst: Annotated[
        int | None, _number_option("--key-burst", "The burst of each limit key.")
    ] = None,
    key_concurrency: Annotated[
        int | None, _number_option("--key-concurrency", "How many of a limit key run at once.")
    ] = None,
    remove: Annotated[
        list[str] | None,
        typer.Option(
            "--remove",
            metavar="LIMIT",
            help="Remove a limit: the name of its option without dashes in front, or 'all'. May be repeated.",
            show_default=False,
        ),
    ] = None,
    dsn: Dsn = None,
    as_json: Json = False,
) -> None:
    """Limit how many jobs of a queue wait, and how many start per second and run at once, in all and of each limit key.

    Only the limits given change. Without any, show the limits of the queue, or of all queues.
    """
    options = {
        "max_waiting": max_waiting,
        "rate": rate,
        "burst": burst,
        "concurrency": concurrency,
        "key_rate": key_rate,
        "key_burst": key_burst,
        "key_concurrency": key_concurrency,
    }
    given = {name: value for name, value in options.items() if value is not None}
    removed = _limit_names(remove or [], [*options, "all"])
    client = Client(dsn)
    if not given and not removed:
        _show_limits(client.limits(queue), queue, as_json)
        return
    if queue is None:
        raise typer.BadParameter("name the queue")
    if both := given.keys() & removed:
        raise typer.BadParameter(f"{min(both)} is set and removed")
    changes = dict.fromkeys(options if "all" in removed else removed) | given
    before = run_own(address_of(dsn), limit_queue(queue, changes))
    found = client.limits(queue)
    if as_json:
        print_json({"queue": queue, "limits": found[0].limits if found else None, "before": before})
    else:
        limits = _in_words(found[0].limits) if found else ""
        console().print(f"queue {queue}: {limits or 'no limits'}")


def _limit_names(options: list[str], known: list[str]) -> set[str]:
    names = {option.replace("-", "_") for option in options}
    for name in sorted(names.difference(known)):
        listed = ", ".join(known).replace("_", "-")
        raise typer.BadParameter(f"--remove {name.replace('_', '-')}: not one of {listed}")
    return names


def _show_limits(found: list[QueueLimits], queue: str | None, as_json: bool) -> None:
    if as_json:
        print_json(found)
        return
    out = console()
    if not found:
        out.print(
            "no queue has limits or limit keys" if queue is None else f"queue {queue}: no limits",
            style="dim",
        )
        return
    rows = table("queue", "group", "running", "keys waiting", "limits", right=("running", "keys waiting"))  # fmt: skip
    for line in found:
        rows.add_row(
            line.queue,
            line.group,
            _number(line.running, "cyan"),
            _number(line.keys_waiting, "blue"),
            _in_words(line.limits) or "no limits, even shares for its limit keys",
        )
    out.print(rows)


def _in_words(limits: Limits) -> str:
    given = [
        f"{field.name.replace('_', ' ')} {value:,.10g}"
        for field in fields(limits)
        if (value := getattr(limits, field.name)) is not None
    ]
    return ", ".join(given)


def _changed(queue: str, verb: str, groups: int, as_json: bool) -> None:
    if as_json:
        print_json({"queue": queue, verb: groups})
    elif groups:
        console().print(f"queue {queue} {verb}")
    else:
        console().print(f"queue {queue} was {verb} already")


def _number(value: int, style: str) -> Text:
    return Text(f"{value:,}", style=style if value else "dim")
