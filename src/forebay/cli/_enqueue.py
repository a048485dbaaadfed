"""forebay enqueue: enqueue and commit one job."""

from __future__ import annotations

from typing import Annotated

import typer

from forebay.cli._served import client_for, warn
from forebay.cli.options import Dsn, Json, duration, instant, json_object
from forebay.cli.output import console, print_json
from forebay.errors import ConfigError, shown
from forebay.model import JobOptionChanges
from forebay.model.unique import unique_from


def enqueue(
    kind: Annotated[str, typer.Argument(metavar="KIND", help="Kind of the job.")],
    args: Annotated[
        str | None,
        typer.Argument(
            metavar="[JSON]",
            help="Arguments, a JSON object; `-` reads it from stdin.",
            show_default=False,
        ),
    ] = None,
    *,
    app: Annotated[
        str | None,
        typer.Option(
            "--app",
            metavar="MODULE:APP",
            help="The application: the job gets the queue and options of its kind.",
            show_default=False,
        ),
    ] = None,
    queue: Annotated[
        str | None,
        typer.Option(
            "--queue",
            metavar="QUEUE",
            help="Queue of the job. Default: that of the kind.",
            show_default=False,
        ),
    ] = None,
    priority: Annotated[
        int | None,
        typer.Option(
            "--priority",
            metavar="N",
            help="Lower numbers run first. Default: with --app that of the kind, else 100.",
            show_default=False,
        ),
    ] = None,
    delay: Annotated[
        str | None,
        typer.Option(
            "--delay",
            metavar="TIME",
            help="Run no earlier than this from now: 90, 15m, 2h.",
            show_default=False,
        ),
    ] = None,
    run_at: Annotated[
        str | None,
        typer.Option(
            "--run-at",
            metavar="TIME",
            help="Run no earlier than: 2027-01-31T08:00.",
            show_default=False,
        ),
    ] = None,
    expires_at: Annotated[
        str | None,
        typer.Option(
            "--expires-at",
            metavar="TIME",
            help="Do not start it after this time. Default: in 30 days.",
            show_default=False,
        ),
    ] = None,
    max_attempts: Annotated[
        int | None,
        typer.Option(
            "--max-attempts",
            metavar="N",
            help="Default: the handler's retry policy.",
            show_default=False,
        ),
    ] = None,
    tag: Annotated[
        str | None,
        typer.Option("--tag", metavar="TEXT", help="Where the job comes from.", show_default=False),
    ] = None,
    correlation_id: Annotated[
        str | None,
        typer.Option(
            "--correlation-id",
            metavar="TEXT",
            help="Passed to the handler unchanged.",
            show_default=False,
        ),
    ] = None,
    header: Annotated[
        list[str] | None,
        typer.Option(
            "--header", metavar="NAME=VALUE", help="A header; repeatable.", show_default=False
        ),
    ] = None,
    unique: Annotated[
        str | None,
        typer.Option(
            "--unique",
            metavar="JSON",
            help='What to do if a job with the same key exists: {"once": KEY}, or idempotent, coalesce, '
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
            help="Tenant of the job: jobs of a queue with the same key share the limits per key.",
            show_default=False,
        ),
    ] = None,
    dsn: Dsn = None,
    as_json: Json = False,
) -> None:
    """Enqueue a job by the name of its kind, and commit it.

    Without --app and --queue, the job goes to the queue that the workers of its kind have declared in the database.
    """
    options: JobOptionChanges = {}
    if priority is not None:
        options["priority"] = priority
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
    client, name, doubt = client_for(kind, queue=queue, app=app, dsn=dsn)
    options["queue"] = name
    job_id = client.enqueue_now(kind, json_object(args, "args"), **options)
    warn(doubt)
    if as_json:
        print_json({"job_id": int(job_id), "is_new": job_id.is_new, "kind": kind, "queue": name})
    elif not job_id.is_new:
        console().print(f"job {job_id} already has this key in queue {name}: nothing was enqueued")
    else:
        console().print(f"enqueued job {job_id} in queue {name}")


def _pair(text: str) -> tuple[str, str]:
    name, found, value = text.partition("=")
    if not found or not name:
        raise ConfigError("--header", f"is {shown(text)}, not NAME=VALUE", value=text)
    return name, value
