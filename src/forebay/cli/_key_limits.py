"""forebay keys limit: the limits of one limit key."""

from __future__ import annotations

from typing import Annotated

import click

from forebay.cli import _paused_keys
from forebay.cli._commands import option
from forebay.cli._database import client_of
from forebay.cli._served import check_queue_in_use
from forebay.cli.options import Dsn, Json
from forebay.cli.output import print_json
from forebay.cli.text import console
from forebay.errors import shown
from forebay.model.limits import KeyLimits


def limit(
    queue: _paused_keys.Queue,
    *,
    limit_key: Annotated[str, option("--limit-key KEY", "The limit key.")],
    rate: Annotated[
        float | None, option("--rate N", "Maximum number of starts per second; may be below 1.")
    ] = None,
    burst: Annotated[
        int | None,
        option(
            "--burst N",
            "Maximum number of starts at once after a pause. Default: those of one second.",
        ),
    ] = None,
    concurrency: Annotated[
        int | None, option("--concurrency N", "Maximum number of running jobs.")
    ] = None,
    remove: Annotated[
        bool, option("--remove", "First remove all limits that the key has itself.")
    ] = False,
    new: Annotated[bool, option("--new", "The queue may have no jobs and no workers yet.")] = False,
    dsn: Dsn = None,
    as_json: Json = False,
) -> None:
    """Set limits of one limit key of a queue, instead of those that the queue has for each key.

    Only the given limits change. A key without a rate has the queue's key rate and key burst;
    without a concurrency, the queue's key concurrency. Jobs that wait are checked again at once;
    running jobs finish, and count.
    """
    if rate is None and burst is None and concurrency is None and not remove:
        raise click.UsageError("give --rate, --burst, --concurrency or --remove")
    if not new:
        check_queue_in_use(dsn, queue)
    client = client_of(dsn)
    before = client.limit_key(
        queue, limit_key, rate=rate, burst=burst, concurrency=concurrency, remove=remove
    )
    kept = KeyLimits() if before is None or remove else before
    after = KeyLimits(
        rate=kept.rate if rate is None else rate,
        burst=kept.burst if burst is None else burst,
        concurrency=kept.concurrency if concurrency is None else concurrency,
    )
    if as_json:
        none = after == KeyLimits()
        print_json(
            {
                "queue": queue,
                "limit_key": limit_key,
                "limits": None if none else after,
                "before": before,
            }
        )
    else:
        console().print(f"queue {queue}: limit key {shown(limit_key)}: {in_words(after)}")


def in_words(limits: KeyLimits) -> str:
    """Return the limits of a key: ``rate 0.5, burst 1``."""
    numbers = {
        "rate": limits.rate,
        "burst": limits.burst,
        "concurrency": limits.concurrency,
    }
    words = [f"{name} {value:,.10g}" for name, value in numbers.items() if value is not None]
    return ", ".join(words) or "as the queue"
