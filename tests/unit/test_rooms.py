"""The modules: what a leading underscore says about who imports them, their size, and how
branched their functions are.
"""

import ast
from pathlib import Path

import pytest

from tools.count_lines import COMPLEXITY_MAX, complexity

ROOT = Path(__file__).parents[2]
PACKAGES = [ROOT / "src" / "forebay", ROOT / "bench" / "src" / "forebay_bench"]


def name_of(path, package):
    parts = path.relative_to(package.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULE_LINES_MAX = 600
CLASS_LINES_MAX = 400
CONSTRUCTOR_PARAMETERS_MAX = 6


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
        ("forebay.worker.claim.claimer", "forebay.worker.claim._wanted", True),
        ("forebay.worker.claim", "forebay.worker.claim._wanted", True),
        ("forebay.worker.process.worker", "forebay.worker.claim._wanted", False),
        ("forebay_bench.scenarios.one", "forebay_bench._report", True),
        ("forebay.django.management.commands.forebay", "forebay.django._app", True),
        ("forebay.worker.claims", "forebay.worker.claim._wanted", False),
    ],
)
def test_the_check_sees_a_foreign_import(module, imported, allowed):
    """
    Of a neighbour, of a folder below, and of another package.
    """
    assert (list(trespasses([(module, imported)])) == []) is allowed


def too_long(name, text):
    """Yield a module, and the classes in it, that have too many lines."""
    lines = len(text.splitlines())
    if lines > MODULE_LINES_MAX:
        yield f"{name} has {lines} lines"
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ClassDef):
            first = min(each.lineno for each in [node, *node.decorator_list])
            lines = node.end_lineno - first + 1
            if lines > CLASS_LINES_MAX:
                yield f"class {name}.{node.name} has {lines} lines"


def test_modules_and_classes_are_short():
    """
    A module has at most 600 lines and a class at most 400, in both distributions.
    """
    found = [
        problem
        for name, path in MODULES.items()
        for problem in too_long(name, path.read_text(encoding="utf-8"))
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    ("text", "problems"),
    [
        ("x = 1\n" * 600, []),
        ("x = 1\n" * 601, ["m has 601 lines"]),
        ("class C:\n" + "    x = 1\n" * 399, []),
        ("class C:\n" + "    x = 1\n" * 400, ["class m.C has 401 lines"]),
        ("@d\nclass C:\n" + "    x = 1\n" * 399, ["class m.C has 401 lines"]),
        ("class B:\n    class C:\n" + "        x = 1\n" * 400, ["B has 402", "C has 401"]),
    ],
)
def test_the_check_sees_what_is_too_long(text, problems):
    """
    One line more than allowed, of a module, a class, a decorated and an inner class.
    """
    found = list(too_long("m", text))
    assert len(found) == len(problems)
    assert all(part in each for part, each in zip(problems, found, strict=True))


FUNCTIONS = ast.FunctionDef | ast.AsyncFunctionDef


def too_branched(name, text):
    """Yield the functions of a module that branch too often."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, FUNCTIONS) and (found := complexity(node)) > COMPLEXITY_MAX:
            yield f"{name}.{node.name} has {found} branches"


def test_functions_are_plain():
    """
    A function branches at most twenty times, as tools/count_lines.py counts it.
    """
    found = [
        problem
        for name, path in MODULES.items()
        for problem in too_branched(name, path.read_text(encoding="utf-8"))
    ]
    assert not found, "\n".join(found)


def too_many_parameters(name, text):
    """Yield the classes of a module whose constructor has too many parameters."""
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.ClassDef):
            continue
        for each in node.body:
            if isinstance(each, FUNCTIONS) and each.name == "__init__":
                given = [*each.args.posonlyargs, *each.args.args, *each.args.kwonlyargs]
                if len(given) - 1 > CONSTRUCTOR_PARAMETERS_MAX:
                    yield f"{name}.{node.name} has {len(given) - 1} parameters"


def test_the_parts_of_a_worker_get_few_things():
    """
    A constructor in `forebay.worker` has at most six parameters: what travels together is one
    value.
    """
    found = [
        problem
        for name, path in MODULES.items()
        if name.startswith("forebay.worker.")
        for problem in too_many_parameters(name, path.read_text(encoding="utf-8"))
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("def f(): pass", 1),
        ("def f():\n    if a and b or c: pass\n    elif d: pass", 5),
        ("async def f():\n    async for a in b:\n        while c: pass", 3),
        ("def f():\n    try: pass\n    except A: pass\n    except B: pass", 3),
        ("def f(): return [a for a in b if c if d] + (e if g else h)", 5),
        ("def f():\n    match a:\n        case 1: pass\n        case 2: pass", 3),
        ("def f():\n    assert a\n    assert b and c", 2),
        ("def f():\n    def g():\n        if a: pass", 1),
        ("def f():\n    class C:\n        def g(self):\n            if a: pass", 1),
    ],
)
def test_the_check_counts_every_branch(text, found):
    """
    Of each sort; those of an inner function belong to that one.
    """
    assert complexity(ast.parse(text).body[0]) == found


def test_the_check_counts_every_parameter():
    """
    By position and by name; `self` is none.
    """
    text = "class C:\n    def __init__(self, a, b, /, c, d, *, e, f{}): pass"
    assert not list(too_many_parameters("m", text.format("")))
    assert list(too_many_parameters("m", text.format(", g"))) == ["m.C has 7 parameters"]
