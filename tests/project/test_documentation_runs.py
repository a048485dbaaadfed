"""Every code block of the README and the documentation, and every example, runs."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from psycopg.conninfo import conninfo_to_dict

from tests.project.code_blocks import BlockError, Session, read_blocks

ROOT = Path(__file__).parents[2]
FILES = [
    ROOT / "README.md",
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "examples").rglob("*.md")),
]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))  # applications in folders: tests/examples
#: Pages that start many workers, or wait as their reader would.
LONG = {
    "docs/howto/backfill.md",
    "docs/howto/dead-letters.md",
    "docs/howto/django.md",
    "docs/howto/guard-against-long-transactions.md",
    "docs/howto/limits.md",
    "docs/howto/logging-and-sentry.md",
    "docs/howto/reconcile.md",
    "docs/howto/restore-a-dump.md",
    "docs/howto/run-workers.md",
    "docs/howto/several-groups.md",
    "docs/howto/testing.md",
    "docs/tutorial/first-job.md",
}
NOT_RUN = [block for file in FILES for block in read_blocks(file) if block.directive == "not run"]


def a_page(file: Path):
    name = str(file.relative_to(ROOT))
    return pytest.param(file, id=name, marks=[pytest.mark.slow] if name in LONG else [])


@pytest.fixture
def environment(database, tmp_path) -> dict[str, str]:
    """What a reader's terminal would have: the database, the programs, a folder of their own."""
    parts = conninfo_to_dict(database)
    kept = {name: os.environ[name] for name in ("HOME", "LANG", "TMPDIR") if name in os.environ}
    return {
        **kept,
        "FOREBAY_DATABASE_URL": database,
        "DATABASE_URL": database,
        "PGHOST": parts["host"],
        "PGPORT": str(parts["port"]),
        "PGUSER": parts["user"],
        "PGDATABASE": parts["dbname"],
        "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin",
        "PYTHONPATH": str(tmp_path),
        "COLUMNS": "120",
        "NO_COLOR": "1",
    }


@pytest.mark.parametrize("file", [a_page(file) for file in FILES if read_blocks(file)])
def test_the_blocks_of_a_page_run_in_order(file, database, environment, tmp_path, monkeypatch):
    """
    A reader who types what the page says, from its top, gets what the page says.
    """
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    session = Session(database, tmp_path, environment)
    loaded = set(sys.modules)
    try:
        for block in read_blocks(file):
            try:
                session.run(block)
            except BlockError:
                raise
            except Exception as error:
                raise BlockError(f"{block}: {type(error).__name__}: {error}") from error
    finally:
        for name in set(sys.modules) - loaded:
            if str(tmp_path) in str(getattr(sys.modules[name], "__file__", "")):
                del sys.modules[name]


def test_a_block_that_is_not_run_says_why():
    """
    Each exemption has its reason, which `pytest -rP` shows.
    """
    for block in NOT_RUN:
        print(f"{block}: {block.argument}")
    assert not [str(block) for block in NOT_RUN if not block.argument]


@pytest.mark.parametrize(
    "file", [pytest.param(file, id=str(file.relative_to(ROOT))) for file in EXAMPLES]
)
def test_an_example_runs(file, environment):
    """
    An example runs to its end on a migrated database.
    """
    answer = subprocess.run(
        [sys.executable, "-W", "error", file],
        check=False,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert answer.returncode == 0, answer.stdout + answer.stderr
