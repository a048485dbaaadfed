"""forebay enqueue: enqueue and commit one job."""

from __future__ import annotations

from typing import Annotated, cast

from forebay.cli._commands import Together, argument, option
from forebay.cli._served import check_args, client_for, warn
from forebay.cli.options import Dsn, Json, duration, instant, json_object, pair
from forebay.cli.output import print_json
from forebay.cli.text import console
from forebay.model import JobOptionChanges
from forebay.model.unique import unique_from


def _options(
    *,
    priority: Annotated[
        int | None,
        option(
            "--priority N",
            "Lower numbers run first. Default: with --app that of the kind, else 100.",
        ),
    ] = None,
    delay: Annotated[
        str | None, option("--delay TIME", "Run no earlier than this from now: 90, 15m, 2h.")
    ] = None,
    run_at: Annotated[
        str | None, option("--run-at TIME", "Run no earlier than: 2027-01-31T08:00.")
    ] = None,
    expires_at: Annotated[
        str | None,
        option("--expires-at TIME", "Do not start it after this time. Default: in 30 days."),
    ] = None,
    max_attempts: Annotated[
        int | None, option("--max-attempts N", "Default: the handler's retry policy.")
    ] = None,
    tag: Annotated[str | None, option("--tag TEXT", "Where the job comes from.")] = None,
    correlation_id: Annotated[
        str | None, option("--correlation-id TEXT", "Passed to the handler unchanged.")
    ] = None,
    header: Annotated[
        list[str] | None, option("--header NAME=VALUE", "A header; repeatable.")
    ] = None,
    unique: Annotated[
        str | None,
        option(
            "--unique JSON",
            'What to do if a job with the same key exists: {"once": KEY}, or idempotent, coalesce, '
            "replace, debounce, throttle.",
        ),
    ] = None,
    ordering_key: Annotated[
        str | None,
        option(
            "--ordering-key TEXT",
            "Jobs of the queue with the same key run one at a time, in order.",
        ),
    ] = None,
    limit_key: Annotated[
        str | None,
        option(
            "--limit-key TEXT",
            "Tenant of the job: jobs of a queue with the same key share the limits per key.",
        ),
    ] = None,
) -> JobOptionChanges:
    given = {
        "priority": priority,
        "delay": duration(delay, "delay"),
        "run_at": instant(run_at, "run_at"),
        "expires_at": instant(expires_at, "expires_at"),
        "max_attempts": max_attempts,
        "tag": tag,
        "correlation_id": correlation_id,
        "ordering_key": ordering_key,
        "limit_key": limit_key,
        "headers": dict(pair(text, "--header") for text in header) if header else None,
        "unique": None if unique is None else unique_from(json_object(unique, "--unique")),
    }
    return cast(
        "JobOptionChanges", {name: value for name, value in given.items() if value is not None}
    )


def enqueue(
    kind: Annotated[str, argument("KIND", "Kind of the job.")],
    args: Annotated[
        str | None, argument("[JSON]", "Arguments, a JSON object; `-` reads it from stdin.")
    ] = None,
    *,
    app: Annotated[
        str | None,
        option(
            "--app MODULE:APP", "The application: the job gets the queue and options of its kind."
        ),
    ] = None,
    queue: Annotated[
        str | None, option("--queue QUEUE", "Queue of the job. Default: that of the kind.")
    ] = None,
    options: Annotated[JobOptionChanges, Together(_options)],
    dsn: Dsn = None,
    as_json: Json = False,
) -> None:
    """Enqueue a job by the name of its kind, and commit it.

    Without --app and --queue, the job goes to the queue that the workers of its kind have declared
    in the database.
    """
    client, name, doubt = client_for(kind, queue=queue, app=app, dsn=dsn)
    options["queue"] = name
    found = json_object(args, "args")
    check_args(kind, found, app=app)
    job_id = client.enqueue_now(kind, found, **options)
    warn(doubt)
    if as_json:
        print_json({"job_id": int(job_id), "is_new": job_id.is_new, "kind": kind, "queue": name})
    elif not job_id.is_new:
        console().print(f"job {job_id} already has this key in queue {name}: nothing was enqueued")
    else:
        console().print(f"enqueued job {job_id} in queue {name}")
