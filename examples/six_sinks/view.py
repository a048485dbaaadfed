"""What the demo shows: events as they happen, a live table on a terminal, and the count of both
sides.
"""

import time
from types import TracebackType
from typing import TYPE_CHECKING, Self

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from six_sinks.run import Row


class View:
    """The output of the demo.

    Args:
        console: a terminal gets a live table, anything else the events only.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._began = time.monotonic()
        self._live = Live(console=console, refresh_per_second=8, transient=True)
        self._committed = 0
        self._remarks: dict[str, str] = {}

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
        """Print an event."""
        line = Text(f"{time.monotonic() - self._began:6.1f} s  ", style="dim")
        self._console.print(line.append(text, style=style))

    def draw(self, committed: int | None, waiting: dict[str, int], remarks: dict[str, str]) -> None:
        """Draw what was committed, and what each sink still has to get."""
        if not self._live.is_started:
            return
        self._committed = self._committed if committed is None else committed
        self._remarks |= remarks
        table = Table(box=None, header_style="bold dim", pad_edge=False, padding=(0, 3, 0, 0))
        table.add_column("sink")
        table.add_column("waiting", justify="right")
        table.add_column("")
        for name, count in sorted(waiting.items()):
            if name in self._remarks:
                table.add_row(name, f"{count:,}", Text(self._remarks[name], style="dim"))
        table.add_section()
        table.add_row("committed", f"{self._committed:,}", "")
        self._live.update(table)

    def result(self, rows: "list[Row]") -> None:
        """Print the count of both sides."""
        table = Table(box=None, header_style="bold dim", pad_edge=False, padding=(0, 2, 0, 0))
        table.add_column("sink")
        for name in ("committed", "arrived", "repeated", "resent", "lost", "early"):
            table.add_column(name, justify="right")
        table.add_column("")
        for row in rows:
            bad = "bold red" if row.lost or row.early else "green"
            table.add_row(
                row.sink,
                *(f"{n:,}" for n in (row.committed, row.arrived, row.repeated, row.found_lost)),
                Text(f"{row.lost:,}", style=bad),
                Text(f"{row.early:,}", style=bad),
                Text(row.remark, style="dim"),
            )
        self._console.print(table)
