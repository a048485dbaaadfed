"""The program: all commands."""

from __future__ import annotations

import importlib.metadata
from typing import Annotated

import typer

from forebay.cli._added import AllCommands
from forebay.cli._help import Commands
from forebay.cli.options import Json
from forebay.cli.output import print_json

_TRY = "Try it out"
_SEND = "Send"
_RUN = "Run"
_OPERATE = "Operate"

#: Of each command: its module in this package, its function or its commands there, and where help lists it.
_BUILT_IN = {
    "demo": ("_demo", "demo", _TRY),
    "dev": ("_dev", "dev", _TRY),
    "drain": ("_drain", "drain", _SEND),
    "deliver": ("_deliver", "deliver", _SEND),
    "publish": ("_publish", "publish", _SEND),
    "migrate": ("_schema", "migrate", _RUN),
    "sql": ("_schema", "sql", _RUN),
    "apply": ("_apply", "apply", _RUN),
    "worker": ("_worker", "worker", _RUN),
    "enqueue": ("_enqueue", "enqueue", _RUN),
    "backfill": ("_backfill", "backfill", _RUN),
    "config": ("_config", "config", _RUN),
    "doctor": ("_doctor", "doctor", _OPERATE),
    "guard": ("_guard", "guard", _OPERATE),
    "time-machine": ("_archive", "time_machine", _OPERATE),
    "bundle": ("_bundle", "bundle", _OPERATE),
    "where": ("_where", "where", _OPERATE),
    "top": ("_top", "top", _OPERATE),
    "alerts": ("_alerts", "alerts", _OPERATE),
    "metrics": ("_metrics", "metrics", _OPERATE),
    "stats": ("_stats", "stats", _OPERATE),
    "adopt": ("_schema", "adopt", _OPERATE),
    "version": ("_main", "version", _RUN),
    "endpoints": ("_endpoints", "commands", _SEND),
    "event-types": ("_publish", "types", _SEND),
    "subscriptions": ("_publish", "subscriptions", _SEND),
    "jobs": ("_jobs", "commands", _OPERATE),
    "dead": ("_dead", "commands", _OPERATE),
    "queues": ("_queues", "commands", _OPERATE),
    "schedules": ("_schedules", "commands", _SEND),
    "subjects": ("_subjects", "commands", _SEND),
    "keys": ("_keys", "commands", _OPERATE),
    "groups": ("_groups", "commands", _OPERATE),
    "workers": ("_workers", "commands", _OPERATE),
    "exports": ("_exports", "commands", _OPERATE),
    "events": ("_events", "commands", _OPERATE),
    "thresholds": ("_alerts", "commands", _OPERATE),
    "mirror": ("_mirror", "commands", _OPERATE),
}


class _Program(AllCommands):
    built_in = _BUILT_IN


program = Commands(
    name="forebay",
    cls=_Program,
    help="Forebay is a transactional job queue and outbox for Python and PostgreSQL.",
    # One row of 80 columns.
    epilog="Exit codes: 0 done · 1 not done, or problems · 2 wrong usage · 3 no database",
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
)


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
