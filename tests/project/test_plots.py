"""Plots that are drawn from the figures of a page."""

import re
from pathlib import Path

import pytest

from tools.draw_plots import plots

PLOTS = Path(__file__).parents[2] / "docs" / "plots"


@pytest.mark.parametrize(("name", "title", "bars"), list(plots()))
def test_a_plot_shows_the_figures_of_its_page(name, title, bars):
    """
    When a run on the page is replaced, tools/draw_plots.py draws its plot anew.
    """
    shown = re.findall(r">([^<>]+)</text>", (PLOTS / name).read_text(encoding="utf-8"))
    assert title in shown
    assert {f"{spread.median:,.0f}" for spread, _ in bars.values()} <= set(shown)
