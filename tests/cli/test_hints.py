"""Commands of other queues are answered with ours; the shell completes ours."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from forebay.cli._hints import HINTS
from forebay.cli._main import program


@pytest.mark.slow
@pytest.mark.parametrize(
    ("called", "instead"),
    [
        (["jobs", "redrive", "4"], "forebay dead redrive --job"),
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
    for group, hints in HINTS.items():
        commands = program if group == "forebay" else program.get_command(None, group)
        for name in hints:
            assert commands.get_command(None, name) is None, (group, name)


@pytest.mark.slow
def test_the_shell_completes_commands():
    """
    The completion that --install-completion writes calls the program like this.
    """
    assert "--install-completion" in _run(["--help"], {})
    assert "_FOREBAY_COMPLETE=bash_source" in _run(["--show-completion"], {"SHELL": "/bin/bash"})
    assert "_FOREBAY_COMPLETE=bash_complete" in _run([], {"_FOREBAY_COMPLETE": "bash_source"})
    asked = {
        "_FOREBAY_COMPLETE": "bash_complete",
        "COMP_WORDS": "forebay jobs ca",
        "COMP_CWORD": "2",
    }
    assert _run([], asked).split() == ["plain,cancel"]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_completion_is_installed_once(shell, tmp_path):
    """
    A line is added to what the shell reads; the second call adds none.
    """
    where = {"HOME": str(tmp_path), "SHELL": f"/usr/bin/{shell}"}
    for _ in range(2):
        assert "completes forebay" in _run(["--install-completion"], where)
    (file,) = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert file.read_text().count(f"{shell}_source") == 1


def test_a_misspelt_command_is_answered_with_a_similar_one(command):
    """
    Also in a group; an option that does not exist, too.
    """
    assert "Did you mean 'list'?" in command("jobs", "lst").err
    assert "--limit" in command("jobs", "list", "--limt", "3").err


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
