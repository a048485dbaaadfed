"""forebay drain: send the jobs of queues to their sinks until a signal."""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

from forebay.cli._commands import argument, option
from forebay.cli._load import load_app
from forebay.cli._serving import announce_drain, run_and_report, set_up_log
from forebay.cli._worker import LogForm, LogLevel
from forebay.cli.exit import ExitCode
from forebay.cli.options import AppDir, Dsn, Json, SinkSettings, setting_flags, sink_settings
from forebay.cli.output import print_json, table
from forebay.cli.text import console
from forebay.errors import ConfigError, shown

if TYPE_CHECKING:
    from forebay.app import App
    from forebay.sending import Drain


def drain(
    app: Annotated[
        str | None,
        argument("[MODULE:APP]", "The application that declares the drains: shop.jobs:app."),
    ] = None,
    names: Annotated[
        list[str] | None, argument("[NAME]...", "Drains to run (default: all).")
    ] = None,
    *,
    queue: Annotated[
        str | None, option("--queue QUEUE", "Without an application: the queue to send.")
    ] = None,
    sink: Annotated[
        str | None, option("--sink TYPE", "Where to send its jobs, such as redis-stream.")
    ] = None,
    setting: SinkSettings = None,
    group: Annotated[str, option("--group GROUP", "Consumer group of the queue.")] = "default",
    concurrency: Annotated[
        int, option("--concurrency N", "Calls of the sink at once; 1 keeps order.")
    ] = 1,
    verify: Annotated[
        bool, option("--verify", "Read each message back before its job is done.")
    ] = False,
    audit: Annotated[
        bool, option("--audit", "Only read back what was sent, and send again what is lost.")
    ] = False,
    until_idle: Annotated[
        bool, option("--until-idle", "Exit when no job is ready or running.")
    ] = False,
    app_dir: AppDir = None,
    log_level: LogLevel = "info",
    log_format: LogForm = "text",
    dsn: Dsn = None,
    as_json: Json = False,
    flags: Annotated[dict[str, Any], setting_flags("worker", "retry")],
) -> None:
    """Send the jobs of queues to brokers, streams and other task queues.

    Name an application that declares drains, or give --queue, --sink and --set. On SIGTERM or
    Ctrl-C, or when its terminal is closed, it waits up to grace_seconds (30) for running calls. A
    second signal stops it at once.
    """
    from forebay.config import load_settings

    set_up_log(log_level, log_format)
    settings = load_settings(flags)
    if app is None:
        found, drains = _without_app(
            dsn, queue, sink, setting, group, concurrency=concurrency, verify=verify
        )
    else:
        given = [
            name for name, value in (("--queue", queue), ("--sink", sink)) if value is not None
        ]
        if given or setting:
            raise ConfigError(
                (given or ["--set"])[0], "is for a drain without an application; name one of both"
            )
        found, _ = load_app(app, app_dir)
        drains = _chosen(found, names or [])
    found._internals.use(dsn=dsn, settings=settings)
    if audit:
        _audit(drains, found.dsn, as_json=as_json)
        return
    workers = [one.worker(found.dsn, settings.worker) for one in drains]
    for one, worker in zip(drains, workers, strict=True):
        announce_drain(one, worker)
    run_and_report([workers], settings.worker, until_idle=until_idle, as_json=as_json)


def _audit(drains: list[Drain], dsn: str, *, as_json: bool) -> None:
    """Audit the drains that keep proofs; exit with 1 if lost messages could not be sent again."""
    # Without one that keeps proofs, the first says what is missing.
    audited = [one for one in drains if one.keeps_proofs] or [drains[0]]
    found = {one.name: asyncio.run(one.audit(dsn)) for one in audited}
    if as_json:
        print_json({name: asdict(one) for name, one in found.items()})
    else:
        rows = table(
            *("drain", "read", "there", "unknown", "lost", "sent again"),
            right=("read", "there", "unknown", "lost", "sent again"),
            loose=("drain",),
        )
        for name, one in found.items():
            numbers = (one.read, one.there, one.unknown, one.lost, one.resent)
            rows.add_row(name, *(f"{number:,}" for number in numbers))
        console().print(rows)
    if any(one.resent < one.lost for one in found.values()):
        raise SystemExit(ExitCode.FAILED)


def _chosen(app: App, names: list[str]) -> list[Drain]:
    from forebay.sending import drains_of

    declared = drains_of(app)
    if not declared:
        raise ConfigError(
            "app",
            "declares no drain",
            hint="Declare one: forebay.Drain(app, name, sink=..., queue=...).",
        )
    for name in names:
        if name not in declared:
            raise ConfigError(
                "name",
                f"is {shown(name)}, and the application declares no drain of this name",
                value=name,
                hint=f"Its drains: {', '.join(declared)}.",
            )
    return [one for name, one in declared.items() if not names or name in names]


def _without_app(
    dsn: str | None,
    queue: str | None,
    sink: str | None,
    settings: list[str] | None,
    group: str,
    *,
    concurrency: int,
    verify: bool,
) -> tuple[App, list[Drain]]:
    from forebay.app import App
    from forebay.sending import Drain
    from forebay.sinks import make_sink, sink_types

    if queue is None or sink is None:
        raise ConfigError(
            "--sink" if sink is None else "--queue",
            "is missing",
            hint="Name an application with drains, or give --queue, --sink and --set."
            f" Sinks: {', '.join(sink_types())}.",
        )
    config = sink_settings(settings)
    app = App(dsn, name=f"drain of {queue}")
    return app, [
        Drain(
            app,
            queue,
            sink=make_sink(sink, config),
            queue=queue,
            group=group,
            verify=verify,
            concurrency=concurrency,
        )
    ]
