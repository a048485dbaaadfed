"""Tables for people, JSON for programs."""

from __future__ import annotations

import json
import os
import sys
import textwrap
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import msgspec
from rich.console import Console
from rich.highlighter import JSONHighlighter
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from forebay.model.status import SHOWN_OPTIONS
from forebay.model.text import escaped_json, replaced_controls
from forebay.policy.retry import human_duration

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from rich.console import ConsoleOptions, RenderableType

    from forebay.model.status import DeadLetter, Failure, JobStatus

#: Width where the output is not a terminal.
_WIDTH: Final = 160

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


class SafeConsole(Console):
    """A console that shows a replacement character for control characters of jobs, errors and sessions.

    Rich passes some of them on, and a terminal would obey them. Its styles are not affected, because it
    adds these sequences later.
    """

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterator[Segment]:
        """Yield the segments of a renderable."""
        for segment in super().render(renderable, options):
            if segment.control:
                yield segment
            else:
                yield Segment(replaced_controls(segment.text), segment.style)


class _Table(Table):
    """A table whose cells given as ``str`` are one line: a value cannot look like another row."""

    def add_row(self, *renderables: RenderableType | None, **options: Any) -> None:
        cells = (one.replace("\n", "␊") if isinstance(one, str) else one for one in renderables)
        super().add_row(*cells, **options)


def console(*, stderr: bool = False) -> Console:
    """Return a console. Lines are cut only at the width of a terminal."""
    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() or os.environ.get("COLUMNS") else _WIDTH
    # No markup: a tag or a message may contain brackets.
    return SafeConsole(stderr=stderr, highlight=False, markup=False, width=width)


def print_json(value: object) -> None:
    """Print one line of JSON."""
    # The standard encoder: arguments of jobs may hold integers of any size.
    print(escaped_json(json.dumps(msgspec.to_builtins(value), ensure_ascii=False)))


def table(*columns: str, right: tuple[str, ...] = (), loose: tuple[str, ...] = ()) -> Table:
    """Return an empty table.

    Args:
        columns: their headings.
        right: those with numbers.
        loose: those that shrink in a narrow terminal; all others keep their width.
    """
    made = _Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold dim")
    for column in columns:
        made.add_column(
            column,
            justify="right" if column in right else "left",
            no_wrap=column not in loose,
            overflow="fold",
        )
    return made


def one_line(text: str) -> Text:
    """Return a cell of a loose column that is cut, not wrapped."""
    return Text(text.partition("\n")[0], no_wrap=True, overflow="ellipsis")


def facts_table() -> Table:
    """Return a table of names and values."""
    made = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    made.add_column(style="dim", no_wrap=True)
    made.add_column(overflow="fold")
    return made


def state_text(state: str) -> Text:
    """Return a state in its colour."""
    return Text(state, style=STATE_STYLES.get(state, "default"))


def ago(instant: datetime | None) -> str:
    """Return the distance of an instant from now, such as ``2 min ago`` or ``in 5 s``; ``-`` for None."""
    if instant is None:
        return "-"
    seconds = (datetime.now(UTC) - instant).total_seconds()
    if abs(seconds) < 1:
        return "now"
    length = human_duration(round(abs(seconds)))
    return f"{length} ago" if seconds > 0 else f"in {length}"


def moment(instant: datetime | None) -> str:
    """Return an instant in local time and its distance from now; ``-`` for None."""
    if instant is None:
        return "-"
    return f"{instant.astimezone().isoformat(sep=' ', timespec='seconds')}  ({ago(instant)})"


def json_text(value: object) -> Text:
    """Return indented and coloured JSON."""
    text = Text(json.dumps(value, ensure_ascii=False, indent=2))
    JSONHighlighter().highlight(text)
    return text


def compact(args: Mapping[str, Any] | None, characters_max: int = 60) -> str:
    """Return arguments as short JSON; ``-`` for none."""
    if not args:
        return "-"
    text = json.dumps(args, ensure_ascii=False, separators=(", ", ": "))
    return text if len(text) <= characters_max else text[: characters_max - 1] + "…"


def options_shown(job: JobStatus | DeadLetter) -> list[tuple[str, str]]:
    """Return the options of a job that are set and that only people read, by their names in words."""
    values = ((name, getattr(job, name)) for name in SHOWN_OPTIONS)
    return [
        (name.replace("_", " "), value if isinstance(value, str) else compact(value, 200))
        for name, value in values
        if value
    ]


def attempt_of(attempt: int, max_attempts: int | None) -> str:
    """Return the number of an attempt, with the maximum number if known."""
    return f"{attempt} of {max_attempts}" if max_attempts else str(attempt)


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
