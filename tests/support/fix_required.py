"""With ``FOREBAY_REQUIRE_SERVERS=1``, as in CI, a test that is left out because something is not
installed fails.

What is left out for another reason has it here: the reason is a fact about the server or the system
under test, which no installation changes.
"""

import os
import re
from collections.abc import Iterator

import pytest

#: Beginnings of the reasons for which a test may be left out where everything is required.
_FACTS = (
    "before PostgreSQL ",
    "this server ",
    "no time: ",
    "this is the older version itself",
    "a system installation does not run from another place",
    "needs a server session of its own",
    "needs usual settings: ",
    "an ordinary user",
    "needs root's home",
    "the system does not report processor time",
    "needs systemd-analyze",
)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    """Make a failure of a skip that is not for a fact."""
    report = yield
    _judge(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Iterator[None]:
    """Do the same for a module that is left out as a whole."""
    report = yield
    _judge(report)
    return report


def _judge(report: pytest.TestReport | pytest.CollectReport) -> None:
    if os.environ.get("FOREBAY_REQUIRE_SERVERS") != "1" or report.outcome != "skipped":
        return
    reason = _reason(report)
    if not reason.startswith(_FACTS):
        report.outcome = "failed"
        report.longrepr = f"left out where everything is required: {reason}"


def _reason(report: pytest.TestReport | pytest.CollectReport) -> str:
    where = report.longrepr
    said = where[2] if isinstance(where, tuple) else str(where)
    return re.sub(r"^Skipped: ", "", said)
