"""The documentation names tests as evidence; they have to be there."""

import ast
import functools
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
NAMED = re.compile(r"`(tests/[\w/]+\.py)((?:::\w+)*)`")
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


@functools.cache
def anchors_of(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub makes them."""
    text = FENCED.sub("", page.read_text(encoding="utf-8"))
    headings = re.findall(r"^#+ +(.+?) *$", text, re.MULTILINE)
    plain = [re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower() for heading in headings]
    return {re.sub(r"[^\w\- ]", "", heading).replace(" ", "-") for heading in plain}


@pytest.mark.slow
def test_every_test_that_a_page_names_exists():
    """
    Evidence that was renamed or removed is noticed.
    """
    missing = [
        f"{page.relative_to(ROOT)}: {file}{names}"
        for page in PAGES
        for file, names in NAMED.findall(page.read_text(encoding="utf-8"))
        if not (ROOT / file).is_file() or set(names.split("::")[1:]) - names_in(ROOT / file)
    ]
    assert not missing, "\n".join(missing)


def test_every_test_that_the_sources_name_exists():
    """
    The header of a module says which tests show it.
    """
    files = [*(ROOT / "src").rglob("*.py"), *(ROOT / "src").rglob("*.sql")]
    named = {
        (path.relative_to(ROOT).as_posix(), name)
        for path in files
        for name in re.findall(r"tests/[\w/]+\.py", path.read_text(encoding="utf-8"))
    }
    assert len(named) > 10
    assert [pair for pair in sorted(named) if not (ROOT / pair[1]).is_file()] == []


@pytest.mark.parametrize(("name", "least"), [("guarantees.md", 10), ("security.md", 9)])
def test_every_section_of_promises_names_a_test(name, least):
    """
    No promise to users stands without evidence.
    """
    text = (ROOT / "docs" / name).read_text(encoding="utf-8")
    sections = re.split(r"^## ", text, flags=re.MULTILINE)[1:]
    assert len(sections) >= least
    assert [s.splitlines()[0] for s in sections if not NAMED.search(s)] == []


@pytest.mark.parametrize(
    ("name", "section"),
    [("what-we-got-wrong.md", "Jobs that were lost"), ("security.md", "What each can do")],
)
def test_every_row_of_evidence_names_a_test(name, section):
    """
    Each defect that is told has the test that holds it down, each line of what a role can do the
    one that shows it: in the tables from a section on, on the page of security to its end.
    """
    text = (ROOT / "docs" / name).read_text(encoding="utf-8")
    text = text.partition(f"\n## {section}")[2]
    if name == "security.md":
        text = text.partition("\n## ")[0]
    rows = re.findall(r"^\| .*$(?!\n\|---)", text, re.MULTILINE)
    assert len(rows) > 9
    assert [row for row in rows if not NAMED.search(row)] == []


def test_every_page_is_in_the_navigation_of_the_site():
    """
    A page that is not in it is not found. Decision records are listed by their index.
    """
    navigation = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:")[2]
    docs = ROOT / "docs"
    pages = sorted(page.relative_to(docs).as_posix() for page in docs.rglob("*.md"))
    assert pages
    listed = set(re.findall(r"([\w/-]+\.md)$", navigation, re.MULTILINE))
    missing = [page for page in pages if page not in listed and not page.startswith("decisions/0")]
    assert not missing, missing


def test_every_link_inside_the_documentation_leads_somewhere():
    """
    Files and headings that a page links to exist.
    """
    broken = [f"{page.relative_to(ROOT)}: {link}" for page in PAGES for link in broken_links(page)]
    assert not broken, "\n".join(broken)


def broken_links(page: Path) -> list[str]:
    """Return the links of a page that lead to no file or no heading."""
    broken = []
    for target, anchor in LINK.findall(FENCED.sub("", page.read_text(encoding="utf-8"))):
        if "://" in target:
            continue
        file = (page.parent / target).resolve() if target else page
        if not file.exists() or (anchor and anchor not in anchors_of(file)):
            broken.append(f"{target}#{anchor}" if anchor else target)
    return broken


def test_every_file_with_tests_of_the_night_has_its_twins_named():
    """
    CI leaves out what is marked nightly: tests/README.md says which shorter test checks the same
    promise there.
    """
    text = (ROOT / "tests/README.md").read_text(encoding="utf-8")
    table = text.partition("| only at night |")[2].partition("\n## ")[0]
    rows = [line.split("|")[1] for line in table.splitlines()[1:] if line.startswith("|")]
    named = {name for row in rows for name in re.findall(r"`([\w/]+\.py)`", row)}
    nightly = {
        str(file.relative_to(ROOT / "tests"))
        for file in (ROOT / "tests").rglob("test_*.py")
        if "pytest.mark." + "nightly" in file.read_text(encoding="utf-8")
    }
    assert named == nightly
    twins = re.findall(r"`(\w+/test_\w+\.py)`", table)
    assert [name for name in twins if not (ROOT / "tests" / name).exists()] == []
