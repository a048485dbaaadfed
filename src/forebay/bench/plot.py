"""Plots: one look for all of them. Needs matplotlib, which the extra ``bench`` brings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import matplotlib as mpl
from matplotlib.figure import Figure

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from matplotlib.axes import Axes

#: A colour per contestant, the same in every plot; distinguishable with the common colour blindnesses (Okabe, Ito 2008).
COLOURS: Final = {
    "forebay": "#0072B2",
    "classic": "#D55E00",
    "que": "#CC79A7",
    "staged": "#009E73",
    "pgqueuer": "#E69F00",
    "procrastinate": "#56B4E9",
    "plain": "#777777",
}


def save(draw: Callable[[Figure], None], path: Path) -> None:
    """Draw a figure and write it; the suffix decides the format."""
    style = {
        "font.family": "sans-serif",
        "font.size": 11,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.grid": True,
        "grid.alpha": 0.25,
        "svg.fonttype": "none",
        "svg.hashsalt": "forebay",
    }
    with mpl.rc_context(style):
        figure = Figure(figsize=(9, 6), layout="constrained", facecolor="white")
        draw(figure)
        # No date inside: an unchanged plot is an unchanged file.
        metadata = {"Date": None} if path.suffix == ".svg" else None
        figure.savefig(path, dpi=130, metadata=metadata)


def label_line(axes: Axes, x: float, y: float, text: str, colour: str) -> None:
    """Name a line at its end: easier to read than a legend."""
    axes.annotate(
        text, (x, y), xytext=(5, 0), textcoords="offset points", color=colour, va="center"
    )
