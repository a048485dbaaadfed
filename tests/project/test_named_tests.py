"""The documentation names tests as evidence; they have to be there."""

import ast
import functools
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
NAMED = re.compile(r"`(tests/[\w/]+\.py)(?:::(\w+))?`")
LINK = re.compile(r"\[[^\]]*\]\(([^)#\s]*)(?:#([^)\s]+))?\)")
FENCED = re.compile(r"^ *```.*?^ *```", re.MULTILINE | re.DOTALL)


@functools.cache
def names_in(file: Path) -> set[str]:
    """Return the names of the test functions and classes of a file."""
    found = ast.walk(ast.parse(file.read_text(encoding="utf-8")))
    return {
        node.name
        for node in found
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
    }


def anchors_of(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub makes them."""
    text = FENCED.sub("", page.read_text(encoding="utf-8"))
    headings = re.findall(r"^#+ +(.+?) *$", text, re.MULTILINE)
    plain = [re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower() for heading in headings]
    return {re.sub(r"[^\w\- ]", "", heading).replace(" ", "-") for heading in plain}


@pytest.mark.parametrize("page", [pytest.param(p, id=str(p.relative_to(ROOT))) for p in PAGES])
def test_every_test_that_a_page_names_exists(page):
    """
    Evidence that was renamed or removed is noticed.
    """
    missing = [
        f"{file}::{name}" if name else file
        for file, name in NAMED.findall(page.read_text(encoding="utf-8"))
        if not (ROOT / file).is_file() or (name and name not in names_in(ROOT / file))
    ]
    assert missing == []


def test_every_guarantee_names_a_test():
    """
    No promise to users stands without evidence.
    """
    text = (ROOT / "docs" / "guarantees.md").read_text(encoding="utf-8")
    sections = re.split(r"^## ", text, flags=re.MULTILINE)[1:]
    assert len(sections) > 9
    assert [s.splitlines()[0] for s in sections if not NAMED.search(s)] == []


@pytest.mark.parametrize("page", [pytest.param(p, id=str(p.relative_to(ROOT))) for p in PAGES])
def test_every_link_inside_the_documentation_leads_somewhere(page):
    """
    Files and headings that a page links to exist.
    """
    text = FENCED.sub("", page.read_text(encoding="utf-8"))
    broken = []
    for target, anchor in LINK.findall(text):
        if "://" in target:
            continue
        file = (page.parent / target).resolve() if target else page
        if not file.exists() or (anchor and anchor not in anchors_of(file)):
            broken.append(f"{target}#{anchor}" if anchor else target)
    assert broken == []
