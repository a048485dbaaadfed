"""forebay worker: run handlers until a signal."""

from __future__ import annotations

from typing import Annotated, Any

from forebay.cli._commands import argument, option
from forebay.cli._serving import run_worker
from forebay.cli.options import AppDir, Dsn, Json, setting_flags

AppPlace = Annotated[str, argument("MODULE:APP", "The application: shop.jobs:app.")]
LogLevel = Annotated[str, option("--log-level LEVEL", "debug, info, warning or error.")]
LogForm = Annotated[str, option("--log-format FORMAT", "text, or json: one JSON object a record.")]

#: The settings that most people choose; ``--help`` shows them.
_COMMON = (
    "queue", "concurrency", "processes", "health", "schedules", "grace_seconds",
    "max_attempts", "without_schema", "app_version",
)  # fmt: skip


def worker(
    app: AppPlace,
    *,
    group: Annotated[str, option("--group GROUP", "Consumer group of its queues.")] = "default",
    endpoints: Annotated[
        bool, option("--endpoints", "Also expand published events and send deliveries.")
    ] = False,
    until_idle: Annotated[
        bool, option("--until-idle", "Exit when no job is ready or running.")
    ] = False,
    app_dir: AppDir = None,
    log_level: LogLevel = "info",
    log_format: LogForm = "text",
    dsn: Dsn = None,
    as_json: Json = False,
    flags: Annotated[
        dict[str, Any],
        setting_flags("worker", "delivery", "retry", common=_COMMON),
    ],
) -> None:
    """Run the jobs of an application, and its drains.

    On SIGTERM or Ctrl-C, or when its terminal is closed, it waits up to grace_seconds (30) for
    running jobs and releases the rest without using an attempt. A second signal stops it at once.
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
