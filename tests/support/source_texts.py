"""Sources as texts: what a module says, and the SQL functions."""

import ast
from pathlib import Path

from forebay.sql.composer import SCHEMA, functions_of


def sql_functions() -> str:
    """Return the sources of all SQL functions."""
    return "".join(path.read_text(encoding="utf-8") for path in functions_of(SCHEMA))


def texts(path: Path) -> list[str]:
    """Return the text constants of a module; a value that is filled in is X."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    parts = {
        id(part)
        for node in ast.walk(tree)
        if isinstance(node, ast.JoinedStr)
        for part in node.values
    }
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            filled = (p.value if isinstance(p, ast.Constant) else "X" for p in node.values)
            found.append("".join(map(str, filled)))
        elif (
            isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in parts
        ):
            found.append(node.value)
    return found
