"""Plots, all in one style. Needs matplotlib, which the extra ``bench`` installs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from forebay_bench._measure import Spread

#: A colour per engine, the same in every plot; distinguishable with the common colour blindnesses
#: (Okabe, Ito 2008).
COLOURS: Final = {
    "forebay": "#0072B2",
    "classic": "#D55E00",
    "que": "#CC79A7",
    "pgqueuer": "#E69F00",
    "procrastinate": "#56B4E9",
    "graphile-worker": "#F0E442",
    "pg-boss": "#000000",
    "plain": "#777777",
}


def save(draw: Callable[[Figure], None], path: Path) -> None:
    """Draw a figure and write it; the suffix decides the format."""
    # Imported here, because figures without a plot need no matplotlib.
    import matplotlib as mpl  # noqa: PLC0415
    from matplotlib.figure import Figure  # noqa: PLC0415

    style: dict[Any, Any] = {
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
    """Label a line at its end, which is easier to read than a legend."""
    axes.annotate(
        text, (x, y), xytext=(5, 0), textcoords="offset points", color=colour, va="center"
    )


def costs(
    figure: Figure,
    title: str,
    what: str,
    sizes: Sequence[int],
    curves: Sequence[tuple[str, str, Sequence[float]]],
) -> None:
    """Draw milliseconds over a size on a logarithmic axis.

    A curve is its label, line style and values.
    """
    axes = figure.subplots()
    axes.set_title(title, loc="left")
    for label, style, values in curves:
        axes.plot(sizes, values, style, marker="o", color=COLOURS["forebay"])
        axes.annotate(
            label, (sizes[-1], values[-1]), xytext=(8, 0), textcoords="offset points", va="center"
        )
    axes.set_xscale("log")
    axes.set_ylim(bottom=0)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.set_xlabel(what)
    axes.set_ylabel("milliseconds")


def rates(figure: Figure, title: str, found: Mapping[str, tuple[Spread, str]]) -> None:
    """Draw a bar for each engine, by its label: jobs a second with their spread, and whose
    colour it has.
    """
    axes = figure.subplots()
    labels = list(found)
    spreads = [spread for spread, _ in found.values()]
    medians = [spread.median for spread in spreads]
    axes.barh(
        labels,
        medians,
        xerr=[
            [spread.median - spread.low for spread in spreads],
            [spread.high - spread.median for spread in spreads],
        ],
        color=[COLOURS[whose] for _, whose in found.values()],
        ecolor="#333333",
        height=0.6,
    )
    for place, spread in enumerate(spreads):
        axes.annotate(
            f"{spread.median:,.0f}",
            (spread.high, place),
            xytext=(6, 0),
            textcoords="offset points",
            va="center",
        )
    axes.invert_yaxis()
    axes.margins(x=0.12)
    axes.grid(visible=False, axis="y")
    axes.set_xlabel("jobs a second")
    axes.set_title(title)


def stacked(
    figure: Figure, title: str, what: str, found: Mapping[str, tuple[float, float, str]]
) -> None:
    """Draw a bar of two parts for each engine, by its label: the parts, the second one lighter,
    and whose colour it has.
    """
    axes = figure.subplots()
    labels, parts = list(found), list(found.values())
    colours = [COLOURS[whose] for _, _, whose in parts]
    first = [each for each, _, _ in parts]
    axes.barh(labels, first, color=colours, height=0.6)
    axes.barh(
        labels, [each for _, each, _ in parts], left=first, color=colours, alpha=0.45, height=0.6
    )
    for place, (one, other, _) in enumerate(parts):
        axes.annotate(
            f"{one:,.0f} + {other:,.0f}",
            (one + other, place),
            xytext=(6, 0),
            textcoords="offset points",
            va="center",
        )
    axes.invert_yaxis()
    axes.margins(x=0.12)
    axes.grid(visible=False, axis="y")
    axes.set_xlabel(what)
    axes.set_title(title)


def from_zero(axes: Axes, *, whole: bool) -> None:
    """Begin the values of a panel at 0; ``whole``: they are counts, which have no parts."""
    high = axes.get_ylim()[1]
    axes.set_ylim(0, max(1.0, high) if whole else high)
    if whole:
        axes.locator_params(axis="y", integer=True)
    axes.yaxis.set_major_formatter(
        lambda value, _: f"{value:,.0f}" if value >= 10 else f"{value:g}"
    )


def label_ends(axes: Axes, ends: list[tuple[float, float, str, str]], height: float) -> None:
    """Label each line at its end, and move overlapping labels apart.

    Args:
        axes: the panel.
        ends: the end, label and colour of each line.
        height: of a label, as a share of the panel's.
    """
    low, high = axes.get_ylim()
    place = low - height / 4 * (high - low)  # The lowest label stands above the axis.
    for x, y, text, colour in sorted(ends, key=lambda end: end[1]):
        place = max(y, place + height * (high - low))
        axes.annotate(
            text, (x, place), xytext=(6, 0), textcoords="offset points", color=colour, va="center",
            fontsize=10, fontweight="bold", annotation_clip=False,
        )  # fmt: skip
