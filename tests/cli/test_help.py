"""The help says what there is, once."""

import re

import click
import pytest

from forebay.cli._main import program
from forebay.cli.exit import ExitCode

CONTEXT = click.Context(program, info_name="forebay")
GROUPS = [
    name
    for name in program.list_commands(CONTEXT)
    if isinstance(program.get_command(CONTEXT, name), click.Group)
]


@pytest.mark.parametrize("arguments", [[], *([name] for name in GROUPS)])
def test_a_group_without_a_command_shows_its_help_once(command, arguments):
    """Who types only the name sees the commands, and an exit code that says it did nothing."""
    answer = command(*arguments)
    assert answer.code == ExitCode.USAGE
    assert (answer.out + answer.err).count("Usage: ") == 1


def test_the_sentence_of_a_group_names_its_commands():
    """All of them, or it ends with "and more"; none that it does not have."""
    wrong = []
    for _, name, sentence in program.listed(CONTEXT):
        group = program.get_command(CONTEXT, name)
        named = re.search(r": ([a-z, -]+?)( and more)?\.$", sentence)
        if not isinstance(group, click.Group) or named is None or name in ("import", "events"):
            continue
        said, has = set(named[1].split(", ")), set(group.list_commands(CONTEXT))
        if said - has or (has - said and not named[2]):
            wrong.append((name, sorted(said ^ has)))
    assert wrong == []
