"""Options of the long tests: how long a stress run lasts, and the seed that repeats it."""

import random

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--stress-seconds", type=float, default=5, help="how long each stress run lasts"
    )
    parser.addoption(
        "--click-seconds", type=float, default=None, help="how long random clicks last"
    )
    parser.addoption(
        "--click-jobs", type=int, default=None, help="jobs that wait meanwhile, at most"
    )
    parser.addoption("--seed", type=int, default=None, help="repeat the random choices of a run")


@pytest.fixture
def stress_seconds(pytestconfig: pytest.Config) -> float:
    return pytestconfig.getoption("--stress-seconds")


@pytest.fixture
def seed(pytestconfig: pytest.Config) -> int:
    """The seed of this run; printed, so that a failure can be repeated."""
    given = pytestconfig.getoption("--seed")
    seed = random.SystemRandom().randrange(2**32) if given is None else given
    print(f"--seed {seed}")
    return seed
