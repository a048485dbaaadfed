"""Commands of other queues are answered with ours; the shell completes ours."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from forebay.cli._hints import HINTS
from forebay.cli._main import program


@pytest.mark.parametrize(
    ("called", "instead"),
    [
        (["jobs", "redrive", "4"], "forebay dead redrive --job"),
        (["status"], "forebay queues list"),
        (["status", "--json"], "forebay queues list"),
        (["cron"], "forebay enqueue"),
        (["queues", "stats"], "forebay queues list"),
        (["dead", "retry", "1"], "forebay dead redrive"),
    ],
)
def test_a_command_of_other_queues_is_answered_with_ours(command, called, instead):
    """
    The exit code is that of a wrong call; a word that no queue has is refused as before.
    """
    answer = command(*called)
    assert answer.code == 2
    assert "is not a command" in answer.err
    assert instead in answer.err
    assert "No such command" in command("nonsense").err
    assert "No such command" in command("jobs", "nonsense").err


def test_no_hint_stands_for_a_command_that_exists():
    """
    Every hint names commands that exist, and a command that exists has none.
    """
    import typer.main

    root = typer.main.get_command(program)
    for group, hints in HINTS.items():
        commands = root if group == "forebay" else root.get_command(None, group)
        for name in hints:
            assert commands.get_command(None, name) is None, (group, name)


def test_the_shell_completes_commands():
    """
    The completion that --install-completion writes calls the program like this.
    """
    assert "--install-completion" in _run(["--help"], {})
    script = _run(
        ["--show-completion", "bash"], {"_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}
    )
    assert "_FOREBAY_COMPLETE=complete_bash" in script
    asked = {
        "_FOREBAY_COMPLETE": "complete_bash",
        "COMP_WORDS": "forebay jobs ca",
        "COMP_CWORD": "2",
    }
    assert _run([], asked).split() == ["cancel"]


def _run(arguments, variables):
    program = Path(sys.executable).with_name("forebay")
    done = subprocess.run(
        [program, *arguments],
        env={**os.environ, "COLUMNS": "120", **variables},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
