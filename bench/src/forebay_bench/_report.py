"""The result of a scenario: raw figures for programs, a table and notes for people, a plot."""

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
    """The result of one run of a scenario."""

    figures: dict[str, Any]
    """Raw figures, by the names in docs/benchmarks.md."""
    tables: Sequence[Table]
    bars: Sequence[Bar] = ()
    """The promised ratios, and whether the run kept them."""
    notes: Sequence[str] = ()
    """Where the comparison is unfair, what was left out and why: a line each."""
    draw: Callable[[Figure], None] | None = field(default=None, compare=False)
    """Draws the plot; None if the scenario has none."""


@dataclass(frozen=True, slots=True)
class Bar:
    """A promise about a ratio of one run."""

    what: str
    value: float | None
    """None: not measured in this run, because a requirement is missing."""
    at_least: float | None = None
    at_most: float | None = None

    @property
    def holds(self) -> bool | None:
        """Whether it is kept; None if not measured."""
        if self.value is None:
            return None
        low = self.at_least is None or self.value >= self.at_least
        return low and (self.at_most is None or self.value <= self.at_most)

    def facts(self) -> dict[str, Any]:
        """Return it for the JSON line."""
        return {
            "what": self.what,
            "value": None if self.value is None else round_figure(self.value),
            "at_least": self.at_least,
            "at_most": self.at_most,
            "holds": self.holds,
        }
