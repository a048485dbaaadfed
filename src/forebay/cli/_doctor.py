"""forebay doctor: find problems and their remedies."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING, Final

import typer
from rich.table import Table
from rich.text import Text

from forebay.cli.exit import ExitCode
from forebay.cli.options import Dsn, Json
from forebay.cli.output import console, print_json
from forebay.client import address_of
from forebay.config import masked_dsn
from forebay.doctor import Finding, Level
from forebay.doctor.examine import examine

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import RenderableType

_MARKS: Final = {
    Level.ERROR: ("✗", "bold red"),
    Level.WARNING: ("!", "bold yellow"),
    Level.NOTICE: ("·", "cyan"),
    Level.OK: ("✓", "green"),
}


def doctor(*, dsn: Dsn = None, as_json: Json = False) -> None:
    """Find problems of the database and show their remedies.

    The doctor only reads, and briefly: run it at any time. It exits with 1 if it finds an error.
    """
    address = address_of(dsn)
    found = asyncio.run(examine(address))
    worst = min(found, key=lambda finding: finding.level.rank).level
    if as_json:
        print_json(
            {"address": masked_dsn(address), "worst": worst, "findings": found},
        )
    else:
        out = console()
        out.print(_report(found))
        out.print()
        out.print(_summary(found))
    if worst is Level.ERROR:
        raise typer.Exit(ExitCode.FAILED)


def _report(found: Sequence[Finding]) -> RenderableType:
    rows = Table(box=None, show_header=False, pad_edge=False, padding=(0, 1, 0, 0))
    rows.add_column(no_wrap=True)
    rows.add_column(no_wrap=True)
    rows.add_column(overflow="fold")
    # The worst last, next to the prompt when the command has ended.
    ordered = sorted(found, key=lambda finding: -finding.level.rank)
    for finding, following in zip(ordered, [*ordered[1:], None], strict=True):
        mark, style = _MARKS[finding.level]
        what = Text(finding.what, style="dim" if finding.level is Level.OK else "default")
        same_remedy = following is not None and following.remedy == finding.remedy
        if finding.remedy and not same_remedy:
            what.append("\n→ ", style=style).append(finding.remedy, style="default")
        rows.add_row(
            Text(mark, style=style),
            Text(finding.check, style="dim" if finding.level is Level.OK else style),
            what,
        )
    return rows


def _summary(found: Sequence[Finding]) -> Text:
    counts = Counter(finding.level for finding in found)
    line = Text()
    for level in Level:
        if level is Level.OK or not counts[level]:
            continue
        noun = level if counts[level] == 1 else f"{level}s"
        line = Text(f"{counts[level]} {noun}", _MARKS[level][1]) + (
            Text(", ") + line if line else line
        )
    return line or Text("no problems found", style="bold green")
