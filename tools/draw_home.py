"""Draw the plots of the home page from the curves of docs/plots/held.svg.

    .venv/bin/python tools/draw_home.py

`forebay bench held --plot` writes that file: what a run measured, in one picture for those who want
all of it. The home page shows the same points in two small pictures, each with one statement, in
the colours of the site. They follow the palette of the reader: an SVG that is a picture by
`prefers-color-scheme`, and one that the site puts into its page by the variables of `site.css`.
"""

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import NamedTuple
from xml.etree import ElementTree as ET

_PLOTS = Path(__file__).resolve().parents[1] / "docs" / "plots"
_SVG = "{http://www.w3.org/2000/svg}"
_HREF = "{http://www.w3.org/1999/xlink}href"
#: Whose line it is, by the colour that the benchmark draws it in.
_LINES = {"#0072b2": "forebay", "#d55e00": "table", "#cc79a7": "locks"}
_NAMES = {"forebay": "Forebay", "table": "usual jobs table", "locks": "advisory locks"}
_WIDTH, _HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM = 520, 330, 16, 504, 64, 292

STYLE = """<style>
.plot{--plot-paper:#fff;--plot-ink:#16252b;--plot-dim:#55646c;--plot-line:#e3e9ec;
--plot-forebay:#0b6577;--plot-table:#b4531f;--plot-locks:#86608a}
@media (prefers-color-scheme:dark){.plot{--plot-paper:#12181b;--plot-ink:#dfe7ea;--plot-dim:#93a4ac;
--plot-line:#273238;--plot-forebay:#66d9e8;--plot-table:#ff9d66;--plot-locks:#c9a2cd}}
</style>"""


class Plot(NamedTuple):
    """One plot of the home page."""

    name: str
    lines: "Lines"
    title: str
    unit: str
    high: float
    steps: Sequence[float]
    written: Callable[[float], str]
    #: How many points on each side a thick line takes the median of.
    neighbours: int


#: The points of each line: seconds since the transaction opened, and a value.
Lines = dict[str, list[tuple[float, float]]]
_Scale = Callable[[float], float]


def panels(source: str) -> list[Lines]:
    """Return what the panels of a picture by matplotlib show, read from its ticks and paths."""
    tree = ET.fromstring(source)
    every = [each for each in tree.iter(_SVG + "g") if each.get("id", "").startswith("axes_")]
    # Panels above each other share the numbers below the last one.
    across = _scale(every[-1], "xtick_", "x")
    return [_lines(axes, across, _scale(axes, "ytick_", "y")) for axes in every]


def _lines(axes: ET.Element, across: _Scale, up: _Scale) -> Lines:
    lines = {}
    for path in axes.iter(_SVG + "path"):
        style = path.get("style", "")
        points = re.findall(r"[ML] ([\d.-]+) ([\d.-]+)", path.get("d", ""))
        whose = next((name for colour, name in _LINES.items() if colour in style), None)
        if whose and len(points) > 10:
            measured = [(across(float(x)), up(float(y))) for x, y in points]
            lines[whose] = [(x, y) for x, y in measured if x >= 0]
    return lines


def _scale(axes: ET.Element, kind: str, name: str) -> _Scale:
    """Return what turns a place on an axis into its value."""
    known: list[tuple[float, float]] = []
    for tick in axes.iter(_SVG + "g"):
        if tick.get("id", "").startswith(kind):
            mark = next(each for each in tick.iter(_SVG + "use") if each.get(_HREF))
            text = next(tick.iter(_SVG + "text")).text or ""
            known.append((float(mark.get(name, "")), float(text.replace(",", ""))))
    (first, low), (last, high) = known[0], known[-1]
    return lambda place: low + (place - first) * (high - low) / (last - first)


def plots(source: str) -> list[Plot]:
    """Return what the home page shows of a run."""
    claim, waiting = panels(source)
    return [
        Plot(
            name="held-claim.svg",
            lines=claim,
            title="Time to get the next 100 jobs",
            unit="ms",
            high=75,
            steps=(0, 20, 40, 60),
            written=lambda value: f"{value:.0f}",
            neighbours=2,
        ),
        Plot(
            name="held-waiting.svg",
            lines=waiting,
            title="Jobs that wait",
            unit="millions",
            high=1_700_000,
            steps=(0, 500_000, 1_000_000, 1_500_000),
            written=lambda value: f"{value / 1e6:.1f}",
            neighbours=0,
        ),
    ]


def drawn(plot: Plot) -> str:
    """Return the plot as SVG."""
    longest = max(x for points in plot.lines.values() for x, _ in points)

    def place(x: float, y: float) -> str:
        across = _LEFT + max(x, 0) / longest * (_RIGHT - _LEFT)
        return f"{across:.1f} {_BOTTOM - min(y, plot.high) / plot.high * (_BOTTOM - _TOP):.1f}"

    ends = ", ".join(
        f"{_NAMES[name]} {plot.written(_smooth(points, plot.neighbours)[-1][1])}"
        for name, points in plot.lines.items()
    )
    parts = [
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" class="plot" '
            f'viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" font-size="13" '
            'font-family="system-ui,-apple-system,Segoe UI,Roboto,Noto Sans,sans-serif">'
        ),
        STYLE,
        (
            f"<title>{plot.title}, in {plot.unit}, while a transaction is held open. "
            f"At the end: {ends}</title>"
        ),
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" rx="10" fill="var(--plot-paper)"/>',
        (
            f'<text x="{_LEFT}" y="28" font-size="17" font-weight="600" fill="var(--plot-ink)">'
            f'{plot.title} <tspan font-size="13" font-weight="400" fill="var(--plot-dim)">'
            f"{plot.unit}</tspan></text>"
        ),
    ]
    for step in plot.steps:
        x_y = place(0, step).split()[1]
        parts.append(
            f'<path d="M{_LEFT} {x_y}H{_RIGHT}" stroke="var(--plot-line)"/>'
            + f'<text x="{_LEFT}" y="{float(x_y) - 5:.1f}" fill="var(--plot-dim)" font-size="12">'
            f"{plot.written(step)}</text>"
            * bool(step)  # the lines of the plot run over the place of 0
        )
    for name in ("locks", "table", "forebay"):
        points = plot.lines[name]
        ink = f'fill="none" stroke="var(--plot-{name})" stroke-linejoin="round"'
        raw = "L".join(place(x, y) for x, y in points)
        thick = "L".join(place(x, y) for x, y in _smooth(points, plot.neighbours))
        parts.append(f'<path d="M{raw}" {ink} stroke-width="1" opacity=".3"/>')
        parts.append(f'<path d="M{thick}" {ink} stroke-width="{4 if name == "forebay" else 2.5}"/>')
    for name, x, y, anchor in _labels(plot, place):
        weight = 700 if name == "forebay" else 600
        parts.append(
            f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-weight="{weight}" '
            f'font-size="15" fill="var(--plot-{name})" stroke="var(--plot-paper)" stroke-width="4" '
            f'paint-order="stroke" stroke-linejoin="round">{_NAMES[name]}</text>'
        )
    parts.append(
        f'<text x="{_LEFT}" y="{_HEIGHT - 14}" fill="var(--plot-dim)">a transaction opens</text>'
        f'<text x="{_RIGHT}" y="{_HEIGHT - 14}" text-anchor="end" fill="var(--plot-dim)">'
        f"and is still open {longest:.0f} s later</text></svg>"
    )
    return "\n".join(parts) + "\n"


def _smooth(points: list[tuple[float, float]], neighbours: int) -> list[tuple[float, float]]:
    """Return medians of neighbours. Single peaks stay in the thin line."""
    return [
        (x, median(y for _, y in points[max(0, at - neighbours) : at + neighbours + 1]))
        for at, (x, _) in enumerate(points)
    ]


def _labels(
    plot: Plot, place: Callable[[float, float], str]
) -> list[tuple[str, float, float, str]]:
    """Return where the name of each line stands: above its end, and apart from the others."""
    found = []
    taken: list[float] = []
    ordered = sorted(plot.lines, key=lambda name: _smooth(plot.lines[name], plot.neighbours)[-1][1])
    for name in ordered:
        x, y = _smooth(plot.lines[name], plot.neighbours)[-1]
        across, up = (float(each) for each in place(x, y).split())
        up = min([up - 12, *(each - 19 for each in taken)])
        taken.append(up)
        found.append((name, min(across, _RIGHT - 4), up, "end"))
    return found


if __name__ == "__main__":
    for plot in plots((_PLOTS / "held.svg").read_text(encoding="utf-8")):
        (_PLOTS / plot.name).write_text(drawn(plot), encoding="utf-8")
        print(_PLOTS / plot.name)
