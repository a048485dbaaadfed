"""forebay queues: list, pause, resume, shard and limit queues."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Annotated, Final

import click

from forebay.cli import _change, _queue_ends, _queue_settings
from forebay.cli._commands import Commands, argument, option
from forebay.cli._database import address_of, client_of
from forebay.cli._served import check_queue_in_use
from forebay.cli.options import Dsn, Group, Json, Queue, duration, instant
from forebay.cli.output import ago, print_json, table
from forebay.cli.text import Text, console
from forebay.model.text import counted

if TYPE_CHECKING:
    from forebay.model.limits import Limits, QueueLimits
    from forebay.ops.overview import QueueOverview

commands = Commands()

commands.add("purge")(_change.purge)
commands.add("truncate")(_change.truncate)
commands.add("drop")(_queue_ends.drop)
commands.add("show")(_queue_settings.show)
commands.add("redact")(_queue_ends.redact)

Name = Annotated[str, argument("QUEUE", "The queue.")]

#: The numbers of the list, with their colours.
_NUMBERS: Final = {
    "scheduled": "yellow",
    "ready": "blue",
    "cancelled": "dim",
    "claimed": "cyan",
    "running": "cyan",
    "retrying": "red",
    "done": "dim",
    "failed": "dim",
    "dead": "red",
}
_WIDE: Final = 100  # columns, for all numbers
_NAME: Final = 9  # characters of a queue that 80 columns have beside the numbers


@commands.add("list")
def list_(*, queue: Queue = None, dsn: Dsn = None, as_json: Json = False) -> None:
    """Count waiting and running jobs by queue, priority and consumer group.

    The numbers are exact, and the command visits no job that just waits or has ended. A terminal of
    100 columns, or 120 with groups, also has the numbers of jobs done and of failed attempts. A
    narrower one leaves out columns of zeros if the name of a queue needs the place.
    Cancelled jobs are not ready; those that no worker has passed yet have their own column.
    forebay stats has them by kind and tag.
    """
    from forebay.db.own import run_own
    from forebay.ops.overview import queue_overview

    found = run_own(address_of(dsn), queue_overview(queue))
    if as_json:
        print_json(found)
        return
    out = console()
    if not found:
        out.print("No queues.", style="dim")
        return
    has_groups = any(line.group != "default" for line in found)
    has_notes = any(line.paused_at for line in found) and out.width >= 100 + 20 * has_groups
    numbers = _columns(found, out.width - 20 * has_groups - 20 * has_notes)
    rows = table(
        *("queue", "prio", *(["group"] if has_groups else []), *numbers, "last claim"),
        *([""] if has_notes else []),
        right=("prio", *numbers),
        loose=("queue", "group"),
    )
    for line in found:
        rows.add_row(
            line.queue,
            str(line.priority),
            *([line.group] if has_groups else []),
            *(_number(getattr(line, name), _NUMBERS[name]) for name in numbers),
            ago(line.claimed_at),
            *([Text(_pause(line), style="bold yellow")] if has_notes else []),
        )
    out.print(rows)
    if not has_notes:
        for name, pause in {_named(line): _pause(line) for line in found if line.paused_at}.items():
            out.print(Text.assemble((name, "bold"), " ", (pause, "bold yellow")), soft_wrap=True)
    if "cancelled" in numbers:
        out.print("cancelled: they were ready, never start, and no worker has passed them yet.")


@commands.add("pause")
def pause(
    queue: Name,
    *,
    group: Group = None,
    until: Annotated[
        str | None,
        option(
            "--until TIME",
            (
                "When the pause ends, in ISO 8601; without an offset it is local time. "
                "Default: until resumed."
            ),
        ),
    ] = None,
    for_: Annotated[str | None, option("--for DURATION", "How long it lasts: 10m, 2h.")] = None,
    new: Annotated[bool, option("--new", "The queue may have no jobs and no workers yet.")] = False,
    dsn: Dsn = None,
    as_json: Json = False,
) -> None:
    """Stop claiming jobs of a queue. Running jobs finish; enqueueing continues.

    A pause with an end needs no further command. A queue has one pause: a call replaces the one
    that lasts.
    """
    if until is not None and for_ is not None:
        raise click.UsageError("give --until or --for, and not both")
    end = instant(until, "--until")
    length = duration(for_, "--for")
    if not new and group is None:
        check_queue_in_use(dsn, queue)
    changed = client_of(dsn).pause_queue(queue, group=group, until=end, for_=length)
    ends = f" until {until}" if until is not None else f" for {for_}" if for_ is not None else ""
    _changed(queue, f"paused{ends}", changed, as_json)


@commands.add("resume")
def resume(queue: Name, *, group: Group = None, dsn: Dsn = None, as_json: Json = False) -> None:
    """Claim jobs of a paused queue again."""
    _changed(queue, "resumed", client_of(dsn).resume_queue(queue, group=group), as_json)


@commands.add("shard")
def shard(
    queue: Name,
    lanes: Annotated[
        int, argument("SHARDS", "Number of shards; 1 keeps the order.", min=1, max=64)
    ] = 8,
    *,
    dsn: Dsn = None,
    as_json: Json = False,
) -> None:
    """Trade ordering for parallel claims: split a queue into shards."""
    before = client_of(dsn).shard_queue(queue, lanes)
    if as_json:
        print_json({"queue": queue, "lanes": lanes, "before": before})
    elif lanes == 1:
        console().print(f"queue {queue}: 1 shard, jobs run in order")
    else:
        console().print(f"queue {queue}: {lanes} shards of each priority, jobs run in any order")


@commands.add("max-attempts")
def max_attempts(
    queue: Annotated[str | None, argument("[QUEUE]", "The queue.")] = None,
    attempts: Annotated[
        int | None, argument("[ATTEMPTS]", "Maximum attempts.", min=1, max=10_000)
    ] = None,
    *,
    remove: Annotated[bool, option("--remove", "Let the kinds of the jobs decide again.")] = False,
    dsn: Dsn = None,
    as_json: Json = False,
) -> None:
    """Set the maximum attempts of a queue's jobs, also of waiting and running ones.

    A job's own maximum comes first, then that of its queue, then that of its kind. Without a
    number, the command shows those that are set.
    """
    client = client_of(dsn)
    if attempts is None and not remove:
        found = {
            name: most for name, most in client.max_attempts().items() if queue in (None, name)
        }
        if as_json:
            print_json(found)
            return
        for name, most in found.items():
            console().print(f"queue {name}: {counted(most, 'attempt')}")
        if not found:
            console().print("No maximum is set: the kinds decide.", style="dim")
        return
    if queue is None or (attempts is not None and remove):
        raise click.UsageError("give QUEUE and ATTEMPTS, or QUEUE and --remove")
    before = client.set_max_attempts(queue, attempts)
    if as_json:
        print_json({"queue": queue, "max_attempts": attempts, "before": before})
    else:
        what = "the kinds decide" if attempts is None else counted(attempts, "attempt")
        console().print(f"queue {queue}: {what}")


@commands.add("notices")
def notices(
    queue: Name,
    switch: Annotated[str, argument("on|off", "Whether the queue sends them.")],
    *,
    dsn: Dsn = None,
    as_json: Json = False,
) -> None:
    """Send notices of what happens to the jobs and settings of a queue to LISTEN forebay_events.

    Every role that can connect to the database can listen. A notice has names of queue and group,
    ids of jobs, and words of Forebay.
    """
    from forebay.db.own import run_own
    from forebay.ops.protocol import producers_notify

    if switch not in ("on", "off"):
        raise click.UsageError(f"{switch}: give on or off")
    before = client_of(dsn).set_notices(queue, switch == "on")
    sends = run_own(address_of(dsn), producers_notify())
    if as_json:
        print_json({"queue": queue, "notices": switch == "on", "before": before, "sends": sends})
        return
    console().print(f"queue {queue}: notices {switch}")
    if switch == "on" and not sends:
        console().print(
            "→ this session would send none: the server can prepare transactions, or "
            "forebay.wakeup is off; set forebay.wakeup to on for the database"
        )


@commands.add("limit")
def limit(
    queue: Annotated[str | None, argument("[QUEUE]", "The queue.")] = None,
    *,
    max_waiting: Annotated[
        int | None,
        option("--max-waiting NUMBER", "Maximum number of waiting jobs; further jobs are refused."),
    ] = None,
    rate: Annotated[
        float | None,
        option("--rate NUMBER", "Maximum number of starts per second; may be below 1."),
    ] = None,
    burst: Annotated[
        int | None,
        option(
            "--burst NUMBER",
            "Maximum number of starts at once after a pause. Default: those of one second.",
        ),
    ] = None,
    concurrency: Annotated[
        int | None, option("--concurrency NUMBER", "Maximum number of running jobs.")
    ] = None,
    key_rate: Annotated[
        float | None,
        option("--key-rate NUMBER", "Maximum number of starts per second of each limit key."),
    ] = None,
    key_burst: Annotated[
        int | None,
        option("--key-burst NUMBER", "Maximum number of starts at once of each limit key."),
    ] = None,
    key_concurrency: Annotated[
        int | None,
        option("--key-concurrency NUMBER", "Maximum number of running jobs of each limit key."),
    ] = None,
    max_waiting_group: Annotated[
        str | None,
        option(
            "--max-waiting-group GROUP",
            "The consumer group whose waiting jobs count. Default: default.",
        ),
    ] = None,
    remove: Annotated[
        list[str] | None,
        option(
            "--remove LIMIT",
            (
                "Remove a limit: the name of its option without the leading dashes, or 'all'; "
                "repeatable."
            ),
        ),
    ] = None,
    dsn: Dsn = None,
    as_json: Json = False,
) -> None:
    """Limit the waiting jobs of a queue, and the starts per second and running jobs of the queue
    and of each limit key.

    Only the given limits change. Without a limit, the command shows the limits of the queue, or of
    all queues.
    """
    from forebay.db.own import run_own
    from forebay.ops.queues import limit_queue

    options = {
        "max_waiting": max_waiting,
        "rate": rate,
        "burst": burst,
        "concurrency": concurrency,
        "key_rate": key_rate,
        "key_burst": key_burst,
        "key_concurrency": key_concurrency,
        "max_waiting_group": max_waiting_group,
    }
    given = {name: value for name, value in options.items() if value is not None}
    removed = _limit_names(remove or [], [*options, "all"])
    client = client_of(dsn)
    if not given and not removed:
        _show_limits(client.limits(queue), queue, as_json)
        return
    if queue is None:
        raise click.UsageError("QUEUE is missing")
    if both := given.keys() & removed:
        raise click.UsageError(f"{min(both)} is both set and removed")
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
        raise click.UsageError(f"--remove {name.replace('_', '-')}: not one of {listed}")
    return names


def _show_limits(found: list[QueueLimits], queue: str | None, as_json: bool) -> None:
    if as_json:
        print_json(found)
        return
    out = console()
    if not found:
        out.print(
            "No limits." if queue is None else f"queue {queue}: no limits",
            style="dim",
        )
        return
    rows = table("queue", "group", "running", (
            "keys "
            "waiting"
            ), "limits", right=("running", "keys waiting"))  # fmt: skip
    for line in found:
        rows.add_row(
            line.queue,
            line.group,
            _number(line.running, "cyan"),
            _number(line.keys_waiting, "blue"),
            _in_words(line.limits) or "no limits; limit keys take turns",
        )
    out.print(rows)


def _in_words(limits: Limits) -> str:
    given = [
        f"{field.name.replace('_', ' ')} {value if isinstance(value, str) else f'{value:,.10g}'}"
        for field in fields(limits)
        if (value := getattr(limits, field.name)) is not None
    ]
    return ", ".join(given)


def _changed(queue: str, verb: str, groups: int, as_json: bool) -> None:
    if as_json:
        print_json({"queue": queue, verb.partition(" ")[0]: groups})
    elif groups:
        console().print(f"queue {queue} {verb}")
    else:
        console().print(f"queue {queue} was already {verb}")


def _columns(found: list[QueueOverview], width: int) -> list[str]:
    """Return the numbers that the list shows in a terminal of a width."""
    empty = {name for name in _NUMBERS if not any(getattr(line, name) for line in found)}
    left_out = {"cancelled"} & empty
    if width < _WIDE:
        left_out |= {"done", "failed"}
    if width < _WIDE and max(len(line.queue) for line in found) > _NAME:
        left_out |= empty - {"ready", "dead"}
    return [name for name in _NUMBERS if name not in left_out]


def _pause(line: QueueOverview) -> str:
    ends = f", ends {ago(line.resume_at)}" if line.resume_at else ""
    return f"paused {ago(line.paused_at)}{ends}" if line.paused_at else ""


def _named(line: QueueOverview) -> str:
    """Return the queue, and the group where it has a name."""
    return line.queue if line.group == "default" else f"{line.queue}, group {line.group}"


def _number(value: int, style: str) -> Text:
    return Text(f"{value:,}", style=style if value else "dim")
