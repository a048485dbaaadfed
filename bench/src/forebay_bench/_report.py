"""What a scenario found: raw figures for programs, a table and notes for people, a plot."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from forebay_bench._measure import round_figure

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from matplotlib.figure import Figure


@dataclass(frozen=True, slots=True)
class Table:
    """A table for people. Cells are texts; ``right`` names the columns of numbers."""

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    title: str = ""
    right: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Report:
    """What one run of a scenario found."""

    figures: dict[str, Any]
    """Raw figures by the names that docs/benchmarks.md explains."""
    tables: Sequence[Table]
    bars: Sequence[Bar] = ()
    """What the figures promise, and whether they keep it."""
    notes: Sequence[str] = ()
    """What is unfair to whom, what was left out and why: a line each."""
    draw: Callable[[Figure], None] | None = field(default=None, compare=False)
    """Draw the plot; None when the scenario has none."""


@dataclass(frozen=True, slots=True)
class Bar:
    """A promise about a ratio of one run."""

    what: str
    value: float | None
    """None: not measured in this run, because something it needs is not there."""
    at_least: float | None = None
    at_most: float | None = None

    @property
    def holds(self) -> bool | None:
        """Whether it is kept; None when not measured."""
        if self.value is None:
            return None
        low = self.at_least is None or self.value >= self.at_least
        return low and (self.at_most is None or self.value <= self.at_most)

    def facts(self) -> dict[str, Any]:
        """As it goes into the JSON line."""
        return {
            "what": self.what,
            "value": None if self.value is None else round_figure(self.value),
            "at_least": self.at_least,
            "at_most": self.at_most,
            "holds": self.holds,
        }
