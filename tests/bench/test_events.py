"""The scenario of published events: all of them arrive, and the figures of each case are there."""

import pytest

from forebay_bench import Options, Place
from forebay_bench.scenarios import events


@pytest.mark.slow
def test_every_delivery_arrives_in_each_case(server):
    report = events.run(Place(server.dsn(), is_own=False), Options(scale=0.005), lambda _: None)
    cases = {name: figures for name, figures in report.figures.items() if isinstance(figures, dict)}
    assert set(cases) == {"one", "none", "all_modest", "all", "one_again", "dead"}
    for name, figures in cases.items():
        assert (figures["missing"], figures["repeated"]) == (0, 0), name
        assert figures["requests"] <= figures["deliveries"]
    assert cases["none"]["deliveries"] == cases["none"]["requests"] == 0
    assert cases["all"]["deliveries"] == 5 * cases["all"]["published"]
    assert len(report.bars) == 3
    assert all(bar.value is not None for bar in report.bars)
