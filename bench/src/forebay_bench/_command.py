"""forebay bench: measure it on your own machine or database."""

from __future__ import annotations

import contextlib
import importlib.util
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

from forebay.cli.exit import ExitCode, ended_in_order
from forebay.cli.options import Json, argument, option
from forebay.cli.output import facts_table, print_json, table
from forebay.cli.text import Text, cell_len, console
from forebay.errors import ConfigError, shown

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rich.console import Console

    from forebay.cli.text import Console as Out
    from forebay_bench import Report, Table

_TURNED_MAX: Final = 5  # rows of a table that may become columns


def bench(
    *,
    scenario: Annotated[
        str | None,
        argument("SCENARIO", "Omit it to list the scenarios."),
    ] = None,
    dsn: Annotated[
        str | None,
        option(
            "--dsn ADDRESS",
            "The server to measure; databases are created on it. Default: the embedded"
            " PostgreSQL, started for this run.",
        ),
    ] = None,
    full: Annotated[
        bool, option("--full", "The full measurement: minutes instead of seconds.")
    ] = False,
    scale: Annotated[
        float,
        option("--scale X", "More or less work per round.", min=0.001, max=100),
    ] = 1.0,
    rounds: Annotated[
        int | None,
        option("--rounds N", "Number of rounds per engine.", min=1),
    ] = None,
    compare: Annotated[
        str | None,
        option(
            "--compare NAMES",
            "Other engines to compare, separated by commas: classic, que, procrastinate, pgqueuer,"
            " graphile-worker, pg-boss, absurd, dbos; 'none' for none. Default: those of Python"
            " that are installed and that the scenario supports.",
        ),
    ] = None,
    peers: Annotated[
        bool,
        option(
            "--peers",
            "Compare with all libraries that can be used here: pgqueuer, procrastinate, absurd,"
            " dbos, and with node graphile-worker and"
            " pg-boss, which npm installs into your cache folder.",
        ),
    ] = False,
    mix: Annotated[
        str | None,
        option("--mix MIX", "Mix of jobs, for the scenario held."),
    ] = None,
    holder: Annotated[
        str | None,
        option("--holder HOLDER", "Holder of the old snapshot, for the scenario held."),
    ] = None,
    plot: Annotated[
        Path | None,
        option("--plot FILE", "Draw a plot: .svg or .png."),
    ] = None,
    pg_bin: Annotated[
        str | None,
        option("--pg-bin FOLDER", "Start the PostgreSQL in this folder instead."),
    ] = None,
    check: Annotated[bool, option("--check", "Exit with 1 if a promised ratio is missed.")] = False,
    as_json: Json = False,
) -> None:
    """Measure throughput and latency, also beside held transactions; compare with other queues.

    It creates databases and drops them at the end. Settings that decide durability stay on.
    """
    # The other commands do not need it.
    from forebay_bench import SCENARIOS, Options, run_scenario  # noqa: PLC0415

    out = console()
    if scenario is None:
        out.print(_listed(SCENARIOS))
        return
    if scenario not in SCENARIOS:
        raise ConfigError(
            "SCENARIO", f"is {shown(scenario)}", hint=f"One of: {', '.join(SCENARIOS)}."
        )
    if dsn is not None and pg_bin is not None:
        raise ConfigError("--pg-bin", "starts a server, and --dsn names another one")
    if peers and compare is not None:
        raise ConfigError("--peers", "takes all libraries, and --compare names some")
    if plot is not None:
        _require_plots(plot)
    options = Options(
        full=full,
        scale=scale,
        rounds=rounds,
        compare=None if compare is None else _names(compare),
        peers=peers,
        mix=mix,
        holder=holder,
    )
    from forebay.cli.live import live_console  # noqa: PLC0415 - help does without

    with ended_in_order(), _progress(live_console(stderr=True)) as progress:
        report, facts = run_scenario(scenario, options, dsn=dsn, pg_bin=pg_bin, progress=progress)
    if plot is not None:
        _draw(report, plot)
    if as_json:
        bars = [bar.facts() for bar in report.bars]
        print_json({"scenario": scenario, **report.figures, "bars": bars, "run": facts})
    else:
        _show(out, report, facts)
        if plot is not None:
            out.print(Text(f"plot: {plot}", style="dim"))
    if check and any(bar.holds is False for bar in report.bars):
        raise SystemExit(ExitCode.FAILED)


def _names(text: str) -> tuple[str, ...]:
    names = tuple(name for name in (part.strip() for part in text.split(",")) if name)
    return () if names == ("none",) else names


def _listed(scenarios: dict[str, str]) -> Any:
    listed = facts_table()
    for name, summary in scenarios.items():
        listed.add_row(Text(name, style="bold"), summary)
    return listed


@contextlib.contextmanager
def _progress(err: Console) -> Iterator[Callable[[str], None]]:
    """Show one changing line on a terminal, and nothing otherwise."""
    if not err.is_terminal:
        yield lambda _: None
        return
    with err.status("starting the server") as status:
        yield status.update


def _require_plots(plot: Path) -> None:
    if plot.suffix not in {".svg", ".png", ".pdf"}:
        raise ConfigError(
            "--plot", f"is {shown(str(plot))}", hint="End it with .svg, .png or .pdf."
        )
    if not plot.absolute().parent.is_dir():
        raise ConfigError("--plot", f"is {shown(str(plot))}, in a folder that does not exist")
    if importlib.util.find_spec("matplotlib") is None:
        raise ConfigError("--plot", "needs matplotlib", hint="python -m pip install matplotlib")


def _draw(report: Report, plot: Path) -> None:
    from forebay_bench.plot import save  # noqa: PLC0415 - imports matplotlib

    if report.draw is None:
        raise ConfigError("--plot", "is given, and this scenario draws none")
    save(report.draw, plot)


def _show(out: Out, report: Report, facts: dict[str, Any]) -> None:
    for each in report.tables:
        if each.title:
            out.print(Text(each.title, style="bold"))
        found = _fitted(each, out.width)
        # Headings wrap, so that many columns fit a terminal.
        shown_table = table(*found.columns, right=tuple(found.right), loose=tuple(found.columns))
        for row in found.rows:
            shown_table.add_row(*row)
        out.print(shown_table)
        out.print()
    for bar in report.bars:
        out.print(_bar_line(bar))
    for note in report.notes:
        out.print(Text(f"· {note}", style="dim"))
    machine, speed = facts["machine"], facts["machine_speed"]
    if speed["unsteady"]:
        out.print(
            Text(
                f"· an unsteady machine: a loop that only counts took from "
                f"{speed['low_ms']:.3g} to {speed['high_ms']:.3g} ms,"
                " so that the ratio of two single turns says little",
                style="yellow",
            )
        )
    out.print(
        Text(
            f"PostgreSQL {facts['postgresql']}, {machine['cores']} cores ({machine['cpu']}),"
            f" {machine['memory_gib']} GiB, {facts['seconds']} s,"
            f" forebay {facts['forebay']} {facts['commit'] or ''}".rstrip(),
            style="dim",
        )
    )


def _fitted(found: Table, width: int) -> Table:
    """Return a table, or its rows as columns if its cells need more than the width."""
    needed = 2 * (len(found.columns) - 1) + sum(
        max(map(cell_len, (*column, *heading.split())), default=0)
        for heading, *column in zip(found.columns, *found.rows, strict=True)
    )
    if needed <= width or found.columns[0] or len(found.rows) > _TURNED_MAX:
        return found
    names, *rows = zip(found.columns, *found.rows, strict=True)
    rows = [(name.strip(), *cells) for name, *cells in rows]
    return replace(found, columns=names, rows=rows, right=names[1:])


def _bar_line(bar: Any) -> Text:
    wanted = (
        f"at least {bar.at_least:g}" if bar.at_least is not None else f"at most {bar.at_most:g}"
    )
    if bar.holds is None:
        return Text(f"· {bar.what}: not measured ({wanted})", style="dim")
    mark, style = ("✓", "green") if bar.holds else ("✗", "bold red")
    return Text(f"{mark} ", style=style).append(
        f"{bar.what}: {bar.value:.3g} ({wanted})", style="default"
    )
