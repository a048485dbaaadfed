"""forebay sync: compare both stores of a synchronisation, and repair."""

from __future__ import annotations

import time
from typing import Annotated

import typer
from rich.text import Text

from forebay.cli._exit import ExitCode
from forebay.cli._load import load_app
from forebay.cli._options import Dsn, Json, duration
from forebay.cli._output import console, print_json, table
from forebay.cli._worker import AppPlace
from forebay.errors import ConfigError

commands = typer.Typer(help="Synchronisations: compare both stores, repair.", no_args_is_help=True)

_SHOWN: int = 5


@commands.callback()
def _group() -> None:
    # With a callback a single command keeps its name.
    pass


@commands.command("audit")
def audit(
    app: AppPlace,
    name: Annotated[str, typer.Argument(metavar="NAME", help="Which synchronisation of it.")],
    *,
    repair: Annotated[
        bool, typer.Option("--repair", help="Enqueue a job for each item found wrong.")
    ] = False,
    rate: Annotated[
        float, typer.Option("--rate", metavar="N", help="Read at most so many rows per second.")
    ] = 10_000.0,
    settle: Annotated[
        str | None,
        typer.Option(
            "--settle",
            metavar="TIME",
            help="Look again so long after, before calling it wrong: 90s, 2min.",
        ),
    ] = None,
    dsn: Dsn = None,
    as_json: Json = False,
) -> None:
    """Compare a target with its source, from end to end.

    It may run beside live writes. Ends with 1 when something is wrong, with --repair too.
    """
    found, _ = load_app(app)
    found.use(dsn=dsn)
    if name not in found.syncs:
        known = ", ".join(sorted(found.syncs)) or "none"
        raise ConfigError("sync", f"{name} is not declared in {app}", hint=f"There are: {known}.")
    sync = found.syncs[name]
    begun = time.monotonic()
    try:
        drift = sync.audit(rows_per_second=rate, settle=duration(settle, "--settle"))
        enqueued = sync.repair(drift) if repair else 0
    finally:
        sync.close()
    kinds = {
        "missing": drift.missing,
        "stale": drift.stale,
        "orphaned": drift.orphaned,
        "ahead": drift.ahead,
    }
    if as_json:
        counts = {kind: len(ids) for kind, ids in kinds.items()}
        print_json(
            {
                "sync": name,
                "items": drift.items,
                "copies": drift.copies,
                "suspects": drift.suspects,
                **counts,
                "ids": kinds,
                "enqueued": enqueued,
                "seconds": round(drift.seconds, 3),
            }
        )
    else:
        out = console()
        seconds = max(time.monotonic() - begun, 0.001)
        out.print(
            f"{drift.items} items, {drift.copies} copies, {drift.suspects} looked at again, in {seconds:.1f} s"
        )
        rows = table("", "count", "for example", right=("count",))
        for kind, ids in kinds.items():
            some = ", ".join(map(str, ids[:_SHOWN])) + (", ..." if len(ids) > _SHOWN else "")
            rows.add_row(kind, Text(str(len(ids)), "bold red" if ids else "dim"), some)
        out.print(rows)
        if repair:
            out.print(f"{enqueued} jobs enqueued")
        elif drift.repairable:
            out.print("→ --repair enqueues a job for each")
    if drift.total:
        raise typer.Exit(ExitCode.FAILED)
