"""The display of the outage: live on a terminal, otherwise as lines, and a table at the end."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from annotations.outage.ledger import percentile

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType
    from typing import Self

    from rich.console import ConsoleDimensions, RenderableType

    from annotations.outage.ledger import Counts, Record, Request
    from annotations.outage.run import Result

_BLOCKS = "▁▂▃▄▅▆▇█"

#: From this width on the services are shown side by side, and from this height on with gaps.
_WIDE, _HIGH = 100, 30

#: Seconds of the past that the small curves show.
_PAST = 40

#: Window of the current percentiles, in seconds.
_NOW = 3.0


class View:
    """Events as they happen, and a picture of the state that is redrawn.

    Args:
        console: the output; a terminal gets the picture, anything else only the events.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._started_at = time.monotonic()
        self._live = Live(console=console, refresh_per_second=4, transient=True)

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._live.stop()

    def event(self, text: str, style: str = "default") -> None:
        """Show an event."""
        line = Text(f"{time.monotonic() - self._started_at:6.1f} s  ", style="dim")
        self._console.print(line.append(text, style=style))

    def draw(self, record: Record, counts: Counts, writes: int, deadline_ms: int) -> None:
        """Draw the state."""
        if self._live.is_started:
            self._live.update(picture(record, counts, writes, deadline_ms, self._console.size))

    def result(self, result: Result, how_to_look: Sequence[str]) -> None:
        """Print the table at the end."""
        rows = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
        rows.add_column(justify="right")
        rows.add_column()

        def add(number: float | None, text: str, *, must_be_zero: bool = False) -> None:
            style = "bold"
            if must_be_zero:
                style = "bold red" if number else "bold green"
            rows.add_row(Text("never" if number is None else f"{number:,}", style), text)

        def gap() -> None:
            rows.add_row("", "")

        add(
            result.writes,
            f"writes, {result.outage_writes:,} of them while broker and index did not answer",
        )
        add(result.failed_writes, "failed", must_be_zero=True)
        add(result.lost_writes, "answered with success and not in the database", must_be_zero=True)
        deadline = f"in it; the deadline for the index is {result.deadline_ms} ms"
        for p99, limit, when in (
            (result.write_p99_ms_before, result.limit_ms, "before the outage"),
            (result.write_p99_ms_during, result.limit_ms, deadline),
            (
                result.write_p99_ms_after,
                result.limit_ms_after,
                "after it, while the backlog was worked off",
            ),
        ):
            style = "bold red" if p99 > limit else "bold"
            rows.add_row(Text(f"{p99:,}", style), f"ms, p99 of writes {when}")
        if result.others is not None and result.was_busy:
            busy = Text(f"{100 * result.others:.0f} %", "bold yellow")
            rows.add_row(busy, "of the machine used by other programs")
        gap()
        add(result.behind_at_most, "annotations missing or outdated in the index, at most")
        add(
            result.recovery_seconds,
            "seconds from the end of the outage until it was right, under load",
        )
        add(result.missing_after, "missing in the index", must_be_zero=True)
        add(result.stale_after, "stale there", must_be_zero=True)
        add(result.orphaned_after, "there and deleted here", must_be_zero=True)
        add(result.jobs_after, "jobs left", must_be_zero=True)
        gap()
        add(result.old_order_writes, "writes in the old order, all answered with success")
        rows.add_row(
            Text(f"{result.old_order_lost:,}", "bold red"),
            "never indexed, and no component knows which",
        )
        add(result.old_order_p99_ms_during, "ms, p99 of its writes in the outage")
        add(result.old_order_p99_ms_after, "ms, p99 of its writes after it")
        self._console.print()
        self._console.print(rows)
        self._console.print()
        self._console.print(verdict(result))
        if result.plot:
            self._console.print(f"The plot: {result.plot}")
        for line in how_to_look:
            self._console.print(Text(line), soft_wrap=True)


def picture(
    record: Record, counts: Counts, writes: int, deadline_ms: int, size: ConsoleDimensions
) -> RenderableType:
    """Return the state, to fit into a terminal: the services side by side where it is wide,
    without gaps where it is low.
    """
    done = record.writes()
    old = [request for request in record.requests if request.kind == "old"]
    failed = sum(not request.is_done for request in done)
    old_failed = sum(not request.is_done for request in old)
    new_rows = [
        ("saved and answered", f"{len(done) - failed:,}", "green"),
        ("failed", f"{failed:,}", "bold red" if failed else "green"),
        ("p99 now", f"{_milliseconds(done, record)}  (deadline {deadline_ms} ms)", "default"),
        ("", _curve(done, record), "cyan"),
        ("index behind by", f"{counts.behind:,}", "yellow" if counts.behind else "green"),
        ("recorded for retry", f"{counts.jobs:,}", "default"),
    ]
    old_rows = [
        ("saved and answered", f"{counts.old_items:,}", "green"),
        ("failed", f"{old_failed:,}", "bold red" if old_failed else "green"),
        ("p99 now", _milliseconds(old, record), "default"),
        ("", _curve(old, record), "cyan"),
        (
            ("index behind by"),
            f"{counts.old_missing:,}",
            "bold red" if counts.old_missing else "green",
        ),
        ("recorded for retry", "0", "bold red" if counts.old_missing else "default"),
    ]
    state = Text("broker and index: ")
    if record.cut_at is None:
        state.append("answer", "green")
    elif record.healed_at is None:
        state.append(
            (f"BLACK HOLE, for {max(0.0, _last(record) - record.cut_at):.0f} s"),
            "bold white on red",
        )
    else:
        state.append(
            (f"answer again, for {max(0.0, _last(record) - record.healed_at):.0f} s"), "yellow"
        )
    bar = Table.grid(padding=(0, 2))
    bar.add_row(
        ProgressBar(total=max(writes, len(done)), completed=len(done), width=30),
        f"{len(done):,} writes" if len(done) > writes else f"{len(done):,} of {writes:,} writes",
    )
    is_wide, is_low = size.width >= _WIDE, size.height < _HIGH
    panels = [
        _panel("one transaction: row and job", new_rows, is_low=is_low),
        _panel("the old order: commit, then publish", old_rows, is_low=is_low),
    ]
    gap = [] if is_low else [Text()]
    if not is_wide:
        return Group(*gap, bar, state, *gap, *panels)
    beside = Table.grid(expand=True)
    for _ in panels:
        beside.add_column(ratio=1)
    beside.add_row(*panels)
    return Group(*gap, bar, *gap, state, *gap, beside)


def verdict(result: Result) -> Text:
    """Return the sentence under the table."""
    if not result.is_right:
        return Text("This must not happen: please report it.", "bold red")
    if result.is_fast:
        return Text("Nothing was lost, and no request waited for the index.", "bold green")
    slow: list[str] = []
    if result.slowest is not None:
        took, limit = result.slowest
        slow.append(f"writes took up to {took:,.0f} ms (p99; at most {limit:,} ms expected)")
    if result.recovery_seconds is None:
        slow.append("the backlog was worked off only when people stopped writing")
    what = ", and ".join(slow)
    if result.was_busy:
        return Text(
            f"Nothing was lost. The machine was busy: {what}. Repeat this on a quiet machine.",
            "bold yellow",
        )
    return Text(f"Nothing was lost, but {what}. Please report it.", "bold red")


def _panel(title: str, rows: Sequence[tuple[str, str, str]], *, is_low: bool) -> Panel:
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", min_width=18)
    table.add_column(min_width=_PAST // 2)
    for name, value, style in rows:
        table.add_row(name, Text(value, style))
    return Panel(table, title=title, title_align="left", padding=(0 if is_low else 1, 1))


def _last(record: Record) -> float:
    return record.counts[-1][0] if record.counts else 0.0


def _milliseconds(requests: list[Request], record: Record) -> str:
    since = _last(record) - _NOW
    latest = [request for request in requests[-3000:] if request.at + request.seconds >= since]
    return f"{percentile(latest, 0.99):,.0f} ms" if latest else "-"


def _curve(requests: list[Request], record: Record) -> str:
    """Return the longest answer of each second, on a logarithmic scale from a millisecond to ten
    seconds.
    """
    end = int(_last(record))
    longest: dict[int, float] = {}
    for request in requests[-20_000:]:
        second = int(request.at + request.seconds)
        longest[second] = max(longest.get(second, 0.0), request.seconds)
    return "".join(_block(longest.get(second)) for second in range(end - _PAST // 2, end))


def _block(seconds: float | None) -> str:
    if seconds is None:
        return " "
    height = 0
    limit = 0.002
    while seconds > limit and height < len(_BLOCKS) - 1:
        height += 1
        limit *= 3
    return _BLOCKS[height]
