"""Statements of the library mean the same, whatever schemas the caller's search_path names first.

A caller's connection keeps the settings of its role. An operator that stands there alone is looked
for in the schemas of its search_path, and a better match than the one of the catalog may be in any
of them. So statements name the schema of their operators, or leave the work to a SQL function.
"""

import ast
import re
from pathlib import Path

import forebay

SOURCE = Path(forebay.__file__).parent

#: What runs on connections of callers, and on those with the search_path of their role.
_OF_CALLERS = ("client", "ops", "watch", "db")

#: These run on sessions of services, whose search_path is fixed: ``forebay.db.server_settings``.
_OF_SERVICES = {
    "ops/bundle.py": "doctor",
    "ops/locks.py": "workers and the doctor",
}

_STATEMENT = re.compile(r"\b(select|from|where|join)\b.*\b(forebay\.|pg_|current_)", re.DOTALL)
#: What is no operator: those with their schema, parameters by name, casts, columns, numbers, texts.
_OTHER = re.compile(
    r"operator\(pg_catalog\.[^)\s]+\)|=>|::|%\(\w+\)s|'(?:[^']|'')*'|\(\*\)|\w\.\*"
    r"|(?:select|unlisten) \*|--[^\n]*|(?<=[,)] )-1"
)
_BARE = re.compile(
    r"[-+*/<>=~!@#%^&|?]+|\b(?:in|using)(?= *\()|\b(?:like|ilike|between|nullif)\b"
    r"|\bis (?:not )?distinct from\b"
)


def statements(path: Path):
    """The SQL in a module: texts, without docstrings; what is put into them is a name."""
    tree = ast.parse(path.read_text())
    documented = {
        id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)
    }  # fmt: skip
    inside = {
        id(part)
        for node in ast.walk(tree)
        if isinstance(node, ast.JoinedStr)
        for part in node.values
    }
    for node in ast.walk(tree):
        if id(node) in documented or id(node) in inside:
            continue
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.lineno, node.value
        elif isinstance(node, ast.JoinedStr):
            parts = (
                part.value if isinstance(part, ast.Constant) else " x " for part in node.values
            )
            yield node.lineno, "".join(parts)


def bare(text: str) -> list[str]:
    """The operators of a statement that do not name their schema."""
    return _BARE.findall(_OTHER.sub(" ", text)) if _STATEMENT.search(text) else []


def test_statements_name_the_schema_of_their_operators():
    """
    Those of the client and its operations, which run on any connection.
    """
    found = [
        f"{path.relative_to(SOURCE)}:{line}: {', '.join(operators)}"
        for folder in _OF_CALLERS
        for path in sorted((SOURCE / folder).rglob("*.py"))
        if str(path.relative_to(SOURCE)) not in _OF_SERVICES
        for line, text in statements(path)
        if (operators := bare(text))
    ]
    assert found == []


def test_a_bare_operator_is_found():
    """Also one that has no sign."""
    assert bare("select 1 from forebay.lane l where l.lane = 2") == ["="]
    assert bare("select f.x || '=' from forebay.flow(%(a)s, b => 1) f") == ["||"]
    assert bare("select 1 from forebay.lane l where l.lane in (1, 2)") == ["in"]
    assert bare("select l.lane operator(pg_catalog.=) -1 from forebay.lane l") == []
