"""The demo keeps its word, on a terminal and in a pipe."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from forebay.demo._documents import find_documents
from forebay.demo._ledger import COUNTS, Result
from forebay.demo._producers import plan
from forebay.demo.app import docstrings, extract_docstrings

KEYS = [
    "documents", "committed", "rolled_back", "done", "lost", "phantom", "rerun", "double_effects",
    "worker_kills", "seconds", "dsn",
]  # fmt: skip


@pytest.fixture
def home() -> Iterator[Path]:
    """A folder for what outlives a command, which the account that runs the server may enter."""
    with tempfile.TemporaryDirectory(prefix="forebay-home-") as folder:
        Path(folder).chmod(0o711)
        yield Path(folder)


def run_demo(*arguments, home=None):
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("FOREBAY_", "PG"))}
    if home is not None:
        environment |= {"HOME": str(home), "XDG_CACHE_HOME": str(home)}
    return subprocess.run(
        [sys.executable, "-W", "error", "-m", "forebay", "demo", *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=110,
        env=environment,
    )


@pytest.mark.slow
@pytest.mark.crash
def test_the_demo_loses_nothing_and_its_counts_can_be_repeated(home):
    """
    One line of JSON, in its order; the same numbers come from plain SQL afterwards.
    """
    answer = run_demo("--json", "--keep", home=home)
    try:
        assert answer.returncode == 0, answer.stdout + answer.stderr
        assert answer.stdout.count("\n") == 1
        found = json.loads(answer.stdout)
        assert list(found) == KEYS
        assert found["documents"] >= 500
        assert found["committed"] + found["rolled_back"] == found["documents"]
        assert found["done"] == found["committed"]
        assert (found["lost"], found["phantom"], found["double_effects"]) == (0, 0, 0)
        assert found["worker_kills"] == 1
        assert 0 < found["rerun"] < found["committed"] / 2
        assert found["seconds"] < 60
        with psycopg.connect(found["dsn"]) as conn:
            for name, statement in COUNTS.items():
                assert conn.execute(statement).fetchone() == (found[name],), name
            (docstring_count,) = conn.execute("select count(*) from demo.docstring").fetchone()
        assert docstring_count > found["done"]
        assert "SIGKILL" in answer.stderr
        assert "forebay dev --stop" in answer.stderr
    finally:
        subprocess.run(
            [sys.executable, "-m", "forebay", "dev", "--stop"],
            env=os.environ | {"HOME": str(home), "XDG_CACHE_HOME": str(home)},
            check=True,
            capture_output=True,
        )


def test_a_broken_promise_is_not_a_success():
    """
    Each of the three numbers that must be 0, a job that is not done, and no kill at all.
    """
    good = dict(zip(KEYS, [10, 8, 2, 8, 0, 0, 3, 0, 1, 1.0, ""], strict=True))
    assert Result(**good).is_right
    for name, value in (
        ("lost", 1), ("phantom", 1), ("double_effects", 1), ("done", 7), ("worker_kills", 0)
    ):  # fmt: skip
        assert not Result(**(good | {name: value})).is_right


@pytest.mark.slow
def test_the_standard_library_is_found():
    """
    Hundreds of modules, without what somebody installed beside it.
    """
    found = find_documents()
    paths = {document.path for document in found}
    assert len(paths) == len(found) >= 500
    assert {"ast.py", str(Path("asyncio", "tasks.py"))} <= paths
    assert not any("site-packages" in path for path in paths)


def test_what_is_no_utf8_or_no_python_is_left_out_or_empty(tmp_path):
    """
    Strange files cannot stop the demo.
    """
    (tmp_path / "good.py").write_text('"""A module."""\n')
    (tmp_path / "latin.py").write_bytes(b'# -*- coding: latin-1 -*-\n"""\xe4"""\n')
    (tmp_path / "broken.py").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "zero.py").write_bytes(b"x = '\x00'\n")
    found = {document.path: document.source for document in find_documents(tmp_path)}
    assert set(found) == {"good.py", "latin.py"}
    assert list(docstrings(found["latin.py"])) == [("", 1, "ä")]
    assert list(docstrings("def (")) == []


def test_the_plan_rolls_back_whole_transactions_and_single_savepoints():
    """
    Every document is in exactly one transaction, and the plan repeats with its seed.
    """
    documents = find_documents()
    made = plan(documents, producers=4, seed=1)
    assert [p.document for batch in made for p in batch] == documents
    outcomes = [{p.outcome for p in batch} for batch in made]
    assert {"rollback"} in outcomes
    assert all(len(each) == 1 for each in outcomes if "rollback" in each)
    assert any("rollback to savepoint" in each for each in outcomes)
    assert {p.producer for batch in made for p in batch} == {0, 1, 2, 3}
    assert plan(documents, producers=4, seed=1) == made


def test_the_demos_handler_settles_with_its_effect():
    """
    The point of the demo is that effect and completion are one commit.
    """
    assert extract_docstrings.kind.transaction
