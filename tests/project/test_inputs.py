"""Commands read JSON, stdin and files through one door, which raises our errors."""

import ast
from pathlib import Path

import pytest

import forebay.cli

CLI = Path(forebay.cli.__file__).parent

#: What else may be read, with the reason.
OTHERS = {
    ("_main.py", "read_bytes"): "bytes, and OSError is caught",
    ("_top.py", "stdin"): "after is_terminal()",
}
READS = {"loads", "read_text", "read_bytes", "stdin"}


def reads(path):
    """Yield what a module reads by itself."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Attribute) and node.attr in READS:
            yield node.attr, node.lineno


@pytest.mark.parametrize("path", sorted(CLI.glob("*.py")), ids=lambda path: path.name)
def test_a_command_reads_through_the_door(path):
    """``_input.py`` catches what Python raises; a module that reads by itself would have to."""
    if path.name == "_input.py":
        return
    found = {(path.name, name): line for name, line in reads(path)}
    assert not found.keys() - OTHERS.keys(), "use forebay.cli._input"
