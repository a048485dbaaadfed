"""The page of guards says what the functions and the tests have."""

import re

import pytest

from tests.project.test_named_tests import ROOT, names_in
from tools import write_guards

ROWS = write_guards.rows(write_guards.PAGE.read_text(encoding="utf-8"))
#: What their mutants do is more than to take a line out: they add one.
ADD_ONLY = {"tests/mirror/test_status.py", "tests/worker/test_outcomes.py"}


def test_each_guard_of_the_page_stands_in_its_function(conn):
    """
    A guard that a change moved is measured again: tools/write_guards.py with the file of its test.
    """
    assert len(ROWS) > 200
    sources = {}
    for name, source in conn.execute(
        "select proname, pg_get_functiondef(oid) from pg_proc"
        " where pronamespace = 'forebay'::regnamespace and prokind = 'f'"
    ):
        sources.setdefault(re.sub(r"_\d+$", "_N", name), set()).add(
            re.sub(r"\blog_\d+", "log_N", " ".join(source.split()))
        )
    missing = [
        f"{row.test}: {row.function} has no {guard}"
        for row in ROWS
        for guard in [row.guard.strip("` ").replace("\\|", "|").removesuffix(" ...")]
        if not any(guard in source for source in sources.get(row.function, ()))
    ]
    assert not missing, "\n".join(missing)


@pytest.mark.slow
def test_each_test_of_the_page_exists():
    """
    By file and name.
    """
    named = {row.test.partition("::")[::2] for row in ROWS}
    assert [test for test in named if test[1] not in names_in(ROOT / test[0])] == []


@pytest.mark.parametrize("file", write_guards.users())
def test_each_file_with_mutants_is_on_the_page(file):
    """
    Run tools/write_guards.py with its name.
    """
    assert file in ADD_ONLY or any(row.test.startswith(f"{file}::") for row in ROWS)


def test_the_tables_are_as_the_tool_writes_them():
    """
    Sorted, each row in the chapter of its function.
    """
    text = write_guards.PAGE.read_text(encoding="utf-8")
    assert write_guards.page(text, ROWS) == text
