"""Decision records have one form, and the index lists them all."""

import re
from pathlib import Path

FOLDER = Path(__file__).parents[2] / "docs" / "decisions"
RECORDS = sorted(FOLDER.glob("[0-9]*.md"))
PARTS = ["Context", "Decision", "Alternatives", "Consequences", "Evidence"]


def test_the_index_lists_every_record_in_order():
    """
    Each record has its row, and each row its record.
    """
    index = (FOLDER / "README.md").read_text(encoding="utf-8")
    assert re.findall(r"^\| \[\d{4}\]\((\S+)\)", index, re.MULTILINE) == [r.name for r in RECORDS]
    assert [int(record.name[:4]) for record in RECORDS] == list(range(1, len(RECORDS) + 1))


def test_a_record_says_what_was_decided_why_and_what_shows_it():
    """
    Status, context, decision, alternatives, consequences and evidence, in this order.
    """
    problems = [
        f"{record.name}: {problem}" for record in RECORDS for problem in problems_of(record)
    ]
    assert not problems, "\n".join(problems)


def problems_of(record: Path) -> list[str]:
    """Return what a record lacks."""
    text = record.read_text(encoding="utf-8")
    parts = re.findall(r"^## (.+)$", text, re.MULTILINE)
    status = re.search(r"^\*\*Status\.\*\* (Accepted|Rejected|Superseded)", text, re.MULTILINE)
    found = {
        "the title does not begin with the number": not text.startswith(f"# {record.name[:4]} "),
        "no status": status is None,
        f"the parts are {parts}": parts != PARTS,
    }
    return [problem for problem, is_there in found.items() if is_there]
