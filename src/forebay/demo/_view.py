"""The demo's output: live on a terminal, lines elsewhere, and a table at the end."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType
    from typing import Self

    from forebay.demo._ledger import Progress, Result
    from forebay.demo.workers import WorkerProcess

_STATE_STYLES: Final = {
    "starting": "dim",
    "working": "green",
    "killed": "bold red",
    "stopped": "dim",
}


class View:
    """Events as they happen, and a live picture of the state.

    Args:
        console: the output; a terminal gets the picture, anything else the events only.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._started_at = time.monotonic()
        self._live = Live(console=console, refresh_per_second=8, transient=True)

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
        self._live.stop()  # removes the picture; the events stay

    def event(self, text: str, style: str = "default") -> None:
        """Print an event."""
        line = Text(f"{time.monotonic() - self._started_at:6.1f} s  ", style="dim")
        self._console.print(line.append(text, style=style))

    def draw(
        self, documents: int, expected: int, now: Progress, workers: Sequence[WorkerProcess]
    ) -> None:
        """Draw the state."""
        if not self._live.is_started:
            return
        bars = Table.grid(padding=(0, 2))
        bars.add_column(min_width=9)
        bars.add_row("committed", _bar(now.committed, expected), f"{now.committed:,}")
        bars.add_row("done", _bar(now.done, expected), f"{now.done:,}")
        waiting = max(0, now.committed - now.done - sum(now.held.values()))
        bars.add_row(
            "",
            Text(
                f"{waiting:,} waiting · {sum(now.held.values()):,} held ·"
                f" {now.docstrings:,} docstrings of {documents:,} modules",
                style="dim",
            ),
        )
        table = Table(box=None, header_style="bold dim", pad_edge=False, padding=(0, 3, 0, 0))
        table.add_column("worker")
        table.add_column("process", min_width=8)
        table.add_column("state", min_width=8)
        table.add_column("jobs held", justify="right")
        for worker in workers:
            style = _STATE_STYLES[worker.state]
            table.add_row(
                str(worker.number),
                str(worker.pid),
                Text(worker.state, style=style),
                str(worker.held) if worker.state in ("working", "killed") else "",
            )
        self._live.update(Group(Text(), bars, Text(), table))

    def result(self, result: Result, how_to_look: Sequence[str]) -> None:
        """Print the table at the end."""
        rows = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
        rows.add_column(justify="right")
        rows.add_column()

        def add(number: int | str, text: str, *, must_be_zero: bool = False) -> None:
            style = "bold"
            if must_be_zero:
                style = "bold red" if number else "bold green"
            rows.add_row(Text(f"{number:,}" if isinstance(number, int) else number, style), text)

        add(result.documents, "modules of the standard library")
        add(result.committed, "committed: document and job in one transaction")
        add(result.rolled_back, "rolled back on purpose, the job with the document")
        add(result.done, "done")
        add(result.lost, "lost", must_be_zero=True)
        add(result.phantom, "ran although rolled back", must_be_zero=True)
        add(result.double_effects, "took effect twice", must_be_zero=True)
        kills = "worker" if result.worker_kills == 1 else "workers"
        add(result.rerun, f"run again, after {result.worker_kills} {kills} killed while busy")
        add(f"{result.seconds:.1f}", "seconds, with the time until a killed worker is given up")
        self._console.print()
        self._console.print(rows)
        self._console.print()
        if result.is_right:
            self._console.print(
                Text("Every committed job took effect exactly once. No other did.", "bold green")
            )
        else:
            self._console.print(Text("This is a bug: please report it.", "bold red"))
        for line in how_to_look:
            self._console.print(Text(line), soft_wrap=True)


def _bar(value: int, total: int) -> ProgressBar:
    return ProgressBar(total=max(total, 1), completed=value, width=50)
