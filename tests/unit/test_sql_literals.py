"""What a literal of a SQL function means does not depend on the session that calls it."""

import re

import pytest

from forebay.sql.composer import SCHEMA

_LITERAL = re.compile(r"(E?)'((?:[^']|'')*)'")


def read_in_two_ways(line: str) -> list[str]:
    """Return the literals that standard_conforming_strings reads in two ways."""
    if line.lstrip().startswith("--"):
        return []
    return [m[0] for m in _LITERAL.finditer(line) if "\\" in m[2] and m[1] != "E"]


def test_a_backslash_stands_in_escape_literals_only():
    """
    With standard_conforming_strings off, a plain literal loses its backslashes: a token was
    refused, an address could not be checked, and a redrive forgot its subject.
    """
    found = [
        f"{path.relative_to(SCHEMA)}:{number}: {literal}"
        for path in sorted(SCHEMA.rglob("*.sql"))
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        for literal in read_in_two_ways(line)
    ]
    assert found == []


@pytest.mark.parametrize(
    ("line", "count"),
    [(r"x ~ '^\d'", 1), (r"x ~ E'^\\d'", 0), (r"-- '\d'", 0), (r"a = 'it''s' and b ~ '\s'", 1)],
)
def test_the_check_sees_them(line, count):
    assert len(read_in_two_ways(line)) == count
