"""Three ways to enqueue that fail, as programs: each fails as its page says, and the same with
Forebay does not.
"""

import os
import re
import subprocess
import sys

import pytest

from tests.support.worker_process import ROOT

PAGE = ROOT / "docs" / "howto" / "three-failures.md"


@pytest.fixture
def run(database, redis_server):
    """Return a function that runs one of the programs: its lines by their title."""

    def run(name: str) -> dict[str, list[str]]:
        paths = [str(ROOT / part) for part in ("src", "examples")]
        done = subprocess.run(
            [sys.executable, "-m", "three_failures", name],
            env=os.environ
            | {
                "PYTHONPATH": os.pathsep.join(paths),
                "FOREBAY_DATABASE_URL": database,
                "REDIS_URL": f"redis://{redis_server}",
            },
            capture_output=True,
            text=True,
            timeout=180,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        found: dict[str, list[str]] = {}
        lines: list[str] = []
        for line in done.stdout.splitlines():
            if not line.startswith("  "):
                lines = found.setdefault(line, [])
            else:
                lines.append(line.strip())
        return found

    return run


@pytest.mark.slow
def test_a_broker_gets_a_job_whose_user_never_exists(run):
    """
    Sent inside the transaction, the job runs before the commit, which never comes. Enqueued in it,
    it runs after the commit, or not at all.
    """
    assert run("early") == {
        "with a broker": ["users [], welcomed ['ann']"],
        "with Forebay": ["users [], welcomed []", "users ['bob'], welcomed ['bob']"],
    }


@pytest.mark.slow
def test_a_job_that_is_sent_after_the_commit_is_lost_at_a_kill(run):
    """
    The user is there, and nothing knows that a job is missing. Enqueued in the transaction, the job
    is there with the user.
    """
    assert run("lost") == {
        "with a broker": ["users ['carl'], waiting in the broker []"],
        "with Forebay": ["users ['carl', 'dora'], welcomed ['dora']"],
    }


@pytest.mark.slow
def test_a_jobs_table_reads_more_for_each_job_while_a_transaction_is_open(run):
    """
    The pages for a job grow with the jobs since the snapshot; those of the log do not.
    """
    found = run("thrashing")
    table = pages(found["with a jobs table"])
    log = pages(found["with Forebay"])
    assert table[-1] > 3 * table[0]
    assert log[-1] < 2 * log[0]
    assert log[-1] < table[-1]


def pages(lines: list[str]) -> list[int]:
    return [int(line.split(": ")[1].split()[0].replace(",", "")) for line in lines]


def test_the_page_shows_the_programs_as_they_are():
    """
    Each line of code on the page is a line of its program.
    """
    text = PAGE.read_text(encoding="utf-8")
    blocks = re.findall(
        r"<!-- not run: from examples/(\S+) -->\n```python\n(.*?)```", text, re.DOTALL
    )
    assert len(blocks) == 6
    for name, code in blocks:
        program = (ROOT / "examples" / name).read_text(encoding="utf-8")
        known = {line.strip() for line in program.splitlines()}
        assert [each for each in map(str.strip, code.splitlines()) if each not in known] == []
