"""Sample data: modules of the standard library as pages, and their docstrings as annotations."""

import ast
import sysconfig
import tokenize
from collections.abc import Iterator
from pathlib import Path

from annotations.store import Draft, Page

USER = "stdlib"

#: Modules that people know.
_FOLDERS = (
    *("asyncio", "collections", "concurrent/futures", "email", "html", "http", "importlib"),
    *("json", "logging", "multiprocessing", "sqlite3", "tomllib", "unittest", "urllib", "wsgiref",
        "zoneinfo", ""),
)  # fmt: skip

_KINDS: dict[type[ast.AST], str] = {
    ast.Module: "module",
    ast.ClassDef: "class",
    ast.FunctionDef: "function",
    ast.AsyncFunctionDef: "coroutine",
}

_BYTES_MAX = 80_000


def modules(most: int = 1000) -> Iterator[Page]:
    """Yield modules with their docstrings, at most the given number."""
    root = Path(sysconfig.get_path("stdlib"))
    paths = [path for folder in _FOLDERS for path in sorted((root / folder).glob("*.py"))]
    for path in paths:
        if most == 0:
            return
        if path.name.startswith("_") and path.name != "__init__.py":
            continue
        if path.stat().st_size > _BYTES_MAX or not (page := _page(root, path)).drafts:
            continue
        most -= 1
        yield page


def _page(root: Path, path: Path) -> Page:
    name = ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__")
    with tokenize.open(path) as file:
        text = file.read()
    package, dot, _ = name.partition(".")
    return Page(name, text, list(_docstrings(text, package if dot else "top level")))


def _docstrings(text: str, group: str) -> Iterator[Draft]:
    for node in ast.walk(ast.parse(text)):
        kind = _KINDS.get(type(node))
        if kind is not None and isinstance(
            node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
        ):
            said = ast.get_docstring(node)
            if said and "\0" not in said:
                line = 1 if isinstance(node, ast.Module) else node.lineno
                yield Draft(line, said[:20_000], USER, group, ["docstring", kind])
