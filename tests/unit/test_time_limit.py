"""A run of the tests with a time limit leaves out what begins too late, and says so."""

import time

import pytest

from tests.support.nested import run_pytest

TESTS = """
import pytest

@pytest.fixture(scope="session")
def server():
    print("started")

@pytest.mark.slow
def test_slow(server): ...

def test_quick(): ...
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("late", "last", "said"),
    [
        ([], "2 passed", ""),
        (["FOREBAY_SLOW_TESTS_UNTIL"], "1 passed, 1 skipped", "left out, no time: 1 tests"),
        (["FOREBAY_TESTS_UNTIL"], "2 skipped", "left out, no time: 2 tests"),
    ],
    ids=["in time", "no time for slow ones", "no time"],
)
def test_what_begins_too_late_is_left_out_and_counted(tmp_path, late, last, said):
    """
    Slow tests may end earlier than the others. Where servers are required too, such a test does not
    fail, and its fixtures do not start.
    """
    (tmp_path / "test_some.py").write_text(TESTS)
    limits = {
        "FOREBAY_SLOW_TESTS_UNTIL": time.time() + 600,
        "FOREBAY_TESTS_UNTIL": time.time() + 600,
    }
    limits |= dict.fromkeys(late, time.time() - 1)
    done = run_pytest(
        tmp_path,
        "-s",
        "-p",
        "tests.support.fix_time",
        "-p",
        "tests.support.fix_required",
        **{name: str(until) for name, until in limits.items()},
        FOREBAY_REQUIRE_SERVERS="1",
    )
    assert last in done.stdout.splitlines()[-1], done.stdout + done.stderr
    assert said in done.stdout
    assert ("started" in done.stdout) == (not late)
