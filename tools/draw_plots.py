"""Draw plots of docs/benchmarks.md from the tables of the pages behind it.

    .venv/bin/python tools/draw_plots.py

Two further plots, held.svg and trickle.svg, are written by a run itself: `forebay bench held
--plot`. Those here show figures that a page has already, so that a page and its plot are one run.
"""

import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from forebay_bench._measure import Spread
from forebay_bench.plot import rates, save

_DOCS = Path(__file__).resolve().parents[1] / "docs"
#: The rows of a run that a plot shows, by their names on the page: a label, and whose colour.
_DRAIN = {
    "Forebay, coroutine": ("Forebay", "forebay"),
    "Forebay, 100 ordering keys": ("Forebay, 100 ordering keys", "forebay"),
    "Forebay, batches of 500": ("Forebay, batches of 500", "forebay"),
    "classic, batches of 500": ("usual jobs table,\nbatches of 500", "classic"),
    "pgqueuer": ("pgqueuer", "pgqueuer"),
    "procrastinate": ("procrastinate", "procrastinate"),
}
_TRANSACTIONAL = {
    "`transaction=True`": ("Forebay, effect exactly once", "forebay"),
    "by hand": ("Forebay, at least once", "forebay"),
    "pgqueuer, by hand": ("pgqueuer", "pgqueuer"),
    "procrastinate, by hand": ("procrastinate", "procrastinate"),
    "graphile-worker, by hand": ("graphile-worker (Node.js)", "graphile-worker"),
    "pg-boss, by hand": ("pg-boss (Node.js)", "pg-boss"),
}


def drained(text: str) -> dict[str, Spread]:
    """Return jobs a second of each row of the output of `forebay bench drain`, with its rounds."""
    block = text.partition("$ forebay bench drain\n")[2].partition("```")[0]
    row = re.compile(r"^(\S.*?) +([\d,]+) +([\d,]+) to ([\d,]+) ", re.MULTILINE)
    return {name: _spread(*figures) for name, *figures in row.findall(block)}


def in_transactions(text: str) -> dict[str, Spread]:
    """Return jobs a second of each row of the table below `Handlers in transactions`."""
    section = text.partition("\n## Handlers in transactions\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| ([^|]+) \| ([\d,.]+) \|", section, re.MULTILINE)
    return {name: _spread(figure, figure, figure) for name, figure in rows}


def plots() -> Iterator[tuple[str, str, dict[str, tuple[Spread, str]]]]:
    """Each plot: its file, its title, and its bars by label."""
    text = (_DOCS / "benchmarks/work.md").read_text(encoding="utf-8")
    for name, title, found, shown in (
        ("drain.svg", "A full queue emptied by one worker process", drained(text), _DRAIN),
        (
            "transactional.svg",
            "Handlers that update one row, 20 at a time",
            in_transactions(text),
            _TRANSACTIONAL,
        ),
    ):
        yield name, title, {label: (found[row], whose) for row, (label, whose) in shown.items()}


def _spread(*figures: str) -> Spread:
    median, low, high = (float(figure.replace(",", "")) for figure in figures)
    return Spread(median, low, high, rounds=1)


if __name__ == "__main__":
    for name, title, bars in plots():
        save(partial(rates, title=title, found=bars), _DOCS / "plots" / name)
