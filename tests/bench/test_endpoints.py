"""The scenario of endpoints: each delivery of each case is counted at the receiver."""

import pytest

from forebay.cli import run as run_command
from forebay_bench import Options, Place
from forebay_bench.scenarios import endpoints

CASES = {"all", "one", "nothing", "dead_without", "dead_parking", "dead_with"}


@pytest.mark.slow
def test_each_case_is_measured(server):
    """
    Each endpoint gets each event that it wants, once, and the backlog of the dead one waits.
    """
    place = Place(server.dsn(), is_own=False, postmaster_pid=server.pid)
    report = endpoints.run(place, Options(scale=0.01, waiting=20_000), lambda _: None)
    figures = report.figures
    assert figures["cases"].keys() == CASES
    assert (figures["endpoints"], figures["waiting"]) == (10, 200)
    for name, case in figures["cases"].items():
        each = {"all": 10, "nothing": 0}.get(name, 1)
        assert case["published"] >= 4
        assert case["deliveries"] == each * case["published"]
        assert (case["lost"], case["duplicates"]) == (0, 0)
        if each:
            assert 0 < case["p50_ms"] <= case["p99_ms"]
    assert {bar.what: bar.holds for bar in report.bars} == {
        "all: 99 % ms": None,
        "one: 99 % ms": None,
        "nothing: deliveries": True,
        "beside a dead endpoint, 99 %, against without": None,
        "lost": True,
        "twice": True,
    }


def test_the_number_that_waits_is_of_this_scenario(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    assert run_command(["bench", "one", "--waiting", "5"]) == 2
    assert "--waiting is an option of the scenario endpoints" in capsys.readouterr().err
