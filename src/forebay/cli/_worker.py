"""forebay worker: run handlers until a signal."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from forebay.cli._serving import run_worker
from forebay.cli.options import AppDir, Dsn, Json, with_settings

AppPlace = Annotated[
    str, typer.Argument(metavar="MODULE:APP", help="The application: shop.jobs:app.")
]
LogLevel = Annotated[
    str, typer.Option("--log-level", metavar="LEVEL", help="debug, info, warning or error.")
]
LogForm = Annotated[
    str,
    typer.Option("--log-format", metavar="FORMAT", help="text, or json: one JSON object a record."),
]


@with_settings("worker", "retry", common=("queue", "concurrency"))
def worker(
    app: AppPlace,
    *,
    group: Annotated[
        str, typer.Option("--group", metavar="GROUP", help="Consumer group of its queues.")
    ] = "default",
    endpoints: Annotated[
        bool,
        typer.Option("--endpoints", help="Also expand published events and send deliveries."),
    ] = False,
    until_idle: Annotated[
        bool, typer.Option("--until-idle", help="Exit when no job is ready or running.")
    ] = False,
    app_dir: AppDir = None,
    log_level: LogLevel = "info",
    log_format: LogForm = "text",
    dsn: Dsn = None,
    as_json: Json = False,
    flags: dict[str, Any],
) -> None:
    """Run the jobs of an application, and its drains.

    On SIGTERM or Ctrl-C it waits up to grace_seconds (30) for running jobs and releases the rest without using
    an attempt. A second signal stops it at once.
    """
    run_worker(
        app,
        group=group,
        endpoints=endpoints,
        until_idle=until_idle,
        app_dir=app_dir,
        log_level=log_level,
        log_format=log_format,
        dsn=dsn,
        as_json=as_json,
        flags=flags,
    )
