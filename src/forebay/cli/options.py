"""Options that several commands share, and their parsing."""

from __future__ import annotations

import re
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple

import click

from forebay.cli._commands import SETTINGS_PANEL, Together

# The commands of other distributions declare theirs with these two.
from forebay.cli._commands import argument as argument  # noqa: PLC0414
from forebay.cli._commands import option as option  # noqa: PLC0414
from forebay.cli._input import is_terminal, parsed_json, stdin_text
from forebay.cli._moment import counted_from, parted
from forebay.errors import ConfigError, InvalidJob, shown

Dsn = Annotated[
    str | None, option("--dsn ADDRESS", "Default: FOREBAY_DATABASE_URL, DATABASE_URL or PG*.")
]
AppDir = Annotated[
    Path | None, option("--app-dir FOLDER", "Look for MODULE here first (default: current folder).")
]
DryRun = Annotated[bool, option("--dry-run", "Change nothing; count the jobs, and show a token.")]
Token = Annotated[
    str | None,
    option("--token TOKEN", "The token of the dry run: act on its jobs only. Ages count from it."),
]
Yes = Annotated[bool, option("--yes", "Do not ask for confirmation.")]
Json = Annotated[bool, option("--json", "Print one line of JSON.")]


class _How(NamedTuple):
    """How an act is done on many jobs; its token as the database made it."""

    dry_run: bool
    token: str | None
    yes: bool
    dsn: str | None
    as_json: bool


def _how(
    *,
    dry_run: DryRun = False,
    token: Token = None,
    yes: Yes = False,
    dsn: Dsn = None,
    as_json: Json = False,
) -> _How:
    return _How(dry_run, parted(token)[0], yes, dsn, as_json)


How = Annotated[_How, Together(_how)]

Queue = Annotated[str | None, option("--queue QUEUE", "Only this queue.")]
Kind = Annotated[str | None, option("--kind KIND", "Only this kind.")]
Tag = Annotated[str | None, option("--tag TAG", "Only this tag.")]
Group = Annotated[str | None, option("--group GROUP", "Only this consumer group.")]
ToGroup = Annotated[
    str | None, option("--to-group GROUP", "Only this consumer group gets the new jobs.")
]
Limit = Annotated[int, option("--limit N", "Maximum number of rows.")]

#: Settings of a sink: of a drain without an application, and of an endpoint.
SinkSettings = Annotated[
    list[str] | None,
    option(
        "--set NAME=VALUE",
        "A setting of the sink; a value that is JSON is read as JSON. Repeatable.",
    ),
]

#: What a time may be, in help texts.
AGE: Final = "an age such as 2h, or ISO 8601"

DiedAfter = Annotated[str | None, option("--died-after TIME", f"Only jobs that died since: {AGE}.")]
DiedBefore = Annotated[
    str | None, option("--died-before TIME", f"Only jobs that died before: {AGE}.")
]

_UNITS: Final = {"": 1, "s": 1, "m": 60, "min": 60, "h": 3600, "d": 86_400, "w": 604_800}
_DURATION: Final = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z]*)")

#: A date without hyphens, or seconds: 20261201.
_DATE_OR_SECONDS: Final = re.compile(r"\d{8,}")

#: What only JSON begins with, or a template: "{kind}", "{header:tenant}", "{{".
_JSON_BEGINS: Final = re.compile(r"\s*(?:[\[\"]|\{(?!\{|\w+\}|header:[^{}]*\}))")


def duration(text: str | None, name: str) -> timedelta | None:
    """Return a duration from its short form; without a unit it is in seconds, of up to seven
    digits.

    Raises:
        ConfigError: the text is not a duration, or may be a date.

    >>> duration("90", "delay"), duration("1.5h", "delay")
    (datetime.timedelta(seconds=90), datetime.timedelta(seconds=5400))
    """
    if text is None:
        return None
    matched = _DURATION.fullmatch(text.strip().lower())
    if _DATE_OR_SECONDS.fullmatch(text.strip()):
        raise ConfigError(
            name,
            f"is {shown(text)}, which may be a date or a number of seconds",
            value=text,
            hint=f"Write {text.strip()}s for seconds, {_hyphened(text.strip())} for a date.",
        )
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


def _hyphened(digits: str) -> str:
    """Return the date or time that digits are in ISO 8601; a date as an example, if none."""
    try:
        if len(digits) == 8:
            return date.fromisoformat(digits).isoformat()
        return datetime.fromisoformat(f"{digits[:8]}T{digits[8:]}").isoformat()
    except ValueError:
        return "2026-12-01"


def instant(text: str | None, name: str) -> datetime | None:
    """Return an instant from ISO 8601; without an offset it is local time.

    Raises:
        ConfigError: the text is not a time.
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


def instant_or_age(text: str | None, name: str) -> datetime | None:
    """Return an instant from ISO 8601, or from an age: ``2h`` is two hours ago.

    In a command with a token, it is two hours before the dry run.

    Raises:
        ConfigError: the text is neither, or the token carries no moment to count an age from.
    """
    if text is None:
        return None
    if _DURATION.fullmatch(text.strip().lower()):
        ago = duration(text, name)
        assert ago is not None
        try:
            return counted_from(name) - ago
        except OverflowError:
            raise ConfigError(name, f"is {shown(text)}, too long", value=text) from None
    return instant(text, name)


def instant_in(text: str, name: str) -> datetime:
    """Return the instant that is a duration after now; in a command with a token, after its dry
    run.

    Raises:
        ConfigError: the text is not a duration, or the token carries no moment to count from.
    """
    length = duration(text, name)
    assert length is not None
    try:
        return counted_from(name) + length
    except OverflowError:
        raise ConfigError(name, f"is {shown(text)}, too long", value=text) from None


def json_object(text: str | None, name: str) -> dict[str, Any]:
    """Return a JSON object from an argument; ``-`` reads it from stdin.

    Raises:
        InvalidJob: the text is not JSON, or not an object.
    """
    if text is None:
        return {}
    value = json_value(text, name)
    if not isinstance(value, dict):
        raise InvalidJob(name, f"must be a JSON object, not {shown(value)}")
    return value


def json_value(text: str, name: str) -> Any:
    """Return a JSON value from an argument; ``-`` reads it from stdin.

    Raises:
        InvalidJob: the text is not JSON.
    """
    if text == "-":
        text = stdin_text(name)
    try:
        return parsed_json(text)
    except ValueError as error:
        raise InvalidJob(
            name,
            f"is not JSON: {error}",
            hint="""Give a JSON value, quoted for the shell: '{"user_id": 42}', '"a text"', 42"""
            " or null.",
        ) from None


def sink_settings(texts: list[str] | None) -> dict[str, Any]:
    """Return the settings of a sink from ``--set``: each value that is JSON as its value, others as
    the text that they are.

    Raises:
        ConfigError: a name is missing, or a value begins as JSON and is none.

    >>> sink_settings(["url=redis://h", "maxlen=1000", "subject={kind}", 'tasks={"a": "b.c"}'])
    {'url': 'redis://h', 'maxlen': 1000, 'subject': '{kind}', 'tasks': {'a': 'b.c'}}
    """
    found = {}
    for each in texts or ():
        name, value = pair(each, "--set")
        found[name] = _json_or_text(name, value)
    return found


def _json_or_text(name: str, text: str) -> Any:
    try:
        return parsed_json(text, _refuse_constant)
    except ValueError as error:
        # A text of JSON that the shell took apart would else be a setting of the wrong type.
        if not _JSON_BEGINS.match(text):
            return text
        problem = str(error)
    raise ConfigError(
        f"--set {name}",
        # Without the value, which may be a secret.
        f"begins as JSON and is none: {problem}",
        hint=f"""Quote JSON for the shell: --set '{name}={{"a": "b"}}'."""
        f""" A text that begins so is JSON in quotes: --set '{name}="[text]"'.""",
    )


def _refuse_constant(name: str) -> None:
    """Python reads NaN and Infinity too, which are not JSON."""
    raise ValueError(f"{name} is not JSON")


def _print_settings_help(ctx: click.Context, _option: object, wanted: bool) -> None:
    if wanted:
        from forebay.cli._help import print_help

        print_help(ctx, with_settings=True)
        ctx.exit()


HelpSettings = Annotated[
    bool,
    option(
        "--help-settings", "Show this message with all settings.",
        is_eager=True, expose_value=False, callback=_print_settings_help,
    ),
]  # fmt: skip


def pair(text: str, flag: str) -> tuple[str, str]:
    """Return the two sides of ``NAME=VALUE``.

    Raises:
        ConfigError: the name is missing.
    """
    name, found, value = text.partition("=")
    if not found or not name:
        raise ConfigError(flag, f"is {shown(text)}, not NAME=VALUE", value=text)
    return name, value


def setting_flags(*groups: str, common: tuple[str, ...] = ()) -> Together:
    """Return a flag for every setting of some groups, and ``--help-settings``, which shows them.

    A setting that has the name of an option of the command gets no flag. The help of the command
    shows the ``common`` settings only. The value is a text for each setting, None for a flag that
    was not given. They are parsed and checked together with files and environment.
    """
    from forebay.config import GROUPS, declared_settings

    declared = {
        item.name: option(
            f"--{item.name.replace('_', '-')} VALUE",
            _sentence(item.metadata["meaning"])
            + ("" if item.default is None else f" [default: {item.default}]"),
            panel=None if item.name in common else f"{SETTINGS_PANEL}{group}",
        )
        for group in groups
        for item in declared_settings(GROUPS[group])
    }
    return Together(_flags, declared)


def _flags(*, help_settings: HelpSettings = False, **given: str | None) -> dict[str, str | None]:
    del help_settings
    return given


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."


def confirmed(question: str) -> bool:
    """Ask for confirmation at the terminal.

    Raises:
        ConfigError: stdin is not a terminal.
    """
    if not is_terminal():
        raise ConfigError(
            "--yes", "is missing, and stdin is not a terminal", hint=f"{question} Pass --yes."
        )
    return click.confirm(question, err=True)
