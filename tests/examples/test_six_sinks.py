"""The demo of six sinks: with one that is killed, one that lies and one that is slow, both sides
have the same messages.
"""

import json
import os
import subprocess
import sys

import pytest

from tests.support.worker_process import ROOT

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("messages", "least"), [(800, 500), pytest.param(1600, 1000, marks=pytest.mark.nightly)]
)
def test_both_sides_are_equal(messages, least):
    paths = [str(ROOT / part) for part in ("src", "examples")]
    done = subprocess.run(
        [sys.executable, "-m", "six_sinks", "--json", "--messages", str(messages)],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    rows = {row["sink"]: row for row in json.loads(done.stdout)["sinks"]}
    assert set(rows) == {"redis", "list", "nats", "kafka", "http", "forebay"}
    assert all(row["lost"] == row["early"] == 0 for row in rows.values())
    assert all(row["arrived"] == row["committed"] > least for row in rows.values())
    assert rows["redis"]["found_lost"] > 0
    assert "NATS is killed" in done.stderr
