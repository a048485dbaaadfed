"""A connection of most tests of the SQL functions."""

import pytest

from tests.support.engine import connect


@pytest.fixture
def conn(database):
    with connect(database) as conn:
        yield conn
