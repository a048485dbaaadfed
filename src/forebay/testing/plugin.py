"""pytest fixtures: a migrated database for each test. In conftest.py:

    pytest_plugins = ["forebay.testing.plugin"]

The server is an embedded one, created for the session and removed after it, unless
``--forebay-server`` or FOREBAY_TEST_SERVER names a server that allows creating databases.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest

from forebay.embedded import temporary_server
from forebay.testing._scratch import rolled_back, scratch_database, template_database

if TYPE_CHECKING:
    from collections.abc import Iterator

_SETTINGS = {"fsync": "off", "full_page_writes": "off"}


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add ``--forebay-server``."""
    parser.addoption(
        "--forebay-server",
        default=os.environ.get("FOREBAY_TEST_SERVER"),
        help="address of a PostgreSQL server for test databases (default: an embedded one)",
    )


@pytest.fixture(scope="session")
def forebay_server(pytestconfig: pytest.Config) -> Iterator[str]:
    """The address of the server for test databases."""
    given = pytestconfig.getoption("--forebay-server")
    if given:
        yield given
    else:
        with temporary_server(extra_settings=_SETTINGS) as server:
            yield server.dsn()


@pytest.fixture(scope="session")
def forebay_template(forebay_server: str) -> Iterator[str]:
    """The name of a template database with the schema and no data."""
    with template_database(forebay_server) as name:
        yield name


@pytest.fixture
def forebay_dsn(forebay_server: str, forebay_template: str) -> Iterator[str]:
    """The address of a fresh database with the schema, dropped after the test."""
    with scratch_database(forebay_server, forebay_template) as dsn:
        yield dsn


@pytest.fixture
def forebay_conn(forebay_dsn: str) -> Iterator[Any]:
    """A psycopg connection to ``forebay_dsn`` with an open transaction that is rolled back."""
    with rolled_back(forebay_dsn) as conn:
        yield conn
