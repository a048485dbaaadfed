"""Write the tables of docs/guards.md: which test notices that a guard of the SQL is missing.

    .venv/bin/python tools/write_guards.py [FILE ...]

Each test that takes a guard out (``tests/support/mutant.py``) is run, and what it took out is
recorded when it passes, which it does only if it saw the promise broken. With files of tests only
these are run, and the rows of the others stay.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).parents[1]
PAGE: Final = ROOT / "docs" / "guards.md"
FUNCTIONS: Final = ROOT / "src/forebay/sql/schema/functions"
#: The chapters of the page, and the folders of functions that each is about; the last has others.
CHAPTERS: Final = {
    "Claims and leases": ("claim", "lease", "consumer"),
    "Settlements": ("settle",),
    "Keys and limits": ("keys", "limits"),
    "Replays and the archive": ("archive",),
    "Other parts": (),
}
_HEAD: Final = "| function | guard | without it | test | seconds |\n|---|---|---|---|--:|\n"
_ROW: Final = re.compile(
    r"^\| `(\w+)` \| (`` .+? ``) \| (`` .+? ``|nothing) "
    r"\| `(tests/[^`]+)`(?:, (.+?))? \| ([\d.]+) \|$",
    re.MULTILINE,
)
_TABLE: Final = re.compile(
    r"^(## ([^\n]+)\n\n<!-- table: guards -->\n).*?^(<!-- end of table -->\n)",
    re.MULTILINE | re.DOTALL,
)
_SHOWN: Final = 100
#: In what only slows a function down, to test a race.
_BRAKE: Final = re.compile(r"pg_advisory|lock_timeout")


class Guard(NamedTuple):
    """One row."""

    function: str
    #: As Markdown; a long one ends with three dots.
    guard: str
    instead: str
    test: str
    #: The parameters of the test.
    case: str
    seconds: str

    def line(self) -> str:
        """Return the row of the table."""
        case = f", {self.case}" if self.case else ""
        cells = (f"`{self.function}`", self.guard, self.instead, f"`{self.test}`{case}")
        return f"| {' | '.join(cells)} | {self.seconds} |\n"


def main(files: list[str]) -> None:
    """Run the tests and write the page."""
    wanted = files or users()
    with tempfile.TemporaryDirectory() as folder:
        record = Path(folder) / "guards"
        record.touch()
        subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-m", "not nightly", *wanted],
            cwd=ROOT, check=True, env=os.environ | {"FOREBAY_TESTS_GUARDS": str(record)},
        )  # fmt: skip
        found = recorded(record.read_text(encoding="utf-8").splitlines())
    text = PAGE.read_text(encoding="utf-8")
    kept = [row for row in rows(text) if row.test.partition("::")[0] not in wanted]
    PAGE.write_text(page(text, [*kept, *found]), encoding="utf-8")


def users() -> list[str]:
    """Return the files of tests that take guards out, but those of whole systems."""
    return [
        path.relative_to(ROOT).as_posix()
        for path in sorted((ROOT / "tests").rglob("test_*.py"))
        if "acceptance" not in path.parts
        and re.search(r"\bbreak_(?:function|shortcut)\(", path.read_text(encoding="utf-8"))
    ]


def chapters() -> dict[str, str]:
    """Return the chapter of each function."""
    made = re.compile(r"^create (?:or replace )?function forebay\.(\w+)", re.MULTILINE)
    return {
        name: chapter
        for chapter, folders in CHAPTERS.items()
        for folder in folders
        for path in (FUNCTIONS / folder).rglob("*.sql")
        for name in made.findall(path.read_text(encoding="utf-8"))
    }


def recorded(lines: Iterable[str]) -> list[Guard]:
    """Return the rows of a record of ``tests/support/fix_guards.py``."""
    found = {}
    for line in lines:
        each = json.loads(line)
        old, new = " ".join(each["guard"].split()), " ".join(each["instead"].split())
        # A brake and another number are no mutants.
        if old in new or not re.search(r"[a-z]{3}", old) or re.search(_BRAKE, new):
            continue
        test, _, case = each["test"].partition("[")
        row = Guard(
            re.sub(r"_\d+$", "_N", each["function"]), shown(old), shown(new) if new else "nothing",
            test, case.removesuffix("]"), f"{each['seconds']:.1f}",
        )  # fmt: skip
        # Cases of one guard are one row; a name of a case is kept only if it is a sentence.
        if "-" in row.case or " " not in row.case:
            row = row._replace(case="")
        found.setdefault(row[:4], row)
    return list(found.values())


def shown(sql: str) -> str:
    """Return code as a cell shows it."""
    sql = re.sub(r"\blog_\d+", "log_N", sql)
    cut = sql if len(sql) <= _SHOWN else f"{sql[:_SHOWN].rstrip()} ..."
    return f"`` {cut} ``".replace("|", "\\|")


def rows(text: str) -> list[Guard]:
    """Return the rows of the page."""
    return [Guard(*(cell or "" for cell in found)) for found in _ROW.findall(text)]


def page(text: str, found: Iterable[Guard]) -> str:
    """Return the page with these rows, each in its chapter."""
    generated = ("_take_N", "_take_lanes_N", "_read_keyed_N")
    chapter_of = chapters() | dict.fromkeys(generated, "Claims and leases")
    made = dict.fromkeys(CHAPTERS, "")
    for row in sorted(found):
        made[chapter_of.get(row.function, "Other parts")] += row.line()
    return _TABLE.sub(lambda part: f"{part[1]}\n{_HEAD}{made[part[2]]}\n{part[3]}", text)


if __name__ == "__main__":
    main(sys.argv[1:])
