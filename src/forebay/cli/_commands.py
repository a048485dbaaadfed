"""Commands made from functions: a parameter annotated with ``option`` or ``argument`` is one of
the command line.

A group of commands loads a command when it is called, and makes it from its function then.
"""

from __future__ import annotations

import difflib
import importlib
import inspect
from pathlib import Path
from types import UnionType
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, NamedTuple, get_args, get_origin

import click

from forebay.cli._hints import HINTS
from forebay.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

#: Options with this panel are shown with ``--help-settings`` only.
SETTINGS_PANEL: Final = "Settings: "

_KEYWORD: Final = inspect.Parameter.KEYWORD_ONLY
_REST: Final = inspect.Parameter.VAR_KEYWORD

_CONTEXT: Final = {"help_option_names": ["-h", "--help"]}


class Given(NamedTuple):
    """How a value is given: ``--tag TAG``, or ``[KIND]`` for an argument by its place, and what
    it means.
    """

    spelling: str
    text: str
    more: Mapping[str, Any]


class Together(NamedTuple):
    """Several options; the command receives what a function makes of them.

    They are texts, None if not given, and the parameters of the function. One that the command
    declares itself is left out.
    """

    make: Callable[..., Any]
    texts: Mapping[str, Given] = {}


def option(spelling: str, text: str, **more: Any) -> Given:
    """Declare an option by its names and the placeholder of its value; ``more`` is passed to click.

    ``min`` and ``max`` are bounds of a number; ``panel`` is the heading in the help.
    """
    return Given(spelling, text, more)


def argument(spelling: str, text: str, **more: Any) -> Given:
    """Declare an argument by its placeholder, otherwise as an option."""
    return Given(spelling, text, more)


class Argument(click.Argument):
    """An argument with a help text."""

    help: str | None = None


class Command(click.Command):
    """A command made from a function, whose docstring is its help."""

    def __init__(self, name: str, function: Callable[..., Any], *, panel: str = "") -> None:
        params, bind = _options_of(function)
        super().__init__(
            name,
            callback=lambda **given: function(**bind(given)),
            params=params,
            help=inspect.getdoc(function),
            context_settings=_CONTEXT,
        )
        self.panel = panel

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Print the help."""
        _print_help(ctx, formatter)


class Commands(click.Group):
    """The commands of one subject, such as ``forebay jobs``.

    Their help stands where the group is listed.
    """

    panel = ""

    def __init__(self, name: str | None = None, **options: Any) -> None:
        super().__init__(name, no_args_is_help=True, context_settings=_CONTEXT, **options)
        self._functions: dict[str, Callable[..., Any]] = {}

    def add(self, name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        """Return a decorator that adds a function as a command."""

        def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
            self._functions[name] = function
            return function

        return decorate

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names of all commands."""
        del ctx
        return list(self._functions)

    def get_command(self, ctx: Any, cmd_name: str) -> click.Command | None:
        """Return the command with this name, or None."""
        del ctx
        if cmd_name in self._functions and cmd_name not in self.commands:
            self.commands[cmd_name] = Command(cmd_name, self._functions[cmd_name])
        return self.commands.get(cmd_name)

    def listed(self, ctx: Any) -> Iterator[tuple[str, str, str]]:
        """Yield heading, name and help of each command."""
        del ctx
        for name, function in self._functions.items():
            yield "Commands", name, inspect.getdoc(function) or ""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the command of a call.

        Raises:
            ConfigError: there is no such command, and another one does the same.
        """
        name = args[0]
        if ctx.resilient_parsing or name.startswith("-") or self.get_command(ctx, name):
            return super().resolve_command(ctx, args)
        group = "forebay" if ctx.parent is None else self.name or ""
        hint = HINTS.get(group, {}).get(name)
        if hint:
            path = "forebay" if group == "forebay" else f"forebay {group}"
            raise ConfigError(f"{path} {name}", "is not a command", hint=hint)
        similar = difflib.get_close_matches(name, self.list_commands(ctx), n=1)
        meant = f" Did you mean {similar[0]!r}?" if similar else ""
        raise click.UsageError(f"No such command {name!r}.{meant}", ctx)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Print the help."""
        _print_help(ctx, formatter)


class LazyCommands(Commands):
    """Commands in modules of this package, each loaded when it is called.

    Args:
        table: of each command: its module and its function or group there, the heading in the help,
            and its help in one sentence.
    """

    def __init__(
        self, name: str, table: Mapping[str, tuple[str, str, str]], **options: Any
    ) -> None:
        super().__init__(name, **options)
        self._table = table

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names of all commands."""
        del ctx
        return list(self._table)

    def get_command(self, ctx: Any, cmd_name: str) -> click.Command | None:
        """Return the command with this name, or None."""
        if cmd_name in self._table and cmd_name not in self.commands:
            place, panel, text = self._table[cmd_name]
            module, _, name = place.partition(":")
            found = getattr(importlib.import_module(f"forebay.cli.{module}"), name)
            if isinstance(found, Commands):
                found.name, found.help, found.panel = cmd_name, text, panel
            else:
                found = Command(cmd_name, found, panel=panel)
            self.commands[cmd_name] = found
        return super().get_command(ctx, cmd_name)

    def listed(self, ctx: Any) -> Iterator[tuple[str, str, str]]:
        """Yield heading, name and help of each command."""
        del ctx
        for name, (_, panel, text) in self._table.items():
            yield panel, name, text


def _print_help(ctx: Any, formatter: Any) -> None:
    del formatter
    from forebay.cli._help import print_help

    print_help(ctx)


def _options_of(
    function: Callable[..., Any],
) -> tuple[list[click.Parameter], Callable[[dict[str, Any]], dict[str, Any]]]:
    """Return the options of a function, and what turns their values into its arguments."""
    own = inspect.signature(function, eval_str=True).parameters
    params: list[click.Parameter] = []
    together: dict[str, tuple[Callable[..., Any], list[str]]] = {}
    for name, one in own.items():
        _, given = _annotated(one)
        if not isinstance(given, Together):
            params.append(_option_of(one))
            continue
        parts = [
            inspect.Parameter(text, _KEYWORD, default=None, annotation=Annotated[str | None, how])
            for text, how in given.texts.items()
        ]
        parts += inspect.signature(given.make, eval_str=True).parameters.values()
        parts = [part for part in parts if part.name not in own and part.kind is not _REST]
        together[name] = (given.make, [part.name for part in parts])
        params += map(_option_of, parts)

    def bind(values: dict[str, Any]) -> dict[str, Any]:
        values = {name: _plain(value) for name, value in values.items()}
        for name, (make, names) in together.items():
            values[name] = make(**{part: values.pop(part) for part in names if part in values})
        return values

    return params, bind


def _plain(value: Any) -> Any:
    """Return a list, or None for none, instead of the tuple of a repeated option."""
    return (list(value) or None) if isinstance(value, tuple) else value


def _annotated(one: inspect.Parameter) -> tuple[Any, Given | Together]:
    """Return the type of a parameter and how it is given.

    A parameter without a declaration is given as its name says.
    """
    kind, *declared = (
        (one.annotation.__origin__, *one.annotation.__metadata__)
        if get_origin(one.annotation) is Annotated
        else (one.annotation,)
    )
    if declared:
        return kind, declared[0]
    if one.kind is _KEYWORD:
        return kind, option("--" + one.name.rstrip("_").replace("_", "-"), "")
    return kind, argument(one.name.upper(), "")


def _option_of(one: inspect.Parameter) -> click.Parameter:
    kind, given = _annotated(one)
    assert isinstance(given, Given)
    is_optional = get_origin(kind) is UnionType
    if is_optional:
        kind = get_args(kind)[0]
    is_many = get_origin(kind) is list
    if is_many:
        kind = get_args(kind)[0]
    names = given.spelling.split(" ")
    more = {
        name: value for name, value in given.more.items() if name not in ("min", "max", "panel")
    }
    is_required = one.default is inspect.Parameter.empty
    if not is_required:
        more["default"] = None if is_many else one.default
    if not given.spelling.startswith("-"):
        made = Argument(
            [one.name], type=_type(kind, given.more), required=is_required, metavar=given.spelling,
            nargs=-1 if is_many else 1, **more,
        )  # fmt: skip
        made.help = given.text
        return made
    metavar = None if names[-1].startswith("-") else names.pop()
    if kind is bool:
        more["is_flag"] = True
    else:
        more["type"] = _type(kind, given.more)
    declared = click.Option(
        [name.rstrip(",") for name in names] + [one.name], metavar=metavar, help=given.text,
        required=is_required, multiple=is_many, **more,
    )  # fmt: skip
    declared.panel = given.more.get("panel") or ""  # type: ignore[attr-defined]
    return declared


def _type(kind: Any, bounds: Mapping[str, Any]) -> click.ParamType[Any] | type:
    limits = {name: bounds[name] for name in ("min", "max") if name in bounds}
    if limits:
        return click.IntRange(**limits) if kind is int else click.FloatRange(**limits)
    if get_origin(kind) is Literal:
        return click.Choice(get_args(kind))
    if kind is Path:
        return click.Path(path_type=Path)
    return kind if kind in (int, float) else str
