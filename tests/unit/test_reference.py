import inspect
from dataclasses import fields
from pathlib import Path

from forebay import errors
from forebay.config import GROUPS

REFERENCE = Path(__file__).parents[2] / "docs" / "reference"


def table_rows(page):
    lines = (REFERENCE / page).read_text(encoding="utf-8").splitlines()
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines if line[:3] == "| `"]
    assert rows
    return rows


def test_every_error_has_its_entry_and_every_entry_its_error():
    """
    The reference names each class with its base, SQLSTATE, attributes and whether it is retryable.
    """
    documented = {
        name: (base, state, attributes, "retryable" in when)
        for name, base, state, when, attributes in table_rows("errors.md")
    }
    classes = [
        cls
        for _, cls in inspect.getmembers(errors, inspect.isclass)
        if issubclass(cls, errors.ForebayError)
    ]

    assert documented == {
        f"`{cls.__name__}`": (
            f"`{cls.__base__.__name__}`",
            f"`{cls.sqlstate}`" if cls.sqlstate else "",
            ", ".join(
                f"`{name}`"
                for name in (
                    ("message", "detail", "hint") if cls is errors.ForebayError else cls.fields
                )
            ),
            cls.retryable,
        )
        for cls in classes
    }


def test_every_setting_has_its_entry_and_every_entry_its_setting():
    """
    The reference gives each setting its default and meaning as the code has them.
    """
    assert table_rows("settings.md") == [
        [
            f"`{item.name}`",
            "not set" if item.default is None else str(item.default),
            item.metadata["meaning"],
        ]
        for cls in GROUPS.values()
        for item in fields(cls)
    ]
