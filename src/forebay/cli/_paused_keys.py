"""forebay keys: pause and resume one key of a queue."""

from __future__ import annotations

from typing import Annotated

import click

from forebay.cli._commands import argument, option
from forebay.cli._database import client_of
from forebay.cli._served import check_queue_in_use
from forebay.cli.options import Dsn, Json, duration, instant
from forebay.cli.output import print_json
from forebay.cli.text import console
from forebay.errors import shown

Queue = Annotated[str, argument("QUEUE", "The queue.")]
OrderingKey = Annotated[str | None, option("--ordering-key KEY", "The ordering key.")]
LimitKey = Annotated[str | None, option("--limit-key KEY", "The limit key.")]


def pause(
    queue: Queue,
    *,
    ordering_key: OrderingKey = None,
    limit_key: LimitKey = None,
    for_: Annotated[str | None, option("--for TIME", "10m, 2h. Default: until resumed.")] = None,
    at: Annotated[
        str | None,
        option(
            "--at TIME",
            "When the pause begins, in ISO 8601; without an offset it is local time. Default: now.",
        ),
    ] = None,
    new: Annotated[bool, option("--new", "The queue may have no jobs and no workers yet.")] = False,
    dsn: Dsn = None,
    as_json: Json = False,
) -> None:
    """Stop claiming jobs of one key of a queue, in all groups. Claimed jobs finish.

    Enqueueing continues.

    Jobs that wait keep their places and use no attempt. The other keys of the queue run. A key has
    one pause: a call replaces the pause that lasts or is planned, and --at resumes a key that is
    paused until then.
    """
    name = one_key(ordering_key, limit_key)
    after = duration(for_, "--for")
    begin = instant(at, "--at")
    if not new:
        check_queue_in_use(dsn, queue)
    changed = client_of(dsn).pause_key(
        queue, ordering_key=ordering_key, limit_key=limit_key, for_=after, at=begin
    )
    if as_json:
        print_json({"queue": queue, "paused": changed})
    elif not changed:
        planned = "paused" if begin is None else "planned so"
        console().print(f"queue {queue}: {name} was already {planned}")
    else:
        done = "paused" if begin is None else f"is paused from {at}"
        until = "" if for_ is None else f" for {for_}"
        console().print(f"queue {queue}: {name} {done}{until}")


def resume(
    queue: Queue,
    *,
    ordering_key: OrderingKey = None,
    limit_key: LimitKey = None,
    dsn: Dsn = None,
    as_json: Json = False,
) -> None:
    """Claim jobs of a paused key again, or remove its planned pause."""
    name = one_key(ordering_key, limit_key)
    changed = client_of(dsn).resume_key(queue, ordering_key=ordering_key, limit_key=limit_key)
    if as_json:
        print_json({"queue": queue, "resumed": changed})
    else:
        what = "resumed" if changed else "was not paused"
        console().print(f"queue {queue}: {name} {what}")


def one_key(ordering_key: str | None, limit_key: str | None) -> str:
    """Return what to call the key that the options name; refuse both options, and none."""
    if (ordering_key is None) is (limit_key is None):
        raise click.UsageError("give --ordering-key or --limit-key, and not both")
    if ordering_key is not None:
        return f"ordering key {shown(ordering_key)}"
    return f"limit key {shown(limit_key)}"
