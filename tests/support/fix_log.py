"""Commands that run in the test's own process set the level of the library's log, which the
process then has.
"""

import logging

import pytest


@pytest.fixture(autouse=True)
def log_level_as_it_was():
    library = logging.getLogger("forebay")
    level = library.level
    yield
    library.setLevel(level)
