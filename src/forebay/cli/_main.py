"""The program: all commands."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from forebay.cli._added import AllCommands
from forebay.cli.exit import ExitCode, print_error
from forebay.cli.options import Json
from forebay.errors import ConfigError, ForebayError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_TRY: Final = "Try it out"
_SEND: Final = "Send"
_RUN: Final = "Run"
_OPERATE: Final = "Operate"

#: Of each command: its module and its function or its commands there, where help lists it, and its
#: help in one sentence.
#: A command's docstring begins with this sentence; a group has no other help.
_BUILT_IN: Final = {
    "demo": ("_demo:demo", _TRY,
        "Run jobs, kill a worker half-way, and count what was lost."),
    "dev": ("_dev:dev", _TRY,
        "Start a local PostgreSQL server, and migrate this project's database."),
    "drain": ("_drain:drain", _SEND,
        "Send the jobs of queues to brokers, streams and other task queues."),
    "deliver": ("_deliver:deliver", _SEND,
        "Expand published events, and send their deliveries to the endpoints."),
    "publish": ("_publish:publish", _SEND,
        "Publish an event, and commit it: each endpoint that subscribes gets a delivery."),
    "migrate": ("_schema:migrate", _RUN,
        "Migrate the schema to the version of this library."),
    "sql": ("_schema:sql", _RUN,
        "Print the migrations as one SQL script, for a DBA or Alembic."),
    "apply": ("_apply:apply", _RUN,
        "Apply the queues and schedules of an application."),
    "worker": ("_worker:worker", _RUN,
        "Run the jobs of an application, and its drains."),
    "tick": ("_tick:tick", _RUN,
        "Do what is due within a budget, and leave no session open."),
    "enqueue": ("_enqueue:enqueue", _RUN,
        "Enqueue a job by the name of its kind, and commit it."),
    "signal": ("_signal:send_signal", _RUN,
        "Send a signal, and commit it: the flow that waits for it continues."),
    "backfill": ("_backfill:backfill", _RUN,
        "Enqueue a job for each row of a table or query, in the database."),
    "import": ("_import:commands", _RUN,
        "Schedules and waiting jobs of Celery and others: copy them here."),
    "config": ("_config:config", _RUN,
        "Show every setting, its value and where it comes from."),
    "status": ("_status:status", _OPERATE,
        "Tell whether there is something to do, and what."),
    "doctor": ("_doctor:doctor", _OPERATE,
        "Find problems of the database, or why a job does not run."),
    "guard": ("_guard:guard", _OPERATE,
        "List sessions that block clean-up."),
    "time-machine": ("_archive:time_machine", _OPERATE,
        "Show which jobs were ready or ran at a moment."),
    "drop-ballast": ("_alerts:drop_ballast", _OPERATE,
        "Release the room that is kept for a full disk."),
    "bundle": ("_bundle:bundle", _OPERATE,
        "Write one file for a bug report, without data of jobs."),
    "where": ("_where:where", _OPERATE,
        "Show where a job is, why, and what happens next."),
    "top": ("_top:top", _OPERATE,
        "Watch queues, workers, keys that wait and alerts live."),
    "console": ("_console:console", _OPERATE,
        "Show queues, jobs, failures and the database in a browser."),
    "alerts": ("_alerts:alerts", _OPERATE,
        "Check the alerts, and list those that fire."),
    "metrics": ("_metrics:metrics", _OPERATE,
        "Print the metrics of the database for Prometheus, or serve them."),
    "stats": ("_stats:stats", _OPERATE,
        "Count jobs that wait, run and have ended, by queue, kind and tag."),
    "adopt": ("_schema:adopt", _OPERATE,
        "Resume or discard the jobs of a copied or restored database."),
    "version": ("_main:version", _RUN,
        "Print the version of the library."),
    "endpoints": ("_endpoints:commands", _SEND,
        "Endpoints: list, show, create, alter, test, reset, replay and more."),
    "event-types": ("_publish:types", _SEND,
        "Event types: list, create, drop."),
    "subscriptions": ("_publish:subscriptions", _SEND,
        "Which endpoints get which events: list, add, remove."),
    "jobs": ("_jobs:commands", _OPERATE,
        "Jobs: list, search, show, cancel, retry, reschedule, rewind, replay, export and more."),
    "dead": ("_dead:commands", _OPERATE,
        "Dead letters: list, show, redrive, skip, keep, purge, mute and more."),
    "queues": ("_queues:commands", _OPERATE,
        "Queues: list, pause, resume, truncate, purge, drop, shard, limit and more."),
    "schedules": ("_schedules:commands", _SEND,
        "Schedules: list, show, create, preview, pause, run, backfill and more."),
    "subjects": ("_subjects:commands", _SEND,
        (
                "Subjects, jobs that come due again: push, upsert, list, show, kill, revive, "
                "upgrade and more."
                )),
    "keys": ("_keys:commands", _OPERATE,
        "Ordering keys and limit keys: list, show, limit, pause, resume, reset."),
    "groups": ("_groups:commands", _OPERATE,
        "Consumer groups: list, close."),
    "workers": ("_workers:commands", _OPERATE,
        "Running workers: list, stop, set."),
    "exports": ("_exports:commands", _OPERATE,
        "Exports before retention: create, run, list, drop."),
    "events": ("_events:commands", _OPERATE,
        "The event log: what operators did."),
    "settings": ("_settings:commands", _OPERATE,
        "Settings of the database: list, show, set, reset."),
    "thresholds": ("_alerts:commands", _OPERATE,
        "Thresholds of the alerts."),
    "mirror": ("_mirror:commands", _OPERATE,
        "Mirrors: status, heartbeat, audit."),
}  # fmt: skip


def version(*, as_json: Json = False) -> None:
    """Print the version of the library."""
    import importlib.metadata

    number = importlib.metadata.version("forebay")
    if as_json:
        from forebay.cli.output import print_json

        print_json({"version": number})
    else:
        print(number)


#: Of each shell: where a line loads the completion, and the line.
_SHELLS: Final = {
    "bash": (".bashrc", 'eval "$(_FOREBAY_COMPLETE=bash_source forebay)"'),
    "zsh": (".zshrc", 'eval "$(_FOREBAY_COMPLETE=zsh_source forebay)"'),
    "fish": (".config/fish/completions/forebay.fish", (
            "_FOREBAY_COMPLETE=fish_source forebay | "
            "source"
            )),
}  # fmt: skip


def _completion(*, install: bool) -> None:
    """Print the line that completes commands in the user's shell, or add it to the file that the
    shell reads at its start.

    Raises:
        ConfigError: the shell is none of those.
    """
    shell = Path(os.environ.get("SHELL", "")).name
    if shell not in _SHELLS:
        raise ConfigError("SHELL", f"is {shell or 'not set'}, not one of {', '.join(_SHELLS)}")
    name, line = _SHELLS[shell]
    if not install:
        print(line)
        return
    file = Path.home() / name
    try:
        before = file.read_bytes() if file.exists() else b""
        if line.encode() not in before:
            file.parent.mkdir(parents=True, exist_ok=True)
            with file.open("ab") as out:
                out.write(b"\n" * (before[-1:] not in (b"", b"\n")) + f"{line}\n".encode())
    except OSError as error:
        raise ConfigError(
            "SHELL",
            f"has {file}, which cannot be changed: {error.strerror}",
            hint=f"Add the line by hand: {line}",
        ) from None
    print(f"{shell} completes forebay from its next start on, by a line in {file}")


def _switch(name: str, text: str, act: Callable[[], None]) -> click.Option:
    def callback(ctx: click.Context, _option: object, wanted: bool) -> None:
        if wanted:
            act()
            ctx.exit()

    return click.Option(
        [name], is_flag=True, is_eager=True, expose_value=False, help=text, callback=callback
    )


program: Final = AllCommands(
    "forebay",
    _BUILT_IN,
    help="Forebay is a transactional job queue and outbox for Python and PostgreSQL.",
    # One row of 80 columns.
    epilog="Exit codes: 0 done · 1 not done, or problems · 2 wrong usage · 3 no database",
    params=[
        _switch("--version", "Print the version.", version),
        _switch(
            "--install-completion",
            "Complete commands in this shell.",
            lambda: _completion(install=True),
        ),
        _switch(
            "--show-completion",
            "Print what completes commands.",
            lambda: _completion(install=False),
        ),
    ],
)


def run_program(arguments: Sequence[str] | None, name: str = "forebay") -> int:
    """Run a command line of a program of this name, and return its exit code.

    Raises:
        KeyboardInterrupt: the user ended it.
    """
    try:
        done: Any = program.main(
            None if arguments is None else list(arguments),
            prog_name=name,
            standalone_mode=False,
        )
    except click.Abort:
        raise KeyboardInterrupt from None
    except click.exceptions.NoArgsIsHelpError:
        return ExitCode.USAGE  # The error asks for its text when it is made, which prints the help.
    except click.UsageError as error:
        path = error.ctx.command_path if error.ctx else name
        print_error(ForebayError(error.format_message(), hint=f"See `{path} --help`."))
        return error.exit_code
    return done if isinstance(done, int) else ExitCode.DONE
