"""forebay migrate, sql and adopt: the schema of a database."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from rich.text import Text

from forebay.cli._exit import ExitCode
from forebay.cli._options import Dsn, Json, confirmed, with_settings
from forebay.cli._output import console, print_json
from forebay.client import Client, address_of
from forebay.config import load_settings
from forebay.db.migrate import migrate as apply_migrations
from forebay.db.migrate import migration_sql
from forebay.db.own import run_own
from forebay.errors import ConfigError
from forebay.ops.overview import adopt as adopt_operation
from forebay.ops.overview import database_settings
from forebay.sql import latest_version


@with_settings("retention", "limits", "segments")
def migrate(
    *,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be done.")] = (
        False
    ),
    dsn: Dsn = None,
    as_json: Json = False,
    flags: dict[str, Any],
) -> None:
    """Bring the schema to the version of this library; repeating it is harmless.

    All pending migrations are one transaction. Settings of the database that are given in a file,
    the environment or here are stored in it.
    """
    wanted = load_settings(flags).database_values()
    address = address_of(dsn)
    steps = apply_migrations(address, dry_run=dry_run)
    if dry_run and steps and steps[0].version == 1:
        stored: dict[str, int] = {}
    else:
        stored = run_own(address, database_settings())
    changes = {name: value for name, value in wanted.items() if stored.get(name) != value}
    if not dry_run:
        client = Client(address)
        for name, value in changes.items():
            client.configure(name, value)
    if as_json:
        print_json(
            {
                "version": latest_version(),
                "dry_run": dry_run,
                "applied": [{"version": step.version, "name": step.name} for step in steps],
                "settings": changes,
            }
        )
        return
    out = console()
    verb = "would apply" if dry_run else "applied"
    for step in steps:
        out.print(Text(f"{verb} ", style="dim").append(f"{step.version:04} {step.name}", "default"))
    for name, value in changes.items():
        before = f", was {stored[name]:,}" if name in stored else ""
        out.print(
            Text("would set " if dry_run else "set ", style="dim").append(
                f"{name} = {value:,}{before}", "default"
            )
        )
    if dry_run:
        to_do = f"to version {latest_version()}" if steps else "nothing to migrate"
        out.print(f"schema forebay: {to_do}; nothing was changed")
    else:
        done = "migrated to" if steps else "is at"
        out.print(Text(f"schema forebay {done} version {latest_version()}", style="green"))


def sql(
    *,
    from_version: Annotated[
        int,
        typer.Option(
            "--from-version",
            metavar="N",
            help="The version the database is at; 0 when it has no schema.",
        ),
    ] = 0,
    transaction: Annotated[
        bool,
        typer.Option(
            "--transaction/--no-transaction",
            help="With begin and commit, or for a tool that opens the transaction itself.",
        ),
    ] = True,
) -> None:
    """Print the migrations as one SQL script, for a DBA or Alembic."""
    print(migration_sql(from_version, transaction=transaction), end="")


def adopt(
    *,
    resume: Annotated[bool, typer.Option("--resume", help="Run what was waiting.")] = False,
    discard: Annotated[bool, typer.Option("--discard", help="Cancel what was waiting.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask before discarding.")] = False,
    dsn: Dsn = None,
    as_json: Json = False,
) -> None:
    """Decide about jobs that came with a copied or restored database.

    Until then nothing runs there: a copy of production would send production's mails again. Jobs
    enqueued since the restore are kept in either case.
    """
    if resume == discard:
        raise ConfigError(
            "adopt",
            "takes --resume or --discard: one of them",
            hint="--resume runs what was waiting when the copy was made, --discard cancels it.",
        )
    if discard and not yes and not confirmed("Cancel every job that came with the copy?"):
        raise typer.Exit(ExitCode.FAILED)
    done = run_own(address_of(dsn), adopt_operation(resume=resume))
    if as_json:
        print_json(done)
    else:
        console().print(
            f"adopted: {done.resumed:,} jobs go on here, {done.discarded:,} were discarded"
        )
