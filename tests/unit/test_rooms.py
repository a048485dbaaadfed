"""The convention of file names: what a leading underscore says about who imports a module."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = [ROOT / "src" / "forebay", ROOT / "bench" / "src" / "forebay_bench"]


def name_of(path, package):
    parts = path.relative_to(package.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {name_of(path, package): path for package in PACKAGES for path in package.rglob("*.py")}


def imports_of(path):
    """Yield the modules of ours that a file imports, wherever in it."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                yield inner if inner in MODULES else node.module


def trespasses(imports):
    """Yield which module imports a private one of another folder."""
    for module, imported in imports:
        parts = imported.split(".")
        for place, part in enumerate(parts):
            folder = ".".join(parts[:place])
            if part.startswith("_") and not f"{module}.".startswith(f"{folder}."):
                yield f"{module} imports {imported}"


def test_a_module_with_an_underscore_is_imported_inside_its_folder_only():
    """
    So its name alone says that a change of it is seen by its neighbours and by no other package.
    """
    imports = [
        (name, each)
        for name, path in MODULES.items()
        for each in imports_of(path)
        if each.startswith("forebay")
    ]
    assert len(imports) > 500
    assert not list(trespasses(imports))


@pytest.mark.parametrize(
    ("module", "imported", "allowed"),
    [
        ("forebay.worker._worker", "forebay.worker._heartbeat", True),
        ("forebay.worker", "forebay.worker._worker", True),
        ("forebay.app._app", "forebay.worker._worker", False),
        ("forebay_bench.scenarios.one", "forebay_bench._report", True),
        ("forebay.django.management.commands.forebay", "forebay.django._app", True),
        ("forebay.workers", "forebay.worker._heartbeat", False),
    ],
)
def test_the_check_sees_a_foreign_import(module, imported, allowed):
    """
    Of a neighbour, of a folder below, and of another package.
    """
    assert (list(trespasses([(module, imported)])) == []) is allowed
