"""forebay dev: a local server, the schema and a worker for development."""

from __future__ import annotations

import signal
import threading
from typing import Annotated, Any

import typer
from rich.text import Text

from forebay.cli._load import load_app
from forebay.cli._served import check_queues_of_worker
from forebay.cli._worker import LogForm, LogLevel, announce, run_until_signal, set_up_log
from forebay.cli.options import with_settings
from forebay.cli.output import console, facts_table
from forebay.config import load_settings
from forebay.embedded import EmbeddedServer, default_server
from forebay.upgrade.migrate import migrate
from forebay.worker import Worker


@with_settings("worker", "retry")
def dev(
    app: Annotated[
        str | None,
        typer.Argument(
            metavar="[MODULE:APP]",
            help="Also run a worker of this application.",
            show_default=False,
        ),
    ] = None,
    *,
    keep: Annotated[
        bool, typer.Option("--keep", help="Leave the server running and return.")
    ] = False,
    stop: Annotated[
        bool, typer.Option("--stop", help="Stop a server that --keep left running.")
    ] = False,
    log_level: LogLevel = "info",
    log_format: LogForm = "text",
    flags: dict[str, Any],
) -> None:
    """Start a local PostgreSQL server and migrate it; run a worker if an application is named.

    Ctrl-C stops it. The data is kept for the next start. The address `embedded` refers to this server.
    """
    set_up_log(log_level, log_format)
    settings = load_settings(flags)
    found, location = load_app(app) if app else (None, None)
    server = default_server()
    out = console(stderr=True)
    if stop:
        ran = server.pid is not None
        server.stop()
        out.print(f"{'stopped the server' if ran else 'no server is running'} in {server.data_dir}")
        return
    started = server.start()
    try:
        steps = migrate(server.dsn())
        out.print(_how_to_connect(server, len(steps)))
        if keep:
            return
        if found is None:
            out.print("\nCtrl-C stops it.", style="dim")
            _wait_for_signal()
            return
        out.print()
        found._internals.use(dsn=server.dsn(), settings=settings)
        check_queues_of_worker(found)
        worker = Worker(found._internals, server.dsn(), settings=settings.worker, location=location)
        announce(found, worker, app or "")
        run_until_signal(worker, settings.worker.grace_seconds)
    finally:
        if started and not keep:
            server.stop()


def _how_to_connect(server: EmbeddedServer, migrated: int) -> object:
    rows = facts_table()
    rows.add_row("server", f"PostgreSQL {server.binaries.version}, data in {server.data_dir}")
    rows.add_row("schema", f"{migrated} migrations applied" if migrated else "up to date")
    rows.add_row("address", Text(server.dsn(), style="bold"))
    rows.add_row("from here", "export FOREBAY_DATABASE_URL=embedded")
    rows.add_row("with psql", f"psql '{server.dsn()}'")
    return rows


def _wait_for_signal() -> None:
    stopped = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopped.set())
    stopped.wait()
