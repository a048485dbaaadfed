"""With ``FOREBAY_TESTS_RECORD=FILE`` a run writes what came of it there, as one JSON object.

``scripts/test`` reads it.

Only the process that reports writes: with ``-n`` that is the one which started the others.
"""

import json
import os
import time
from pathlib import Path

import pytest

_SLOWEST = 10


def pytest_configure(config: pytest.Config) -> None:
    """Record this run if it was asked for."""
    place = os.environ.get("FOREBAY_TESTS_RECORD")
    if place and not hasattr(config, "workerinput"):
        config.pluginmanager.register(_Record(Path(place)))


class _Record:
    """What came of each test; written when the run ends, also when it is interrupted."""

    def __init__(self, place: Path) -> None:
        self._place = place
        self._began = time.time()
        #: By node id. The worst phase of a test decides.
        self._outcomes: dict[str, str] = {}
        self._seconds: dict[str, float] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        decides = report.failed or report.skipped or report.when == "call"
        if decides and self._outcomes.get(report.nodeid) != "failed":
            self._outcomes[report.nodeid] = report.outcome
        seconds = self._seconds.get(report.nodeid, 0.0)
        self._seconds[report.nodeid] = seconds + report.duration

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._outcomes[report.nodeid] = "failed"

    def pytest_sessionfinish(self, exitstatus: int) -> None:
        outcomes = list(self._outcomes.values())
        slowest = sorted(self._seconds.items(), key=lambda item: -item[1])[:_SLOWEST]
        found = {
            "exit_status": int(exitstatus),
            "seconds": round(time.time() - self._began),
            **{name: outcomes.count(name) for name in ("passed", "failed", "skipped")},
            "failures": sorted(name for name, o in self._outcomes.items() if o == "failed"),
            "slowest": {name: round(seconds, 1) for name, seconds in slowest},
        }
        self._place.write_text(json.dumps(found), encoding="utf-8")
