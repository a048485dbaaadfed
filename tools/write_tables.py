"""Write the tables of docs/reference whose text stands in the code.

Settings, errors, SQLSTATEs, metrics, methods of the client, and attributes of classes.

A table stands between the lines ``<!-- table: NAME -->`` and ``<!-- end of table -->``. All other
text of the pages is written by hand and kept.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, Final, get_args, get_type_hints

import forebay
from forebay import errors as defined
from forebay.config import GROUPS, declared_settings
from forebay.errors import ForebayError
from forebay.watch.metrics import DATABASE_METRICS, WORKER_METRICS

REFERENCE: Final = Path(__file__).parents[1] / "docs" / "reference"
PAGES: Final = tuple(
    REFERENCE / name for name in ("errors.md", "metrics.md", "python.md", "settings.md", "sql.md")
)

_TABLE: Final = re.compile(
    r"^(<!-- table: ([^\n]+) -->\n).*?^(<!-- end of table -->\n)", re.MULTILINE | re.DOTALL
)


def main() -> None:
    """Write the tables of all pages."""
    for file in PAGES:
        file.write_text(page(file.read_text(encoding="utf-8")), encoding="utf-8")


def page(text: str) -> str:
    """Return a page with its tables made anew.

    Raises:
        KeyError: there is no such table.
    """
    return _TABLE.sub(lambda found: f"{found[1]}\n{TABLES[found[2]]()}\n{found[3]}", text)


def table(head: str, rows: Iterable[tuple[str, ...]]) -> str:
    """Return a table; an empty cell has no space."""
    names = head.split(", ")
    lines = [names, ["---"] * len(names), *rows]
    shown = ("".join(f"| {cell} " if cell else "| " for cell in line) + "|" for line in lines)
    return "\n".join(shown).replace("| --- ", "|---") + "\n"


def settings(group: str) -> str:
    """Return the settings of a group, from their declarations."""
    return table(
        "setting, default, meaning",
        (
            (
                f"`{item.name}`",
                "not set" if item.default is None else str(item.default),
                item.metadata["meaning"],
            )
            for item in declared_settings(GROUPS[group])
        ),
    )


def errors() -> str:
    """Return the classes of errors, each behind its base, from their docstrings."""
    return table(
        "error, base, SQLSTATE, when, attributes",
        (
            (
                f"`{cls.__name__}`",
                f"`{cls.__bases__[0].__name__}`",
                f"`{cls.sqlstate}`" if cls.sqlstate else "",
                meaning(cls) + (" Retryable." if cls.retryable else ""),
                ", ".join(f"`{name}`" for name in attributes(cls)),
            )
            for cls in classes(ForebayError)
        ),
    )


def attributes(cls: type[ForebayError]) -> tuple[str, ...]:
    """Return the attributes that a class adds to those of all errors."""
    return cls.fields if cls is not ForebayError else ("message", "detail", "hint")


def classes(base: type[ForebayError]) -> Iterable[type[ForebayError]]:
    """Yield a class and those that are derived from it."""
    yield base
    for each in sorted(base.__subclasses__(), key=lambda cls: cls.__module__, reverse=True):
        if each.__name__ in defined.__all__:
            yield from classes(each)


def sqlstates() -> str:
    """Return the SQLSTATEs that the functions raise, with the meaning of their errors."""
    coded = {cls.sqlstate: cls for cls in classes(ForebayError) if cls.sqlstate}
    return table(
        "SQLSTATE, meaning, in Python",
        ((f"`{code}`", meaning(cls), f"`{cls.__name__}`") for code, cls in sorted(coded.items())),
    )


def meaning(cls: type) -> str:
    """Return the first paragraph of a docstring."""
    return plain((inspect.getdoc(cls) or "").partition("\n\n")[0])


def plain(text: str) -> str:
    """Return a text of a docstring for a cell."""
    return " ".join(re.sub(r"^- ", "", text, flags=re.MULTILINE).replace("``", "`").split())


def metrics(described: Iterable[tuple[str, str, str, tuple[str, ...]]]) -> str:
    """Return metrics, from their definitions."""
    return table(
        "name, type, labels, meaning",
        (
            (
                f"`{name}`",
                sort,
                ", ".join(f"`{label}`" for label in labels) or "-",
                text.rstrip("."),
            )
            for name, sort, text, labels in described
        ),
    )


def methods(part: type) -> str:
    """Return the methods that a part of the client defines, and what they return."""
    found = [
        (name, each)
        for name, each in vars(part).items()
        if inspect.isfunction(each) and not name.startswith("_")
    ]
    rows = table(
        "method, meaning", ((called(name, each), cell(description(each))) for name, each in found)
    )
    results = dict.fromkeys(
        cls for _, each in found for cls in results_in(get_type_hints(each)["return"])
    )
    more = [
        (f"`{cls.__name__}`", ", ".join(f"`{item.name}`" for item in fields(cls)))
        for cls in results
        if cls.__name__ not in forebay.__all__
    ]
    return rows + ("\n" + table("result, attributes", more) if more else "")


def called(name: str, method: Callable[..., Any]) -> str:
    """Return how a method is called, without types of parameters."""
    signature = inspect.signature(method)
    given = [item.replace(annotation=item.empty) for item in signature.parameters.values()][1:]
    result = str(signature.return_annotation).rpartition("ops.")[2]
    shown = signature.replace(parameters=given, return_annotation=signature.empty)
    return (
        f"`{name}{shown} -> {result}`".replace("typing.", "").replace("|", "\\|").replace("'", '"')
    )


def description(method: Callable[..., Any] | property) -> str:
    """Return what a docstring says before its sections and examples."""
    return plain(re.split(r"\n\n(?=\w+:\n|>>> )", inspect.getdoc(method) or "")[0])


def cell(text: str) -> str:
    """Return a text for a cell."""
    return text.replace("|", "\\|")


def results_in(annotation: Any) -> Iterable[type]:
    """Yield the dataclasses in a type."""
    if isinstance(annotation, type) and is_dataclass(annotation):
        yield annotation
    for each in get_args(annotation):
        yield from results_in(each)


def attributes_of(cls: type) -> str:
    """Return the attributes that a class's docstring lists, its properties and its methods.

    Raises:
        ValueError: one of them has no text.
    """
    text = inspect.getdoc(cls) or ""
    listed = text.partition("Attributes:\n")[2].partition("\n\n")[0]
    rows = [
        (f"`{name}`", cell(plain(said)).rstrip("."))
        for name, said in re.findall(r"^    (\w+): (.*(?:\n {8}.*)*)", listed, re.MULTILINE)
    ]
    for base in reversed(cls.__mro__[:-1]):
        for name, each in vars(base).items():
            if name.startswith("_") or not (inspect.isfunction(each) or isinstance(each, property)):
                continue
            shown = called(name, each) if inspect.isfunction(each) else f"`{name}`"
            rows.append((shown, cell(description(each)).rstrip(".")))
    if not all(text for _, text in rows):
        raise ValueError(f"{cls.__name__}: an attribute has no text")
    return table("name, meaning", rows)


#: Classes of values, whose docstrings have all attributes.
DOCUMENTED: Final = (
    "Attempt", "AttemptEnded", "BackfillPlan", "BackfillProgress", "Call", "ChangePlan",
    "ChangeResult", "JobFilter", "JobId", "LostWorker", "NewJob", "QueueDifference", "Schedule",
    "ScheduleDifference", "SubjectResult", "SubjectStatus", "UpgradeProgress",
)  # fmt: skip

#: The client and its parts: each has a table of its methods.
CLIENT: Final = [
    cls
    for cls in forebay.Client.__mro__
    if any(inspect.isfunction(each) for name, each in vars(cls).items() if name[0] != "_")
]

TABLES: Final[dict[str, Callable[[], str]]] = {
    "errors": errors,
    "SQLSTATEs": sqlstates,
    "metrics of the database": lambda: metrics(DATABASE_METRICS),
    "metrics of a worker": lambda: metrics(WORKER_METRICS),
    **{
        f"class: {name}": lambda name=name: attributes_of(getattr(forebay, name))
        for name in DOCUMENTED
    },
    **{f"client: {cls.__name__}": lambda cls=cls: methods(cls) for cls in CLIENT},
    **{f"settings of {group}": lambda group=group: settings(group) for group in GROUPS},
}


if __name__ == "__main__":
    main()
