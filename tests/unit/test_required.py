"""In CI no test is left out because something is not installed."""

import pytest

from tests.support.nested import run_pytest

TESTS = """
import pytest

@pytest.fixture(scope="session")
def server():
    pytest.skip("groonga is not installed")

def test_server(server): ...

@pytest.mark.skipif(True, reason="the program redis-server is not installed")
def test_mark(): ...

def test_package():
    pytest.importorskip("no_such_package", reason="part of the extra dev")

def test_old():
    pytest.skip("before PostgreSQL 17 the queue takes 8 GB to fill")
"""
MODULE = """
import pytest

pytest.importorskip("no_such_package")
"""


@pytest.mark.slow
@pytest.mark.parametrize("required", ["", "1"])
def test_where_everything_is_required_only_a_fact_about_the_server_leaves_a_test_out(
    tmp_path, required
):
    """
    A fixture, a mark, a package in a test and for a module: each is a failure there, and left out
    elsewhere.
    """
    (tmp_path / "test_some.py").write_text(TESTS)
    (tmp_path / "test_module.py").write_text(MODULE)
    done = run_pytest(
        tmp_path,
        "-p",
        "tests.support.fix_required",
        "--continue-on-collection-errors",
        FOREBAY_REQUIRE_SERVERS=required,
    )
    last = done.stdout.splitlines()[-1]
    if required:
        assert last.startswith("1 failed, 1 skipped, 3 errors"), done.stdout
        assert done.stdout.count("left out where everything is required: ") >= 3
    else:
        assert last.startswith("5 skipped"), done.stdout
