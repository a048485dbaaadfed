"""Options that several commands have, and how they are read."""

from __future__ import annotations

import functools
import inspect
import json
import re
import sys
from collections.abc import Callable
from dataclasses import fields
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Final

import typer

from forebay.config import GROUPS
from forebay.errors import ConfigError, InvalidJob, shown

Dsn = Annotated[
    str | None,
    typer.Option(
        "--dsn",
        metavar="ADDRESS",
        help="The database: a URL, a libpq string, or 'embedded'."
        " Without it FOREBAY_DATABASE_URL, DATABASE_URL or PG* say.",
        show_default=False,
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print one line of JSON.")]
Queue = Annotated[
    str | None,
    typer.Option("--queue", metavar="QUEUE", help="Only this queue.", show_default=False),
]
Kind = Annotated[
    str | None, typer.Option("--kind", metavar="KIND", help="Only this kind.", show_default=False)
]
Tag = Annotated[
    str | None, typer.Option("--tag", metavar="TAG", help="Only with this tag.", show_default=False)
]
Group = Annotated[
    str | None,
    typer.Option("--group", metavar="GROUP", help="Only this reader.", show_default=False),
]
Limit = Annotated[int, typer.Option("--limit", metavar="N", help="At most so many.")]

_UNITS: Final = {"": 1, "s": 1, "m": 60, "min": 60, "h": 3600, "d": 86_400, "w": 604_800}
_DURATION: Final = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z]*)")


def duration(text: str | None, name: str) -> timedelta | None:
    """Return a duration from its short form, seconds when no unit is given.

    Raises:
        ConfigError: it is none.

    >>> duration("90", "delay"), duration("1.5h", "delay")
    (datetime.timedelta(seconds=90), datetime.timedelta(seconds=5400))
    """
    if text is None:
        return None
    matched = _DURATION.fullmatch(text.strip().lower())
    if not matched or matched[2] not in _UNITS:
        raise ConfigError(
            name,
            f"is {shown(text)}, not a duration",
            value=text,
            hint="Write seconds, or a number with s, m, h, d or w: 90, 15m, 1.5h, 30d.",
        )
    try:
        return timedelta(seconds=float(matched[1]) * _UNITS[matched[2]])
    except OverflowError:
        raise ConfigError(name, f"is {shown(text)}, too long", value=text) from None


def instant(text: str | None, name: str) -> datetime | None:
    """Return an instant from ISO 8601; without an offset it is local time.

    Raises:
        ConfigError: it is none.
    """
    if text is None:
        return None
    try:
        return datetime.fromisoformat(text).astimezone(UTC)
    except (ValueError, OverflowError, OSError):
        raise ConfigError(
            name,
            f"is {shown(text)}, not a time",
            value=text,
            hint="Write ISO 8601: 2027-01-31T08:00:00+01:00; without an offset it is local time.",
        ) from None


def json_object(text: str | None, name: str) -> dict[str, Any]:
    """Return a JSON object from an argument; ``-`` reads it from stdin.

    Raises:
        InvalidJob: it is no JSON, or not an object.
    """
    if text is None:
        return {}
    if text == "-":
        text = sys.stdin.read()
    try:
        value = json.loads(text)
    except ValueError as error:
        raise InvalidJob(
            name, f"is not JSON: {error}", hint="""Quote it for the shell: '{"user_id": 42}'."""
        ) from None
    if not isinstance(value, dict):
        raise InvalidJob(name, f"must be a JSON object, not {shown(value)}")
    return value


def with_settings(*groups: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Give a command a flag for every setting of some groups.

    The command takes them together, as ``flags``: texts by the names of the settings, None where a
    flag was not given. They are read, and refused, where files and environment are.
    """

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        own = [
            parameter
            for parameter in inspect.signature(function, eval_str=True).parameters.values()
            if parameter.name != "flags"
        ]
        added = [
            inspect.Parameter(
                item.name,
                inspect.Parameter.KEYWORD_ONLY,
                default=None,
                annotation=Annotated[
                    str | None,
                    typer.Option(
                        "--" + item.name.replace("_", "-"),
                        metavar="VALUE",
                        help=item.metadata["meaning"]
                        + ("" if item.default is None else f" (default {item.default})"),
                        show_default=False,
                        rich_help_panel=f"Settings: {group}",
                    ),
                ],
            )
            for group in groups
            for item in fields(GROUPS[group])
        ]

        @functools.wraps(function)
        def command(**given: Any) -> Any:
            flags = {parameter.name: given.pop(parameter.name) for parameter in added}
            return function(**given, flags=flags)

        parameters = own + added
        # What typer reads a command's options from.
        command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        command.__annotations__ = {item.name: item.annotation for item in parameters}
        return command

    return decorate


def confirmed(question: str) -> bool:
    """Ask at the terminal.

    Raises:
        ConfigError: there is no terminal to ask at.
    """
    if not sys.stdin.isatty():
        raise ConfigError(
            "--yes", "is missing, and there is no terminal to ask at", hint=f"{question} Say --yes."
        )
    return typer.confirm(question, err=True)
