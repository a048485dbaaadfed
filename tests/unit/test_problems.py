"""Problems: each advice has a command, and each command exists."""

import ast
import inspect
import re

from forebay.cli._main import program
from forebay.watch import rules

COMMAND = re.compile(r"`([^`]+)`")


def texts():
    """Return the text constants of the rules that are no docstring."""
    tree = ast.parse(inspect.getsource(rules))
    inside = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr)
              for part in node.values}  # fmt: skip
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            yield "".join(
                part.value if isinstance(part, ast.Constant) else "X" for part in node.values
            )
        elif (
            isinstance(node, ast.Constant)
            and id(node) not in inside
            and isinstance(node.value, str)
            and "\n" not in node.value
        ):
            yield node.value


def test_each_command_that_a_rule_advises_exists_and_can_be_copied():
    """It stands in backticks, from which `command` of a problem is taken."""
    advised = [command for text in texts() for command in COMMAND.findall(text)]
    ours = [command.split() for command in advised if command.startswith("forebay ")]
    assert len(ours) > 10
    for words in ours:
        found = program.get_command(None, words[1])
        assert found is not None, words
        if len(words) > 2 and hasattr(found, "list_commands") and words[2].isalpha():
            assert words[2] in found.list_commands(None), words
    bare = [
        text for text in texts()
        if re.search(r"(?<!`)\bforebay [a-z]+ [a-z]+", COMMAND.sub("", text))
    ]  # fmt: skip
    assert not bare, bare


def test_each_alert_has_an_advice_with_a_command():
    tree = ast.parse(inspect.getsource(rules))
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Alert":
            (hint,) = [part.value for part in node.keywords if part.arg == "hint"]
            if isinstance(hint, ast.Constant | ast.JoinedStr):
                assert "`" in ast.unparse(hint), ast.unparse(hint)
