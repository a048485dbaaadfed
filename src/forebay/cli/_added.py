"""Commands that other distributions add through entry points of the group ``forebay.commands``.

The name of the entry point is the name of the command. It refers to a ``typer`` function or to a ``typer.Typer`` with
several commands. It is loaded when the command is called or when help lists all commands, so it does not slow down
the start of other commands. It cannot replace a built-in command.
"""

from __future__ import annotations

import importlib.metadata
from typing import TYPE_CHECKING, Any, Final

import typer

from forebay.cli._help import CommandGroup
from forebay.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable

GROUP: Final = "forebay.commands"

#: Commands of our other distributions: what each does, and how to install it.
OURS: Final = {
    "bench": (
        "Measure throughput and latency on your machine: install forebay-bench.",
        "python -m pip install forebay-bench; in a checkout: python -m pip install -e . -e ./bench",
    ),
}

_PANEL: Final = "Added by other packages"
_TRY: Final = "Try it out"


class AllCommands(CommandGroup):
    """The commands of this library, followed by those that other distributions add."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names of all commands."""
        names = super().list_commands(ctx)
        return names + sorted({*_entry_points(), *OURS}.difference(names))

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return the command with this name, or None."""
        command = super().get_command(ctx, cmd_name)
        if command is not None:
            return command
        entry_point = _entry_points().get(cmd_name)
        if entry_point is not None:
            return _loaded(entry_point)
        if cmd_name in OURS:
            summary, hint = OURS[cmd_name]
            return _refusing(
                cmd_name, summary, ConfigError(cmd_name, "is not installed", hint=hint)
            )
        return None


def _entry_points() -> dict[str, importlib.metadata.EntryPoint]:
    return {found.name: found for found in importlib.metadata.entry_points(group=GROUP)}


def _loaded(entry_point: importlib.metadata.EntryPoint) -> Any:
    """Return the command of an entry point; if loading fails, return one that reports the failure."""
    try:
        added = entry_point.load()
    except Exception as error:
        reason = f"cannot be loaded from {entry_point.value}: {type(error).__name__}: {error}"
        return _refusing(
            entry_point.name, f"Broken: {reason}", ConfigError(entry_point.name, reason)
        )
    return _command(entry_point.name, added)


def _refusing(name: str, summary: str, error: ConfigError) -> Any:
    def refuse() -> None:
        raise error

    refuse.__doc__ = summary
    return _command(name, refuse, ignore_unknown_options=True, allow_extra_args=True)


def _command(name: str, added: typer.Typer | Callable[..., Any], **settings: Any) -> Any:
    panel = _TRY if name in OURS else _PANEL
    program = typer.Typer(
        add_completion=False, pretty_exceptions_enable=False, rich_markup_mode="markdown"
    )
    if isinstance(added, typer.Typer):
        program.add_typer(added, name=name, rich_help_panel=panel)
    else:
        settings = {"help_option_names": ["-h", "--help"], **settings}
        program.command(name, rich_help_panel=panel, context_settings=settings)(added)
    # With a callback it is always a group.
    program.callback()(lambda: None)
    group = typer.main.get_command(program)
    return group.commands[name]  # type: ignore[attr-defined]  # of the group that a callback makes
