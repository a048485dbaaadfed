"""scripts/demo --seeds: the pages for users of other systems run one by one, and are shown."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tools import walk

ROOT = Path(__file__).parents[2]


def run(*pages: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    return subprocess.run(
        [sys.executable, "-m", "tools.walk", *pages],
        env=os.environ | {"PYTHONPATH": path, "PYTHONUTF8": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


@pytest.mark.slow
def test_a_page_is_walked_through_and_shown_within_80_columns():
    """
    Each statement and command of a page is shown with its answer, in an order that a person can
    follow, and what the page hides stays hidden.
    """
    shown = run("fetchq")
    assert shown.returncode == 0, shown.stdout + shown.stderr
    lines = [line.rstrip() for line in shown.stdout.splitlines()]
    assert max(map(len, lines)) <= 80
    for expected in (
        "=> select forebay.push_subject('crawl', 'a.example', '{\"url\":",
        "$ forebay subjects trace d.example",
        "Document operations",
    ):
        assert expected in lines, shown.stdout
    assert "statements and commands did what the page says" in lines[-1]


@pytest.mark.nightly
def test_all_pages_are_walked_through():
    """
    The command without a page runs them all, each on a database that has nothing else in it.
    """
    shown = run()
    assert shown.returncode == 0, shown.stdout + shown.stderr
    assert shown.stdout.count("did what the page says") == len(walk.PAGES)


def test_a_page_that_does_not_exist_is_refused_by_name():
    """
    The error lists the pages.
    """
    refused = run("uhlak")
    assert refused.returncode == 2
    assert "no page is called 'uhlak'" in refused.stderr
    assert "fetchq" in refused.stderr.splitlines()[-1]


def test_each_page_about_one_system_is_walked_through():
    """
    A new page is in the list, or among those about tools whose code runs in other tests.
    """
    assert {file.stem for file in walk.FOLDER.glob("*.md")} == {*walk.PAGES, *walk.OTHER_PAGES}


def test_sql_is_cut_where_a_line_ends_with_a_semicolon():
    """
    A semicolon inside a line, as in a text, cuts nothing.
    """
    assert walk._statements("begin;\nselect ';'\n  , 2;  \n\ncommit;\n") == [
        "begin;",
        "select ';'\n  , 2;",
        "commit;",
    ]
