"""Tables for people, JSON for programs."""

from __future__ import annotations

import json
import sys
import textwrap
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from forebay.cli.text import Table, Text, json_highlighted
from forebay.model.text import attempt_of, escaped_json
from forebay.policy.retry import human_distance

if TYPE_CHECKING:
    from forebay.model.status import DeadLetter, Failure, JobStatus

#: Columns of a terminal where lists show an instant with its distance from now.
WIDE: Final = 120

STATE_STYLES: Final = {
    "scheduled": "yellow",
    "ready": "blue",
    "claimed": "cyan",
    "running": "cyan",
    "retrying": "red",
    "done": "green",
    "cancelled": "dim",
    "expired": "magenta",
    "dead": "red",
}


def print_json(value: object) -> None:
    """Print one line of JSON."""
    import msgspec

    # The standard encoder: arguments of jobs may hold integers of any size.
    narrow = (sys.stdout.encoding or "utf-8").lower().replace("-", "") != "utf8"
    print(escaped_json(json.dumps(msgspec.to_builtins(value), ensure_ascii=narrow)))


def table(*columns: str, right: tuple[str, ...] = (), loose: tuple[str, ...] = ()) -> Table:
    """Return an empty table.

    Args:
        columns: their headings.
        right: those with numbers.
        loose: those that shrink in a narrow terminal; all others keep their width.
    """
    made = Table(one_line=True)
    for column in columns:
        made.add_column(column, right=column in right, no_wrap=column not in loose)
    return made


def one_line(text: str) -> Text:
    """Return a cell of a loose column that is cut, not wrapped."""
    return Text(text.partition("\n")[0], no_wrap=True, overflow="ellipsis")


def facts_table() -> Table:
    """Return a table of names and values."""
    made = Table()
    made.add_column(style="dim", no_wrap=True)
    made.add_column()
    return made


def copied(text: str) -> Text:
    """Return what a person copies, as a cell of the last column: it is one line in each width."""
    return Text(text, overflow="keep")


def state_text(state: str) -> Text:
    """Return a state in its colour."""
    return Text(state, style=STATE_STYLES.get(state, "default"))


def ago(instant: datetime | None) -> str:
    """Return the distance of an instant from now, such as ``2 min ago`` or ``in 5 s``.

    ``-`` for None.
    """
    if instant is None:
        return "-"
    return human_distance((datetime.now(UTC) - instant).total_seconds())


def moment(instant: datetime | None) -> str:
    """Return an instant in local time and its distance from now; ``-`` for None."""
    return "-" if instant is None else f"{clock(instant)}  ({ago(instant)})"


def clock(instant: datetime | None) -> str:
    """Return an instant in local time, with its offset; ``-`` for None."""
    return "-" if instant is None else instant.astimezone().isoformat(sep=" ", timespec="seconds")


def json_text(value: object) -> Text:
    """Return indented and coloured JSON."""
    return json_highlighted(json.dumps(value, ensure_ascii=False, indent=2))


def compact(args: Any, characters_max: int = 60) -> str:
    """Return arguments, or another value, as short JSON; ``-`` for none."""
    if args is None or args == {}:
        return "-"
    text = json.dumps(args, ensure_ascii=False, separators=(", ", ": "))
    return text if len(text) <= characters_max else text[: characters_max - 1] + "…"


def options_shown(job: JobStatus | DeadLetter) -> list[tuple[str, str]]:
    """Return the options of a job that are set and that only people read, by their names in
    words.
    """
    from forebay.model.status import SHOWN_OPTIONS

    values = ((name, getattr(job, name)) for name in SHOWN_OPTIONS)
    return [
        (name.replace("_", " "), value if isinstance(value, str) else compact(value, 200))
        for name, value in values
        if value
    ]


def failure_headline(failure: Failure) -> Text:
    """Return a failed attempt as text: number, outcome, time, worker and error message."""
    line = Text(f"attempt {attempt_of(failure.attempt, failure.max_attempts)}", style="bold")
    line.append(f"  {failure.outcome}, {moment(failure.failed_at)}", style="not bold")
    if failure.worker:
        line.append(f", {failure.worker}", style="not bold dim")
    error = ": ".join(part for part in (failure.type, failure.message) if part)
    if error:
        line.append(textwrap.indent(f"\n{error}", "  "), style="not bold red")
    return line
