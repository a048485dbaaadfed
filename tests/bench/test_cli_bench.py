"""``forebay bench``: what it lists, prints, draws and refuses."""

import json
import os
import signal
import subprocess
import sys

import pytest

from forebay.cli import run
from forebay_bench import SCENARIOS, Report, Table, _command
from forebay_bench._report import Bar
from tests.support.waiting import wait_for


@pytest.fixture
def command(monkeypatch, tmp_path, capsys):
    """Run the command line in an empty folder; return exit code, output and errors."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")

    def call(*arguments):
        capsys.readouterr()
        code = run([str(argument) for argument in arguments])
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return call


@pytest.fixture
def scenario(monkeypatch):
    """A scenario in place of a real one, with a bar that is kept, one that is missed and one not
    measured.
    """
    from forebay_bench.scenarios import one

    asked = []

    def pretend(place, options, progress):
        asked.append(options)
        return Report(
            {"ours_per_s": 5},
            [Table(["who", "jobs/s"], [("ours", "5")], right=["jobs/s"])],
            [
                Bar("kept", 2, at_least=1),
                Bar("missed", 2, at_most=1),
                Bar("open", None, at_least=1),
            ],
            notes=["unfair to nobody"],
            draw=lambda figure: figure.subplots().plot([1, 2]),
        )

    monkeypatch.setattr(one, "run", pretend)
    return asked


def test_without_a_scenario_they_are_listed(command):
    """
    Each with what it measures.
    """
    code, out, _ = command("bench")
    assert code == 0
    for name, summary in SCENARIOS.items():
        assert name in out
        assert summary in " ".join(out.split())


def test_people_get_a_table_the_promises_and_the_machine(command, scenario, server):
    """
    A missed promise is marked, and is no failure by itself.
    """
    code, out, _ = command("bench", "one", "--dsn", server.dsn())
    assert code == 0
    for text in (
        "jobs/s",
        "✓ kept: 2",
        "✗ missed: 2",
        "open: not measured",
        "unfair",
        "PostgreSQL",
    ):
        assert text in out


def test_programs_get_a_line_of_json_with_the_facts_of_the_run(command, scenario, server):
    """
    The figures by name, and what a figure is worthless without.
    """
    code, out, _ = command("bench", "one", "--dsn", server.dsn(), "--json")
    assert code == 0
    assert out.count("\n") == 1
    found = json.loads(out)
    assert found["scenario"] == "one"
    assert found["ours_per_s"] == 5
    assert [(bar["what"], bar["value"], bar["holds"]) for bar in found["bars"]] == [
        ("kept", 2, True),
        ("missed", 2, False),
        ("open", None, None),
    ]
    assert (found["bars"][0]["at_least"], found["bars"][1]["at_most"]) == (1, 1)
    facts = found["run"]
    assert {
        "postgresql",
        "settings",
        "machine",
        "machine_speed",
        "forebay",
        "commit",
        "command",
    } <= facts.keys()
    assert (
        facts["settings"]["fsync"] == "off"
    )  # the suite's server is not durable, and a run says so


def test_a_machine_that_changes_its_speed_is_said_to_be_unsteady(
    command, scenario, server, monkeypatch
):
    """
    A loop that took half again as long another time: whoever compares single turns must know.
    """
    from forebay_bench import _machine_speed

    found = iter([0.004, *[0.006] * 3])
    monkeypatch.setattr(_machine_speed, "_count", lambda: next(found))
    speed = _machine_speed.MachineSpeed()
    speed._seconds += found
    assert speed.facts() == {"low_ms": 4.0, "median_ms": 6.0, "high_ms": 6.0, "unsteady": True}

    monkeypatch.setattr(_machine_speed, "_count", lambda: 0.004)
    monkeypatch.setattr(_machine_speed.MachineSpeed, "facts", lambda _: speed_facts(unsteady=True))
    assert "unsteady machine" in command("bench", "one", "--dsn", server.dsn())[1]
    monkeypatch.setattr(_machine_speed.MachineSpeed, "facts", lambda _: speed_facts(unsteady=False))
    assert "unsteady machine" not in command("bench", "one", "--dsn", server.dsn())[1]


def speed_facts(*, unsteady):
    return {"low_ms": 4.0, "median_ms": 5.0, "high_ms": 6.0, "unsteady": unsteady}


def test_a_check_fails_when_a_promise_is_missed(command, scenario, server):
    """
    For scripts, which read the exit code.
    """
    code, _, _ = command("bench", "one", "--dsn", server.dsn(), "--check")
    assert code == 1


def test_options_reach_the_scenario(command, scenario, server):
    """
    As they were given; none is a name for nobody.
    """
    command(
        *("bench", "one", "--dsn", server.dsn(), "--full", "--scale", "0.5", "--rounds", "4"),
        *("--compare", "pgqueuer, classic"),
    )
    command("bench", "one", "--dsn", server.dsn(), "--compare", "none")
    given, nobody = scenario
    assert (given.full, given.scale, given.rounds) == (True, 0.5, 4)
    assert given.compare == ("pgqueuer", "classic")
    assert nobody.compare == ()


@pytest.mark.nightly
@pytest.mark.slow
def test_a_plot_is_written(command, scenario, server, tmp_path):
    """
    The same twice, byte for byte, so that an unchanged plot is an unchanged file.
    """
    pytest.importorskip("matplotlib")
    for name in ("a.svg", "b.svg"):
        code, _, _ = command("bench", "one", "--dsn", server.dsn(), "--plot", name)
        assert code == 0
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["swim"], "swim"),
        (["one", "--dsn", "x", "--pg-bin", "y"], "--pg-bin"),
        (["one", "--plot", "plot.txt"], ".svg"),
        (["one", "--plot", "nowhere/plot.svg"], "does not exist"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_runs(command, scenario, arguments, problem):
    """
    With the reason.
    """
    code, _, err = command("bench", *arguments)
    assert code == 2
    assert problem in err
    assert scenario == []


def children(pid: int) -> list[int]:
    """Return the processes that a process started and that still run."""
    listed = subprocess.run(
        ["ps", "-A", "-o", "pid=,ppid=,stat="], check=True, capture_output=True, text=True
    )
    rows = (line.split() for line in listed.stdout.splitlines())
    return [int(row[0]) for row in rows if int(row[1]) == pid and not row[2].startswith("Z")]


def runs(pid: int) -> bool:
    """Tell whether a process is there."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.nightly
@pytest.mark.slow
def test_ended_by_a_signal_it_takes_its_processes_with_it(tmp_path):
    """
    A worker or a server left behind would go on for ever, and slow down whatever is measured next.
    """
    with (tmp_path / "errors").open("w+") as errors:
        bench = subprocess.Popen(
            [sys.executable, "-m", "forebay", "bench", "latency", "--scale", "0.2"],
            stdout=errors,
            stderr=errors,
        )
        try:
            started = wait_for(
                lambda: len(found := children(bench.pid)) > 1 and found, 60, lambda: errors.read()
            )
        finally:
            bench.terminate()
        assert bench.wait(60) == 128 + signal.SIGTERM
        wait_for(lambda: not any(runs(pid) for pid in started), 20)


def test_a_wide_table_of_few_rows_is_turned_in_a_narrow_terminal(monkeypatch):
    """No number and no name of an engine is cut into pieces; a table that fits stays as it is."""
    columns = ["", *(f"measure {number}" for number in range(10))]
    rows = [("usual jobs table", *["12,345"] * 10), ("Forebay", *["1,234"] * 10)]
    wide = Table(columns, rows, title="mix: plain", right=columns[1:])
    turned = _command._fitted(wide, 80)
    assert turned.columns == ("", "usual jobs table", "Forebay")
    assert turned.rows[0] == ("measure 0", "12,345", "1,234")
    assert turned.right == ("usual jobs table", "Forebay")
    assert _command._fitted(wide, 200) is wide
