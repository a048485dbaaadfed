"""scripts/demo --outage in a short form: what it promises, and that it would notice."""

import json
import os
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import psycopg
import pytest

from tests.examples.conftest import EXAMPLES

KEYS = {
    "writes", "failed_writes", "deadline_ms", "write_p99_ms_before", "write_p99_ms_during", "old_order_lost",
    "missing_after", "stale_after", "orphaned_after", "recovery_seconds", "dsn", "target",
}  # fmt: skip


def run_outage(*arguments, home: Path):
    environment = {
        k: v for k, v in os.environ.items() if not k.startswith(("FOREBAY_", "PG", "ANNOTATIONS_"))
    }
    path = os.pathsep.join(filter(None, [str(EXAMPLES), os.environ.get("PYTHONPATH")]))
    environment |= {"HOME": str(home), "XDG_CACHE_HOME": str(home), "PYTHONPATH": path}
    return subprocess.run(
        [sys.executable, "-W", "error", "-m", "annotations.outage", *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
        env=environment,
    )


@pytest.fixture
def home(tmp_path_factory):
    """A folder for what outlives a command, which the account that runs the servers may enter."""
    import tempfile

    with tempfile.TemporaryDirectory(prefix="forebay-home-") as folder:
        Path(folder).chmod(0o711)
        yield Path(folder)


@pytest.mark.nightly
@pytest.mark.slow
def test_an_outage_costs_one_order_nothing_and_the_other_what_was_written_in_it(home, is_long):
    """
    One line of JSON; both databases say the same afterwards, to plain SQL.
    """
    plot = home / "outage.svg"
    writes = 21_500 if is_long else 4000
    answer = run_outage("--json", "--keep", "--plot", str(plot), "--writes", str(writes), home=home)
    try:
        assert answer.stdout.count("\n") == 1, answer.stdout + answer.stderr
        found = json.loads(answer.stdout)
        assert found.keys() >= KEYS
        assert found["writes"] >= writes
        assert found["old_order_lost"] > 0
        assert found["behind_at_most"] > 0
        for name in ("failed_writes", "lost_writes", "missing_after", "stale_after", "orphaned_after", "jobs_after"):  # fmt: skip
            assert found[name] == 0, name
        # How fast it was is judged in a long run: a busy machine stands still for seconds. Nothing else may fail.
        most = found["deadline_ms"] + 1.5 * found["write_p99_ms_before"]
        is_fast = found["write_p99_ms_during"] <= most
        assert is_fast or not is_long
        assert answer.returncode == (0 if is_fast else 1), answer.stdout + answer.stderr
        assert "black hole" in answer.stderr
        assert plot.read_text().startswith("<?xml")
        with psycopg.connect(found["dsn"]) as conn, psycopg.connect(found["target"]) as index:
            items = conn.execute(
                "select annotation_id, version from annotation where not deleted order by 1"
            )
            copies = index.execute("select id, version from documents where not gone order by 1")
            assert items.fetchall() == copies.fetchall()
            (old,) = conn.execute("select count(*) from old_annotation").fetchone()
            (old_copies,) = index.execute("select count(*) from old_documents").fetchone()
            assert old - old_copies == found["old_order_lost"]
            (made,) = conn.execute(
                "select sum(version) from annotation where 'load' = any (tags)"
            ).fetchone()
            assert made == found["writes"]
    finally:
        assert run_outage("--stop", home=home).returncode == 0
        subprocess.run(
            [sys.executable, "-m", "forebay", "dev", "--stop"],
            env=os.environ | {"HOME": str(home), "XDG_CACHE_HOME": str(home)},
            check=True,
            capture_output=True,
        )


@pytest.fixture
def outage_run(monkeypatch):
    monkeypatch.syspath_prepend(str(EXAMPLES))
    from annotations.outage import run

    return run


def test_a_broken_promise_is_not_a_success(outage_run):
    """
    Each number that must be 0, slow writes, no recovery, and an outage that nothing noticed.
    """
    good = {field.name: 0 for field in fields(outage_run.Result)} | {
        "writes": 100, "deadline_ms": 250, "write_p99_ms_before": 10.0, "write_p99_ms_during": 265.0,
        "recovery_seconds": 3.0, "behind_at_most": 50, "old_order_lost": 7,
    }  # fmt: skip
    assert outage_run.Result(**good).is_right
    for name, value in [
        *((name, 1) for name in ("failed_writes", "lost_writes", "missing_after", "stale_after", "orphaned_after", "jobs_after")),
        ("write_p99_ms_during", 265.1), ("recovery_seconds", None), ("behind_at_most", 0), ("old_order_lost", 0),
    ]:  # fmt: skip
        assert not outage_run.Result(**good | {name: value}).is_right, name


def test_the_times_of_an_outage_part_the_requests(outage_run):
    """
    A request that is under way when the outage begins, or when it ends, belongs to it.
    """
    from annotations.outage.ledger import Record, Request, percentile

    record = Record(measured_at=1.0, cut_at=10.0, healed_at=20.0)
    at = {
        0.5: "before the rate was known",
        5.0: "before",
        9.9: "during",
        15.0: "during",
        19.9: "during",
        20.5: "after",
    }
    record.requests = [Request("create", begun, 0.2, is_done=True) for begun in at]
    assert [r.at for r in record.before(record.writes())] == [5.0]
    assert [r.at for r in record.during(record.writes())] == [9.9, 15.0, 19.9]
    assert [r.at for r in record.after(record.writes())] == [20.5]
    assert (
        percentile([Request("read", 0, n / 1000, is_done=True) for n in range(1, 101)], 0.99) == 100
    )
    assert percentile([], 0.99) == 0
