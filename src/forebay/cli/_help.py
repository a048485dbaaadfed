"""Help of commands, dense enough for a terminal of 24 rows: one row for each option, settings
only on request.
"""

from __future__ import annotations

import inspect
import re
from typing import TYPE_CHECKING, Any

from forebay.cli._commands import SETTINGS_PANEL
from forebay.cli.text import Table, Text, console

if TYPE_CHECKING:
    from collections.abc import Iterable

    from forebay.cli.text import Console


def print_help(ctx: Any, *, with_settings: bool = False) -> None:
    """Print the help of the command of a context."""
    command, out = ctx.command, console()
    arguments = [one for one in command.get_params(ctx) if one.param_type_name == "argument"]
    options = [one for one in command.get_params(ctx) if one.param_type_name == "option"]
    is_group = hasattr(command, "list_commands")
    usage = [ctx.command_path, *(["COMMAND"] if is_group else []), *map(_metavar, arguments)]
    out.print(Text.assemble(("Usage: ", "bold"), " ".join([*usage, "[OPTIONS]"])))
    for paragraph in inspect.cleandoc(command.help or "").split("\n\n"):
        _print_part(out, Text(" ".join(paragraph.split())))
    _print_rows(out, "Arguments", [(_metavar(one), _help(one)) for one in arguments])
    if is_group:
        for panel, names in _panels(ctx, command).items():
            _print_rows(out, panel, names)
    settings = [one for one in options if _panel(one).startswith(SETTINGS_PANEL)]
    rest = [one for one in options if one not in settings and not one.hidden]
    if is_group:
        _print_part(out, Text("Options: " + " · ".join(map(_spelled, rest))))
    else:
        _print_rows(out, "Options", [(_spelled(one), _help(one)) for one in rest])
    if with_settings:
        _print_settings(out, settings)
    if command.epilog:
        _print_part(out, Text(command.epilog, style="dim"))


def _print_settings(out: Console, settings: list[Any]) -> None:
    for panel in dict.fromkeys(map(_panel, settings)):
        rows = [(_spelled(one), _help(one)) for one in settings if _panel(one) == panel]
        _print_rows(out, panel, rows)


def _print_part(out: Console, text: Text) -> None:
    out.print()
    out.print(text)


def _print_rows(out: Console, title: str, rows: Iterable[tuple[str, str]]) -> None:
    rows = list(rows)
    if not rows:
        return
    _print_part(out, Text(title, style="bold"))
    grid = Table()
    grid.add_column(no_wrap=True, style="cyan")
    grid.add_column()
    for name, text in rows:
        grid.add_row(f"  {name}", Text(text))
    out.print(grid)


def _panels(ctx: Any, group: Any) -> dict[str, list[tuple[str, str]]]:
    panels: dict[str, list[tuple[str, str]]] = {}
    for panel, name, text in group.listed(ctx):
        panels.setdefault(panel, []).append((name, summary(text)))
    return panels


def summary(text: str) -> str:
    """Return the first sentence of the help of a command, without its full stop."""
    first = " ".join(text.partition("\n\n")[0].split())
    return re.split(r"[.;] |\.$", first)[0]


def _panel(option: Any) -> str:
    return getattr(option, "panel", "")  # --help has none


def _metavar(argument: Any) -> str:
    return str(argument.metavar or argument.name.upper())


def _spelled(option: Any) -> str:
    names = sorted([*option.opts, *option.secondary_opts], key=len)
    value = "" if option.is_flag else f" {option.metavar or 'VALUE'}"
    return ", ".join(names) + value


def _help(item: Any) -> str:
    text = str(item.help or "")
    default = item.default
    is_plain = isinstance(default, str | int | float) and not isinstance(default, bool)
    return f"{text} [default: {default}]" if is_plain else text
