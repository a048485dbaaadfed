"""forebay dev: a local server, the schema and a worker for development."""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
from typing import TYPE_CHECKING, Annotated, Any

from forebay.cli._apply import print_differences
from forebay.cli._commands import argument, option
from forebay.cli._database import run
from forebay.cli._load import check_place, load_app
from forebay.cli._reload import end_with_parent, run_reloading
from forebay.cli._served import check_queues_of_worker
from forebay.cli._serving import run_and_report, set_up_log, workers_of
from forebay.cli._worker import LogForm, LogLevel
from forebay.cli.options import setting_flags
from forebay.cli.output import print_json
from forebay.cli.text import Text, console
from forebay.errors import ForebayError
from forebay.model.text import counted
from forebay.ops import protocol

if TYPE_CHECKING:
    from forebay.cli.text import Console
    from forebay.config import Settings
    from forebay.embedded import EmbeddedServer, Project


def dev(
    app: Annotated[
        str | None, argument("[MODULE:APP]", "Also run a worker of this application.")
    ] = None,
    *,
    keep: Annotated[bool, option("--keep", "Leave the server running and return.")] = False,
    stop: Annotated[
        bool, option("--stop", "Stop the server, for all projects, and return.")
    ] = False,
    reset: Annotated[
        bool, option("--reset", "First delete this project's database, with all its tables.")
    ] = False,
    reload: Annotated[
        bool,
        option(
            "--reload/--no-reload", "Start the worker again when a file of the project changes."
        ),
    ] = True,
    as_json: Annotated[
        bool, option("--json", "Print the address and the places as one line of JSON on stdout.")
    ] = False,
    only_worker: Annotated[str | None, option("--only-worker", "", hidden=True)] = None,
    child_of: Annotated[int, option("--child-of", "", hidden=True)] = 0,
    log_level: LogLevel = "info",
    log_format: LogForm = "text",
    flags: Annotated[dict[str, Any], setting_flags("worker", "retry")],
) -> None:
    """Start a local PostgreSQL server, and migrate this project's database.

    Run a worker if an application is named.

    Each project has a database. The address `embedded` refers to it, in every command and script
    below the project's folder. Ctrl-C stops the worker, and the server if this command started it
    and no other program uses it. The data is kept until --reset. Queues that the application
    declares are applied.
    """
    from forebay.config import load_settings
    from forebay.embedded import Project, default_server
    from forebay.upgrade.migrate import migrate

    set_up_log(log_level, log_format)
    settings = load_settings(flags)
    if only_worker is not None and app is not None:
        end_with_parent(child_of)
        _work(app, only_worker, settings)
        return
    if app is not None:
        check_place(app)
    server = default_server()
    out = console(stderr=True)
    if stop:
        ran = server.pid is not None
        server.stop()
        out.print(f"{'stopped the server' if ran else 'no server is running'} in {server.data_dir}")
        return
    started = server.start()
    try:
        project = Project.of()
        if reset:
            project.drop(server)
        dsn = project.ensure(server)
        steps = migrate(dsn)
        if as_json:
            print_json(
                {
                    "address": dsn,
                    "database": project.database,
                    "project": str(project.folder),
                    "data_dir": str(server.data_dir),
                    "server_version": server.binaries.version,
                    "migrations_applied": len(steps),
                }
            )
            sys.stdout.flush()
        else:
            _print_how_to_connect(out, server, project, dsn, len(steps))
        if keep:
            return
        if app is None:
            out.print("\nCtrl-C stops the server." if started else "\nCtrl-C ends.", style="dim")
            _wait_for_signal()
            return
        if not reload:
            out.print()
            _work(app, dsn, settings)
            return
        out.print(f"\nwatching the Python files of {project.folder}", style="dim", soft_wrap=True)
        options = {"--log-level": log_level, "--log-format": log_format, "--only-worker": dsn}
        options["--child-of"] = str(os.getpid())
        options |= {
            f"--{name.replace('_', '-')}": value
            for name, value in flags.items()
            if value is not None
        }
        command = [sys.executable, "-m", "forebay", "dev", app]
        for name, value in options.items():
            command += [name, str(value)]

        def report(line: str) -> None:
            out.print(line, style="bold", soft_wrap=True)

        def report_crash(pid: int, number: int) -> None:
            try:
                run(dsn, protocol.report_crash(socket.gethostname(), pid, number))
            except ForebayError as error:
                report(f"its jobs return when its lease is revoked: {error.message}")

        run_reloading(command, project.folder, report, report_crash)
    finally:
        if started and not keep:
            _stop_unless_used(server, out)


def _work(app: str, dsn: str, settings: Settings) -> None:
    """Apply what the application declares, and run a worker until a signal."""
    found, location = load_app(app)
    found._internals.use(dsn=dsn, settings=settings)
    check_queues_of_worker(found)
    differences = found.apply()
    if differences:
        print_differences(found, differences, dry_run=False)
    run_and_report(workers_of(found, app, location), settings.worker, as_json=False)


def _stop_unless_used(server: EmbeddedServer, out: Console) -> None:
    from forebay.embedded import sessions_of

    try:
        others = sessions_of(server)
    except ForebayError:
        others = 0  # a server that does not answer
    if others:
        out.print(
            f"the server is still running: {counted(others, 'connection')} of other programs."
            " `forebay dev --stop` stops it",
            style="dim",
        )
    else:
        server.stop()


def _print_how_to_connect(
    out: Console, server: EmbeddedServer, project: Project, dsn: str, migrated: int
) -> None:
    rows = {
        "project": str(project.folder),
        "database": project.database,
        "schema": f"{migrated} migrations applied" if migrated else "up to date",
        "address": dsn,
        "from here": "export FOREBAY_DATABASE_URL=embedded",
        "server": f"PostgreSQL {server.binaries.version}, for all projects of this user",
        "data": str(server.data_dir),
        "delete": "forebay dev --reset deletes the database of this project",
        "stop": "forebay dev --stop stops the server",
    }
    for name, value in rows.items():
        # An address is one word, however long: it is copied from here.
        out.print(Text(f"{name:<10}", style="dim").append(value, style="default"), soft_wrap=True)


def _wait_for_signal() -> None:
    stopped = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopped.set())
    stopped.wait()
