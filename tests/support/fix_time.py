"""A run with a time limit leaves tests out when the time is used up, and says how many: CI on a
slow machine ends with a result.

``FOREBAY_SLOW_TESTS_UNTIL`` and ``FOREBAY_TESTS_UNTIL``, seconds since 1970: tests marked ``slow``,
or all, that have not begun by then are left out. Without them nothing is.
"""

import os
import time

import pytest

_REASON = "no time: "


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Leave a test out that begins too late, before its fixtures."""
    is_slow = item.get_closest_marker("slow") is not None
    names = ["FOREBAY_TESTS_UNTIL", *(["FOREBAY_SLOW_TESTS_UNTIL"] if is_slow else [])]
    for name in names:
        if (until := os.environ.get(name)) and time.time() > float(until):
            pytest.skip(f"{_REASON}{name} has passed")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say how many tests were left out."""
    skipped = terminalreporter.stats.get("skipped", [])
    late = sum(1 for report in skipped if _REASON in str(report.longrepr))
    if late:
        terminalreporter.write_line(f"left out, no time: {late} tests")
