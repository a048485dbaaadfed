"""The table of capabilities in CONTRIBUTING.md is true, and whole."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "forebay"
#: Where a name of each column is a file or a folder.
COLUMNS = {
    "SQL": PACKAGE / "sql/schema/functions",
    "`model`": PACKAGE / "model",
    "`ops`": PACKAGE / "ops",
    "client": PACKAGE / "client/_async",
    "where it runs": PACKAGE,
    "`cli`": PACKAGE / "cli",
    "`docs/design`": ROOT / "docs/design",
}


def rows() -> list[dict[str, list[str]]]:
    """Return the names in each row, by column."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    table = re.search(r"^\| capability .*?(?=\n\n)", text, re.MULTILINE | re.DOTALL)[0]
    head, _, *lines = (
        [cell.strip() for cell in line.split("|")[1:-1]] for line in table.split("\n")
    )
    return [
        {
            column: [name for name in cell.split(", ") if name]
            for column, cell in zip(head, line, strict=True)
            if column in COLUMNS
        }
        for line in lines
    ]


def exists(folder: Path, name: str) -> bool:
    """Return whether a name of the table is there, as a file or a folder."""
    places = (name, f"{name}.py", f"_{name}.py", f"{name}.md")
    return any((folder / place).exists() for place in places)


def test_every_name_is_a_file_or_a_folder():
    """
    A newcomer finds what the table names.
    """
    found = [(column, name) for row in rows() for column, names in row.items() for name in names]
    assert len(found) > 100
    assert [(c, name) for c, name in found if not exists(COLUMNS[c], name)] == []


#: Modules that several capabilities share.
SHARED = {"__init__", "base", "locks", "operation", "records"}


def test_every_operation_and_part_of_the_client_belongs_to_a_capability():
    """
    So a newcomer finds what only operators see, too.
    """
    for column in ("`ops`", "client"):
        named = {name for row in rows() for name in row[column]} | SHARED
        modules = {each.stem for each in COLUMNS[column].glob("*.py")}
        assert modules - named == set(), f"CONTRIBUTING.md, column {column}: name them in a row"


def test_every_folder_of_functions_belongs_to_a_capability():
    """
    A new folder of SQL functions gets its place in the table.
    """
    named = {name for row in rows() for name in row["SQL"]}
    assert {each.name for each in COLUMNS["SQL"].iterdir() if each.is_dir()} - named == set()
