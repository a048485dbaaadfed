"""The program: all commands, and how their errors are reported."""

from __future__ import annotations

import getpass
import importlib.metadata
import os
import sys
import threading
import time
from collections.abc import Sequence
from typing import Annotated, Final, NoReturn

import typer

from forebay.cli import (
    _alerts,
    _apply,
    _backfill,
    _config,
    _dead,
    _deliver,
    _demo,
    _dev,
    _doctor,
    _drain,
    _endpoints,
    _enqueue,
    _events,
    _groups,
    _guard,
    _jobs,
    _keys,
    _metrics,
    _mirror,
    _publish,
    _queues,
    _schedules,
    _schema,
    _stats,
    _worker,
    _workers,
)
from forebay.cli._added import AllCommands
from forebay.cli._help import Commands
from forebay.cli.exit import (
    ExitCode,
    errors_go_to,
    exit_code,
    is_database_error,
    log_bug,
    print_database_error,
    print_error,
)
from forebay.cli.options import Json
from forebay.cli.output import print_json
from forebay.db.errors import translate_own
from forebay.errors import ForebayError, PermissionDenied
from forebay.ops.events import acting_as

#: How long threads that handlers left behind may delay the exit of the process.
_LEFT_OVER_SECONDS: Final = 1.0

program = Commands(
    name="forebay",
    cls=AllCommands,
    help="Forebay is a transactional job queue and outbox for Python and PostgreSQL.",
    # One row of 80 columns.
    epilog="Exit codes: 0 done · 1 not done, or problems · 2 wrong usage · 3 no database",
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
)
_TRY = "Try it out"
_SEND = "Send"
_RUN = "Run"
_OPERATE = "Operate"

program.command("demo", rich_help_panel=_TRY)(_demo.demo)
program.command("dev", rich_help_panel=_TRY)(_dev.dev)
program.command("drain", rich_help_panel=_SEND)(_drain.drain)
program.command("deliver", rich_help_panel=_SEND)(_deliver.deliver)
program.command("publish", rich_help_panel=_SEND)(_publish.publish)
program.add_typer(_endpoints.commands, name="endpoints", rich_help_panel=_SEND)
program.add_typer(_publish.types, name="event-types", rich_help_panel=_SEND)
program.add_typer(_publish.subscriptions, name="subscriptions", rich_help_panel=_SEND)
program.command("migrate", rich_help_panel=_RUN)(_schema.migrate)
program.command("sql", rich_help_panel=_RUN)(_schema.sql)
program.command("apply", rich_help_panel=_RUN)(_apply.apply)
program.command("worker", rich_help_panel=_RUN)(_worker.worker)
program.command("enqueue", rich_help_panel=_RUN)(_enqueue.enqueue)
program.command("backfill", rich_help_panel=_RUN)(_backfill.backfill)
program.command("config", rich_help_panel=_RUN)(_config.config)
program.command("doctor", rich_help_panel=_OPERATE)(_doctor.doctor)
program.command("alerts", rich_help_panel=_OPERATE)(_alerts.alerts)
program.add_typer(_alerts.commands, name="thresholds", rich_help_panel=_OPERATE)
program.command("metrics", rich_help_panel=_OPERATE)(_metrics.metrics)
program.command("guard", rich_help_panel=_OPERATE)(_guard.guard)
program.add_typer(_jobs.commands, name="jobs", rich_help_panel=_OPERATE)
program.add_typer(_dead.commands, name="dead", rich_help_panel=_OPERATE)
program.add_typer(_queues.commands, name="queues", rich_help_panel=_OPERATE)
program.add_typer(_schedules.commands, name="schedules", rich_help_panel=_SEND)
program.add_typer(_keys.commands, name="keys", rich_help_panel=_OPERATE)
program.add_typer(_groups.commands, name="groups", rich_help_panel=_OPERATE)
program.add_typer(_workers.commands, name="workers", rich_help_panel=_OPERATE)
program.command("stats", rich_help_panel=_OPERATE)(_stats.stats)
program.add_typer(_events.commands, name="events", rich_help_panel=_OPERATE)
program.add_typer(_mirror.commands, name="mirror", rich_help_panel=_OPERATE)
program.command("adopt", rich_help_panel=_OPERATE)(_schema.adopt)


@program.command("version", rich_help_panel=_RUN)
def version(*, as_json: Json = False) -> None:
    """Print the version of the library."""
    number = importlib.metadata.version("forebay")
    if as_json:
        print_json({"version": number})
    else:
        print(number)


def _print_version(wanted: bool) -> None:
    if wanted:
        version()
        raise typer.Exit


@program.callback()
def _options(
    *,
    _version: Annotated[
        bool,
        typer.Option(
            "--version", help="Print the version.", callback=_print_version, is_eager=True
        ),
    ] = False,
) -> None:
    pass


def _actor() -> str:
    """Return what the event log records for acts of this program: the user of the operating system, if there is one."""
    try:
        return f"cli {getpass.getuser()}"
    except (KeyError, OSError, ImportError):  # no entry for the user id, as in many containers
        return "cli"


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the program and exit."""
    code = run(arguments)
    # A thread that a handler blocks indefinitely must not keep the process: a supervisor waits for its exit.
    until = time.monotonic() + _LEFT_OVER_SECONDS
    for thread in threading.enumerate():
        if not thread.daemon and thread is not threading.current_thread():
            thread.join(max(0.0, until - time.monotonic()))
            if thread.is_alive():
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(code)
    sys.exit(code)


def run(arguments: Sequence[str] | None = None) -> int:
    """Run the program and return its exit code.

    Errors of this library and of the database are printed without a traceback. Any other exception is a
    bug in this library or in a handler's module, and is raised.
    """
    errors_go_to(None)
    try:
        with acting_as(_actor()):
            program(args=arguments)
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else ExitCode.DONE
    except ForebayError as error:
        print_error(error)
        return exit_code(error)
    except KeyboardInterrupt:
        return ExitCode.INTERRUPTED
    except Exception as error:
        if not is_database_error(error):
            if log_bug(error):
                return ExitCode.FAILED
            raise
        ours = translate_own(error)
        if isinstance(ours, PermissionDenied):
            print_error(ours)
        else:
            print_database_error(error)
        return ExitCode.FAILED
    return ExitCode.DONE
