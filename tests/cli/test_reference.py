"""The reference of commands is what the program is."""

import pytest

from forebay.demo._ledger import COUNTS
from forebay.doctor import CHECKS
from tools.write_cli_reference import TARGET, page


def table_rows(heading):
    text = TARGET.read_text(encoding="utf-8").partition(f"## {heading}\n")[2].partition("\n## ")[0]
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines()]
    return {row[0].strip("`"): row[1] for row in rows if row and row[0].startswith("`")}


@pytest.mark.slow
def test_every_command_and_option_has_its_entry_and_the_reverse():
    """
    The lower part of the page is generated; run tools/write_cli_reference.py after a change.
    """
    text = TARGET.read_text(encoding="utf-8")
    assert page(text) == text


def test_every_check_of_the_doctor_has_its_entry():
    """
    In the order in which they are made.
    """
    assert list(table_rows("What the doctor checks")) == [
        "driver",
        "connection",
        *(c.name for c in CHECKS),
        "space",
    ]


def test_the_statements_to_repeat_the_demo_are_those_it_uses():
    """
    What a reader types counts exactly what the demo counted.
    """
    rows = table_rows("Check the demo's numbers")
    assert rows == {name: f"`{' '.join(text.split())}`" for name, text in COUNTS.items()}
