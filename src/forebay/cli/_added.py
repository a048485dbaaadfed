"""Commands that other distributions add through entry points of the group ``forebay.commands``.

The name of the entry point is the name of the command. It refers to a function or to a command of
click, such as a group of several commands. It is loaded when the command is called or when help
lists all commands, so it does not slow down the start of other commands. It cannot replace a
built-in command.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NoReturn

import click

from forebay.cli._commands import Command, LazyCommands
from forebay.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from importlib.metadata import EntryPoint

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


class AllCommands(LazyCommands):
    """The commands of this library, followed by those that other distributions add.

    A command of those is loaded when it is called, or when help lists all commands.
    """

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names of all commands."""
        names = super().list_commands(ctx)
        return names + sorted({*_entry_points(), *OURS}.difference(names))

    def get_command(self, ctx: Any, cmd_name: str) -> click.Command | None:
        """Return the command with this name, or None."""
        found = super().get_command(ctx, cmd_name)
        if found is None and cmd_name in (entry_points := _entry_points()):
            return _loaded(entry_points[cmd_name])
        if found is None and cmd_name in OURS:
            summary, hint = OURS[cmd_name]
            return _refusing(
                cmd_name, summary, ConfigError(cmd_name, "is not installed", hint=hint)
            )
        return found

    def listed(self, ctx: Any) -> Iterator[tuple[str, str, str]]:
        """Yield heading, name and help of each command."""
        built_in = list(super().listed(ctx))
        added = {
            name: self.get_command(ctx, name) for name in self.list_commands(ctx)[len(built_in) :]
        }
        rows = [
            (_TRY if name in OURS else _PANEL, name, command.help or "")
            for name, command in added.items()
            if command is not None
        ]
        return iter([*built_in, *rows])


def _entry_points() -> dict[str, EntryPoint]:
    import importlib.metadata  # it takes longer to load than most commands

    return {found.name: found for found in importlib.metadata.entry_points(group=GROUP)}


def _loaded(entry_point: EntryPoint) -> click.Command:
    """Return the command of an entry point.

    If loading fails, return one that reports the failure.
    """
    try:
        added = entry_point.load()
    except Exception as error:
        reason = f"cannot be loaded from {entry_point.value}: {type(error).__name__}: {error}"
        return _refusing(
            entry_point.name, f"Broken: {reason}", ConfigError(entry_point.name, reason)
        )
    return _command(entry_point.name, added)


def _refusing(name: str, summary: str, error: ConfigError) -> click.Command:
    def refuse() -> NoReturn:
        raise error

    refuse.__doc__ = summary
    command = Command(name, refuse)
    command.context_settings = {"ignore_unknown_options": True, "allow_extra_args": True}
    return command


def _command(name: str, added: click.Command | Callable[..., Any]) -> click.Command:
    return added if isinstance(added, click.Command) else Command(name, added)
