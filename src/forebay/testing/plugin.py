"""pytest fixtures: connections whose transactions are rolled back, and databases. In conftest.py:

    pytest_plugins = ["forebay.testing.plugin"]

One migrated database serves all tests that roll back; only ``forebay_dsn`` makes a new one. Each
process of pytest-xdist has its own server, or with ``--forebay-server`` its own databases.

The server is an embedded one, created for the session and removed after it, unless
``--forebay-server`` or FOREBAY_TEST_SERVER names a server that allows creating databases.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest

from forebay.embedded import temporary_server
from forebay.testing._scratch import SharedConnection, scratch_database, template_database

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


@pytest.fixture(scope="session")
def forebay_database(forebay_server: str, forebay_template: str) -> Iterator[str]:
    """The address of one database for the whole session, for tests that commit nothing."""
    with scratch_database(forebay_server, forebay_template) as dsn:
        yield dsn


@pytest.fixture
def forebay_dsn(forebay_server: str, forebay_template: str) -> Iterator[str]:
    """The address of a fresh database with the schema, dropped after the test."""
    with scratch_database(forebay_server, forebay_template) as dsn:
        yield dsn


@pytest.fixture(scope="session")
def _forebay_shared(forebay_database: str) -> Iterator[SharedConnection]:
    shared = SharedConnection(forebay_database)
    yield shared
    shared.close()


@pytest.fixture(scope="session")
def _forebay_shared_async(forebay_database: str) -> Iterator[SharedConnection]:
    shared = SharedConnection(forebay_database)
    yield shared
    shared.close()


@pytest.fixture
def forebay_conn(_forebay_shared: SharedConnection) -> Iterator[Any]:
    """A psycopg connection to ``forebay_database`` whose transaction is rolled back after the
    test.
    """
    with _forebay_shared.open() as conn:
        yield conn


@pytest.fixture
def forebay_aconn(_forebay_shared_async: SharedConnection) -> Iterator[Any]:
    """The same as ``forebay_conn``, asynchronous: for tests of pytest-asyncio, of anyio, or with
    their own loop.
    """
    with _forebay_shared_async.open_async() as conn:
        yield conn
