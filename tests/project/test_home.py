"""The home page of the site: its mark, its plots and its numbers come from one place each."""

import re
from pathlib import Path

import pytest

from tools.draw_home import drawn, panels, plots

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
HELD = (DOCS / "plots/held.svg").read_text(encoding="utf-8")
MARKS = [
    ROOT / "docs/assets/mark.svg",
    ROOT / "src/forebay/console/static/mark.svg",
    ROOT / "tools/site/.icons/forebay/mark.svg",
]


def figure(text: str) -> float:
    return float(text.replace(",", ""))


def test_the_site_and_the_console_have_one_mark():
    """
    A person who opens the console sees the mark of the site.
    """
    paths = {re.search(r'<path d="([^"]+)"', file.read_text(encoding="utf-8"))[1] for file in MARKS}
    assert len(paths) == 1
    assert MARKS[0].read_bytes() == MARKS[1].read_bytes()


@pytest.mark.parametrize("plot", plots(HELD), ids=lambda plot: plot.name)
def test_a_plot_of_the_home_page_is_drawn_from_the_published_run(plot):
    """
    When `forebay bench held --plot` writes another run, tools/draw_home.py draws it.
    """
    assert (DOCS / "plots" / plot.name).read_text(encoding="utf-8") == drawn(plot)


def test_the_curves_end_where_the_table_of_the_run_says():
    """
    What is read from the picture are the figures of the page that describes the run.
    """
    page = (DOCS / "benchmarks/held.md").read_text(encoding="utf-8")
    claim, waiting = panels(HELD)
    for row, whose in (
        ("Forebay", "forebay"),
        ("usual jobs table", "table"),
        (r"advisory locks \(Que\)", "locks"),
    ):
        cells = re.search(rf"^\| {row} \|(.+)\|$", page, re.MULTILINE)[1].split("|")
        last = figure(cells[2].strip() if len(cells) < 8 else cells[4].strip())
        tenth = [y for _, y in claim[whose]][-3:]
        assert sorted(tenth)[1] == pytest.approx(last, rel=0.1)
        assert waiting[whose][-1][1] == pytest.approx(figure(cells[-1].strip()), rel=0.02, abs=2000)


@pytest.mark.parametrize(
    "page", [ROOT / "README.md", DOCS / "index.md"], ids=lambda page: page.name
)
def test_the_three_numbers_stand_where_they_were_measured(page):
    """
    README and home page round what the benchmarks have; a new run changes all of them.
    """
    said = page.read_text(encoding="utf-8")
    held = (DOCS / "benchmarks/held.md").read_text(encoding="utf-8")
    for number in ("18,311", "18,315", "8,129", "1,966"):
        assert number in said
        assert number in held
    latency = (DOCS / "benchmarks.md").read_text(encoding="utf-8")
    median, most = re.search(r"queues\.md#latency\) \| ([\d.]+), ([\d.]+) \|", latency).groups()
    claim = re.search(r"and ([\d.]+) ms\s+with 10,000,000|([\d.]+) ms\s+with 10,000,000", held)
    assert claim, "the claim with ten million jobs waiting"
    found = next(each for each in claim.groups() if each)
    for rounded in (f"{float(median):.1f} ms", f"{float(most):.1f} ms", f"{float(found):.1f} ms"):
        assert rounded in said
