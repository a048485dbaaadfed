"""The reference of Python names and the names themselves are the same."""

import dataclasses
import importlib
import inspect
import re
from enum import EnumMeta
from pathlib import Path

import pytest

import forebay
import forebay.mirror
import forebay.sinks
import forebay.testing
import forebay.tracing
import forebay.watch.metrics

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "python.md"
SECTIONS = {
    section.partition("\n")[0].strip(): section
    for section in re.split(r"^## ", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]
}
CLASSES = [
    name
    for name in forebay.__all__
    # The tables of the client are made from its methods.
    if inspect.isclass(getattr(forebay, name))
    # Those two contexts are another one at run time.
    and name not in ("Client", "AsyncClient", "AsyncContext", "PlainContext")
]


def documented(section: str) -> set[str]:
    """Return the names in the first column of the first table of a section."""
    before_subsections = SECTIONS[section].partition("\n### ")[0]
    rows = re.findall(r"^\| (`[^|]*) \|", before_subsections, re.MULTILINE)
    return {name for row in rows for name in re.findall(r"`(\w+)[^`]*`", row)}


def public(cls: type) -> set[str]:
    """Return the public attributes of a class, those of its instances included."""
    if isinstance(cls, EnumMeta):
        return set(cls.__members__)
    inherited = {name for base in (Exception, int, str, object) for name in dir(base)}
    names = {name for name in dir(cls) if not name.startswith("_")} - inherited
    if dataclasses.is_dataclass(cls):
        names |= {item.name for item in dataclasses.fields(cls)}
    annotated = {name for base in cls.__mro__ for name in getattr(base, "__annotations__", {})}
    return names | {name for name in annotated if not name.startswith("_")}


def described_attributes(cls: type) -> set[str]:
    """Return the attributes that a class's docstring lists."""
    text = inspect.getdoc(cls) or ""
    listed = text.partition("Attributes:\n")[2].partition("\n\n")[0]
    return set(re.findall(r"^ {4}(\w+):", listed, re.MULTILINE))


def test_every_public_name_has_its_entry_and_every_entry_its_name():
    """
    The reference has a section for each name of the package, and no other but those of its other
    modules.
    """
    modules = {
        "forebay.mirror", "forebay.sinks", "forebay.testing", "forebay.django",
        "forebay.watch.metrics", "forebay.tracing", "forebay.tick", "forebay.progress",
    }  # fmt: skip
    assert set(SECTIONS) == {*forebay.__all__, *modules}


def test_every_attribute_has_its_row_and_every_row_its_attribute():
    """
    Methods and attributes in the reference are those of the class.
    """
    problems = []
    for name in CLASSES:
        cls, rows = getattr(forebay, name), documented(name)
        problems += [f"{name}.{each} has no row" for each in public(cls) - rows]
        unknown = rows - public(cls) - described_attributes(cls)
        problems += [f"{name}.{each} has a row and does not exist" for each in unknown]
    assert not problems, "\n".join(problems)


def test_both_clients_have_the_same_methods():
    """
    One section is enough for both.
    """
    assert public(forebay.AsyncClient) == public(forebay.Client)


def test_every_function_for_tests_has_its_row_and_every_row_its_function():
    """
    The names of forebay.testing, both ways.
    """
    assert documented("forebay.testing") == set(forebay.testing.__all__)


def test_every_name_for_synchronisations_has_its_row_and_every_row_its_name():
    """
    The names of forebay.mirror, both ways.
    """
    assert documented("forebay.mirror") == set(forebay.mirror.__all__)


def test_every_name_for_sinks_has_its_row_and_every_row_its_name():
    """
    The names of forebay.sinks, both ways.
    """
    assert documented("forebay.sinks") == set(forebay.sinks.__all__)


def test_every_name_for_metrics_and_traces_has_its_row_and_every_row_its_name():
    """
    The names of forebay.watch.metrics and forebay.tracing, both ways.
    """
    assert documented("forebay.watch.metrics") == set(forebay.watch.metrics.__all__)
    assert documented("forebay.tracing") == set(forebay.tracing.__all__)


def test_every_name_for_django_has_its_row():
    """
    The names of forebay.django, both ways.
    """
    pytest.importorskip("django")
    assert documented("forebay.django") == set(importlib.import_module("forebay.django").__all__)
