"""With ``FOREBAY_TESTS_GUARDS=FILE`` each test that passes without a guard is recorded there.

``tools/write_guards.py`` makes the table of docs/guards.md of it. A line is one guard, as JSON.
"""

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import mutant

#: Read once: fixtures of commands take the variables of the project out of the environment.
_PLACE = os.environ.get("FOREBAY_TESTS_GUARDS")


def pytest_runtest_logstart() -> None:
    """Forget what the test before took out."""
    mutant.removed.clear()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    """Record the guards that the test took out, and how soon it noticed that they were missing."""
    report = yield
    if _PLACE and report.when == "call" and report.passed:
        ended = time.perf_counter()
        lines = [
            json.dumps(
                {
                    "test": item.nodeid,
                    "function": each.function,
                    "guard": each.guard,
                    "instead": each.instead,
                    "seconds": ended - each.at,
                }
            )
            for each in mutant.removed
        ]
        with Path(_PLACE).open("a", encoding="utf-8") as file:
            file.writelines(f"{line}\n" for line in lines)
    return report
