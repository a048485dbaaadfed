"""Commands that other distributions add through entry points of the group ``forebay.commands``.

The name of the entry point is the name of the command. It refers to a ``typer`` function or to a ``typer.Typer`` with
several commands. It is loaded when the command is called or when help lists all commands, so it does not slow down
the start of other commands. It cannot replace a built-in command.
"""

from __future__ import annotations

import importlib
import importlib.metadata
from typing import TYPE_CHECKING, Any, ClassVar, Final

import typer

from forebay.cli._help import CommandGroup, Commands
from forebay.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

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
    """The commands of this library, followed by those that other distributions add.

    A command is loaded when it is called, or when help lists all commands.
    """

    #: Of each command of this library: module, name there, and panel of the help.
    built_in: ClassVar[Mapping[str, tuple[str, str, str]]] = {}

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names of all commands."""
        del ctx
        names = [*self.built_in]
        return names + sorted({*_entry_points(), *OURS}.difference(names))

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return the command with this name, or None."""
        del ctx
        if cmd_name in self.built_in and cmd_name not in self.commands:
            module, name, panel = self.built_in[cmd_name]
            added = getattr(importlib.import_module(f"forebay.cli.{module}"), name)
            self.commands[cmd_name] = _command(cmd_name, added, panel)
        if cmd_name in self.commands:
            return self.commands[cmd_name]
        entry_point = _entry_points().get(cmd_name)
        if entry_point is not None:
            return _loaded(entry_point)
        if cmd_name in OURS:
            summary, hint = OURS[cmd_name]
            return _refusing(
                cmd_name, summary, ConfigError(cmd_name, "is not installed", hint=hint)
            )
        return None

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the command of a call."""
        if args and self.get_command(ctx, args[0]) is None:
            for name in self.built_in:  # the message names similar ones
                self.get_command(ctx, name)
        return super().resolve_command(ctx, args)


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


def _command(
    name: str,
    added: typer.Typer | Callable[..., Any],
    panel: str | None = None,
    **settings: Any,
) -> Any:
    made = typer.Typer if panel is None else Commands
    panel = panel or (_TRY if name in OURS else _PANEL)
    program = made(
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
