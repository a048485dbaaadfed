import pytest

from tools import write_tables


@pytest.mark.parametrize("file", write_tables.PAGES, ids=lambda file: file.name)
def test_the_tables_of_the_reference_are_what_the_code_declares(file):
    """
    Settings, errors, SQLSTATEs and metrics are written once, in the code. If this fails, run
    tools/write_tables.py.
    """
    text = file.read_text(encoding="utf-8")
    assert write_tables.page(text) == text


def test_each_table_has_its_place_in_the_reference():
    """
    A new group of settings is not forgotten.
    """
    pages = "".join(file.read_text(encoding="utf-8") for file in write_tables.PAGES)
    assert [name for name in write_tables.TABLES if f"<!-- table: {name} -->\n" not in pages] == []
