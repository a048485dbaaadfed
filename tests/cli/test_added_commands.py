"""Commands that other distributions add, and those that are not installed."""

from importlib.metadata import EntryPoint

import click
import pytest

from forebay.cli import _added


@pytest.fixture
def installed(monkeypatch):
    """Entry points in place of those of the environment."""
    found = []
    monkeypatch.setattr(
        "importlib.metadata.entry_points",
        lambda *, group: [e for e in found if e.group == group],
    )

    def add(name, value):
        found.append(EntryPoint(name, value, _added.GROUP))

    return add


def greet(name: str, *, loud: bool = False) -> None:
    """Greet a person."""
    print(name.upper() if loud else name)


several = click.Group(help="Count things.")
several.command("up")(lambda: print("one, two"))
several.command("down")(lambda: print("two, one"))


@pytest.fixture(autouse=True)
def importable(monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "added_commands", sys.modules[__name__])


@pytest.mark.slow
def test_a_function_becomes_a_command(command, installed):
    """
    With its arguments, its options and its place in the help.
    """
    installed("greet", "added_commands:greet")
    assert command("greet", "Ann", "--loud").out == "ANN\n"
    assert "Greet a person" in command("--help").out
    assert "--loud" in command("greet", "-h").out


def test_several_commands_become_a_group(command, installed):
    """
    As those of ours are.
    """
    installed("count", "added_commands:several")
    assert command("count", "down").out == "two, one\n"
    assert "Count things" in command("--help").out


def test_a_command_of_ours_is_not_replaced(command, installed):
    """
    A package that is only installed must not change what an operator's commands do.
    """
    installed("version", "added_commands:greet")
    assert command("version").out[0].isdigit()


def test_a_broken_one_says_so_and_stops_no_other(command, installed):
    """
    The help is printed; the command itself names what could not be loaded.
    """
    installed("greet", "added_commands:missing")
    assert "cannot be loaded" in command("--help").out
    answer = command("greet", "Ann", "--loud")
    assert answer.code == 2
    assert "greet cannot be loaded from added_commands:missing" in answer.err
    assert command("version").code == 0


def test_others_are_not_loaded_for_a_command_of_ours(command, installed):
    """
    A command that many scripts call must not become slower by what else is installed.
    """
    import sys

    installed("slow", "tests.cli.added_module_that_is_not_there:command")
    assert command("version").code == 0
    assert "tests.cli.added_module_that_is_not_there" not in sys.modules


def test_without_the_benchmarks_it_is_said_how_to_install_them(command, installed):
    """
    Whatever arguments follow: who types it has read about it.
    """
    answer = command("bench", "held", "--compare", "classic")
    assert answer.code == 2
    assert "bench is not installed" in answer.err
    assert "python -m pip install forebay-bench" in answer.err
    assert "pip install -e . -e ./bench" in answer.err
    assert "forebay-bench" in command("--help").out


def test_an_unknown_command_is_refused(command, installed):
    """
    With the exit code of wrong usage.
    """
    assert command("nonsense").code == 2
