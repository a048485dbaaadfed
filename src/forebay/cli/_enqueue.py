"""forebay enqueue: one job, committed."""

from __future__ import annotations

from typing import Annotated

import typer

from forebay.cli.options import Dsn, Json, duration, instant, json_object
from forebay.cli.output import console, print_json
from forebay.client import Client
from forebay.errors import ConfigError, shown
from forebay.model import JobOptionChanges
from forebay.model.unique import unique_from


def enqueue(
    kind: Annotated[str, typer.Argument(metavar="KIND", help="Which handler.")],
    args: Annotated[
        str | None,
        typer.Argument(
            metavar="[JSON]",
            help="Its arguments, a JSON object; `-` reads it from stdin.",
            show_default=False,
        ),
    ] = None,
    *,
    queue: Annotated[str, typer.Option("--queue", metavar="QUEUE", help="Where it waits.")] = (
        "default"
    ),
    priority: Annotated[
        int, typer.Option("--priority", metavar="N", help="Lower numbers go first.")
    ] = 100,
    delay: Annotated[
        str | None,
        typer.Option(
            "--delay", metavar="TIME", help="Not before so long: 90, 15m, 2h.", show_default=False
        ),
    ] = None,
    run_at: Annotated[
        str | None,
        typer.Option(
            "--run-at", metavar="TIME", help="Not before: 2027-01-31T08:00.", show_default=False
        ),
    ] = None,
    expires_at: Annotated[
        str | None,
        typer.Option(
            "--expires-at",
            metavar="TIME",
            help="Not started from then on; 30 days when not given.",
            show_default=False,
        ),
    ] = None,
    max_attempts: Annotated[
        int | None,
        typer.Option(
            "--max-attempts",
            metavar="N",
            help="What the handler's retry policy says when not given.",
            show_default=False,
        ),
    ] = None,
    tag: Annotated[
        str | None,
        typer.Option("--tag", metavar="TEXT", help="Where it came from.", show_default=False),
    ] = None,
    correlation_id: Annotated[
        str | None,
        typer.Option(
            "--correlation-id", metavar="TEXT", help="Passed on unchanged.", show_default=False
        ),
    ] = None,
    header: Annotated[
        list[str] | None,
        typer.Option("--header", metavar="NAME=VALUE", help="Repeatable.", show_default=False),
    ] = None,
    unique: Annotated[
        str | None,
        typer.Option(
            "--unique",
            metavar="JSON",
            help='What to do when its like is there: {"once": KEY}, or idempotent, coalesce, '
            "replace, debounce, throttle.",
            show_default=False,
        ),
    ] = None,
    ordering_key: Annotated[
        str | None,
        typer.Option(
            "--ordering-key",
            metavar="TEXT",
            help="Jobs of the queue with the same key run one at a time, in order.",
            show_default=False,
        ),
    ] = None,
    limit_key: Annotated[
        str | None,
        typer.Option(
            "--limit-key",
            metavar="TEXT",
            help="The tenant of the job: jobs of the queue with the same key share its limits per key.",
            show_default=False,
        ),
    ] = None,
    dsn: Dsn = None,
    as_json: Json = False,
) -> None:
    """Enqueue a job by the name of its kind, in a transaction of its own.

    The queue is not looked up: name the one that the kind's workers serve.
    """
    options: JobOptionChanges = {"queue": queue, "priority": priority}
    if delay is not None:
        options["delay"] = duration(delay, "delay")
    if run_at is not None:
        options["run_at"] = instant(run_at, "run_at")
    if expires_at is not None:
        options["expires_at"] = instant(expires_at, "expires_at")
    if max_attempts is not None:
        options["max_attempts"] = max_attempts
    if tag is not None:
        options["tag"] = tag
    if correlation_id is not None:
        options["correlation_id"] = correlation_id
    if ordering_key is not None:
        options["ordering_key"] = ordering_key
    if limit_key is not None:
        options["limit_key"] = limit_key
    if header:
        options["headers"] = dict(_pair(text) for text in header)
    if unique is not None:
        options["unique"] = unique_from(json_object(unique, "--unique"))
    job_id = Client(dsn).enqueue_now(kind, json_object(args, "args"), **options)
    if as_json:
        print_json({"job_id": int(job_id), "is_new": job_id.is_new, "kind": kind, "queue": queue})
    elif not job_id.is_new:
        console().print(f"job {job_id} stands for it in queue {queue}: nothing new was enqueued")
    else:
        console().print(f"job {job_id} enqueued in queue {queue}")


def _pair(text: str) -> tuple[str, str]:
    name, found, value = text.partition("=")
    if not found or not name:
        raise ConfigError("--header", f"is {shown(text)}, not NAME=VALUE", value=text)
    return name, value
