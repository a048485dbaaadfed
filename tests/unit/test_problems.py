"""Problems: each advice has a command that can be copied."""

import ast
import inspect
import re
from pathlib import Path

from forebay.watch import rules
from tests.support.source_texts import texts

COMMAND = re.compile(r"`([^`]+)`")


def advice() -> list[str]:
    """Return the texts of the rules that are no docstring."""
    return [text for text in texts(Path(rules.__file__)) if "\n" not in text]


def test_each_command_that_a_rule_advises_can_be_copied():
    """It stands in backticks, from which `command` of a problem is taken."""
    advised = [command for text in advice() for command in COMMAND.findall(text)]
    ours = [command.split() for command in advised if command.startswith("forebay ")]
    assert len(ours) > 10  # Whether they exist, tests/unit/test_advice.py looks at.
    bare = [
        text for text in advice()
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
