"""What a hint or a message advises can be followed where it is shown: commands, options and SQL
functions exist.
"""

import re
from pathlib import Path

import pytest

import forebay
from forebay.cli._main import program
from tests.support.source_texts import sql_functions, texts

SOURCES = sorted(Path(forebay.__file__).parent.rglob("*.py"))
COMMAND = re.compile(r"`forebay ([^`]+)`")
FUNCTION = re.compile(r"\bforebay\.([a-z]\w*)\(")


def sql() -> str:
    """Return the sources of the SQL functions; a sentence of a comment is one line."""
    return re.sub(r"\n *-- +", " ", sql_functions())


def advised() -> set[str]:
    """Return every command that a text of Python or SQL advises."""
    found = {
        command for path in SOURCES for text in texts(path) for command in COMMAND.findall(text)
    }
    return found | set(COMMAND.findall(sql()))


@pytest.mark.parametrize("words", sorted(advised()))
def test_each_advised_command_exists_with_its_options(words):
    """The names of its group, of itself and of each of its options."""
    first, *rest = words.split()
    command = program.get_command(None, first)
    assert command is not None
    if hasattr(command, "list_commands") and rest and not rest[0].startswith("-"):
        command = command.get_command(None, rest.pop(0))
        assert command is not None
    known = {name for option in command.params for name in (*option.opts, *option.secondary_opts)}
    assert {word for word in rest if word.startswith("-")} <= known


def test_each_advised_function_exists():
    """A text of Python names SQL functions that the schema has."""
    made = set(re.findall(r"create (?:or replace )?function forebay\.(\w+)\(", sql()))
    called = {
        (path.name, name)
        for path in SOURCES
        for text in texts(path)
        for name in FUNCTION.findall(text)
    }
    assert {(file, name) for file, name in called if name not in made} == set()
