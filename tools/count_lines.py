"""Print how large the project is, beside its bars.

Counted are lines, the longest SQL function, functions of high complexity, and parameters of
constructors.

    .venv/bin/python tools/count_lines.py [FOLDER]

FOLDER is another checkout, to compare with. Only files that git knows are counted. The tool exits
with 1 if a bar is missed.
"""

from __future__ import annotations

import ast
import io
import re
import subprocess
import sys
import tokenize
from pathlib import Path
from typing import Final

#: What a tool makes from the sources: the parts between two comments, or the rest of a page.
_MADE: Final = re.compile(
    (
        r"^<!-- (?:functions|protocol|table): .*?^<!-- end of \w+ -->$|^<!-- Below this line: "
        r"generated.*"
    ),
    re.MULTILINE | re.DOTALL,
)
#: Made from the asynchronous client by tools/async_to_sync.py.
_MADE_CLIENT: Final = "client/_sync"

_SILENT: Final = {
    tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT,
    tokenize.ENCODING, tokenize.ENDMARKER,
}  # fmt: skip
_FUNCTION: Final = re.compile(r"^create (?:or replace )?function \w+\.(\w+)", re.MULTILINE)
_TAG: Final = re.compile(r"\$\w*\$")
COMPLEXITY_MAX: Final = 20


def files(root: Path, *patterns: str) -> list[Path]:
    """Return the files of a checkout that git knows and that exist."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--", *patterns],
        cwd=root, check=True, capture_output=True, text=True,
    ).stdout  # fmt: skip
    return [root / name for name in listed.split("\0") if name and (root / name).is_file()]


def lines(paths: list[Path]) -> int:
    """Return the number of all lines."""
    return sum(path.read_text(encoding="utf-8").count("\n") for path in paths)


def python_code(text: str) -> int:
    """Return the number of lines with code: no blank lines, comments and docstrings."""
    docstrings: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            for each in node.body:
                # Also the texts below attributes, which are their documentation.
                if isinstance(each, ast.Expr) and isinstance(each.value, ast.Constant):
                    assert each.end_lineno is not None
                    docstrings |= set(range(each.lineno, each.end_lineno + 1))
    code: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in _SILENT:
            code |= set(range(token.start[0], token.end[0] + 1))
    written = {number for number, line in enumerate(text.split("\n"), 1) if line.strip()}
    return len((code & written) - docstrings)


def sql_code(text: str) -> int:
    """Return the number of lines with code: no blank lines and comments."""
    return sum(
        bool(line.strip()) and not line.lstrip().startswith("--") for line in text.split("\n")
    )


def sql_functions(text: str) -> dict[str, int]:
    """Return the number of lines of each function, from its first one to the end of its body."""
    found = {}
    for begin in _FUNCTION.finditer(text):
        opened = _TAG.search(text, begin.end())
        assert opened is not None, begin[1]
        end = text.index(opened[0], opened.end())
        found[begin[1]] = text.count("\n", begin.start(), end) + 1
    return found


def complexity(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Return the cyclomatic complexity: one, and one for each decision.

    Decisions are conditions, loops, handlers of exceptions, cases, `and` and `or`. An assertion
    decides nothing. Nested functions count by themselves, also those of a nested class.
    """
    total = 1
    waiting: list[ast.AST] = list(ast.iter_child_nodes(function))
    while waiting:
        node = waiting.pop()
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            continue
        match node:
            case ast.BoolOp():
                total += len(node.values) - 1
            case ast.comprehension():
                total += 1 + len(node.ifs)
            case (
                ast.If() | ast.IfExp() | ast.For() | ast.AsyncFor() | ast.While()
                | ast.ExceptHandler() | ast.match_case()
            ):  # fmt: skip
                total += 1
        waiting += ast.iter_child_nodes(node)
    return total


def measured(root: Path) -> list[tuple[str, int, int, str]]:
    """Return what is counted: name, value, the most that it may be, and a detail."""
    source = files(root, "src/forebay/*.py")
    trees = {path: ast.parse(path.read_text(encoding="utf-8")) for path in source}
    schema = files(root, "src/forebay/sql/schema/*.sql")
    functions = {
        name: length
        for path in schema
        for name, length in sql_functions(path.read_text(encoding="utf-8")).items()
    }
    longest = max(functions, key=lambda name: functions[name])
    difficult = {
        f"{path.relative_to(root / 'src/forebay')}:{node.name}": found
        for path, tree in trees.items()
        for node in ast.walk(tree)
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
        and (found := complexity(node)) > COMPLEXITY_MAX
    }
    parameters = {
        f"{path.name}:{made.name}": len(
            node.args.posonlyargs + node.args.args + node.args.kwonlyargs
        )
        - 1
        for path, tree in trees.items()
        if path.is_relative_to(root / "src/forebay/worker")
        for made in ast.walk(tree)
        if isinstance(made, ast.ClassDef)
        for node in made.body
        if isinstance(node, ast.FunctionDef) and node.name == "__init__"
    }  # fmt: skip
    most = max(parameters, key=lambda name: parameters[name])
    by_hand = sum(
        _MADE.sub("", path.read_text(encoding="utf-8")).count("\n")
        for path in files(root, "docs/*.md")
    )
    python = sum(
        python_code(path.read_text(encoding="utf-8"))
        for path in source
        if _MADE_CLIENT not in str(path)
    )
    sql = sum(sql_code(path.read_text(encoding="utf-8")) for path in schema)
    return [
        ("code lines, Python in src/forebay", python, 42_500, ""),
        ("code lines, SQL in src/forebay/sql/schema", sql, 18_000, ""),
        ("lines, built SQL in git", lines(files(root, "src/forebay/sql/migrations/*.sql")), 0, ""),
        ("lines, Python in bench", lines(files(root, "bench/*.py")), 9_500, ""),
        ("lines written by hand in docs", by_hand, 19_000, ""),
        ("longest SQL function, lines", functions[longest], 200, longest),
        ("functions with a complexity over 20", len(difficult), 0, ", ".join(sorted(difficult))),
        ("most parameters of a constructor in worker", parameters[most], 6, most),
    ]


def main() -> None:
    """Print the table."""
    root = Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parents[1]).resolve()
    found = measured(root)
    for what, value, bar, detail in found:
        mark = "ok  " if value <= bar else "MISS"
        print(f"{mark} {what:<45} {value:>7,} {bar:>7,}  {detail}")
    sys.exit(any(value > bar for _, value, bar, _ in found))


if __name__ == "__main__":
    main()
