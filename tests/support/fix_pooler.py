"""PgBouncer for tests of its own, and ``--through-pgbouncer``, which puts it before the server
of all of them.

With that option a test's ``database`` is an address through the pooler, for applications, workers
and whatever else it is given to. What the tests do on connections of their own makes use of the
server session, by roles, locks and settings, so these go past it: ``psycopg.connect`` in a module
of the tests is led to the server.
"""

import sys
from collections.abc import Callable, Iterator

import psycopg
import psycopg.conninfo
import pytest

from forebay.embedded import EmbeddedServer
from tests.support.pgbouncer import PgBouncer, pgbouncer, program

_OPTION = "--through-pgbouncer"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        _OPTION, action="store_true", help="put PgBouncer in transaction mode before the server"
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not config.getoption(_OPTION):
        return
    skip = pytest.mark.skip(reason="needs a server session of its own, or a server of its own")
    for item in items:
        if item.get_closest_marker("direct") or "own_server" in getattr(item, "fixturenames", ()):
            item.add_marker(skip)


@pytest.fixture(scope="session")
def needs_pgbouncer() -> None:
    """Leave a test out where the program is missing."""
    if program() is None:
        pytest.skip("pgbouncer is not installed")


@pytest.fixture(scope="session")
def pooler(server: EmbeddedServer, needs_pgbouncer: None) -> Iterator[PgBouncer]:
    """A PgBouncer before ``server``, for the session."""
    with pgbouncer(server) as found:
        yield found


@pytest.fixture
def pooled(database: str, pooler: PgBouncer) -> str:
    """The address of the test's database through PgBouncer."""
    return pooler.dsn(_name(database))


@pytest.fixture(scope="session")
def via_pooler(
    pytestconfig: pytest.Config, server: EmbeddedServer, request: pytest.FixtureRequest
) -> Iterator[PgBouncer | None]:
    """The pooler that stands before all tests' databases; None without ``--through-pgbouncer``."""
    if not pytestconfig.getoption(_OPTION):
        yield None
        return
    found: PgBouncer = request.getfixturevalue("pooler")
    with pytest.MonkeyPatch.context() as patch:
        _lead_past(patch, psycopg.Connection, found, server)
        _lead_past(patch, psycopg.AsyncConnection, found, server)
        patch.setattr(psycopg, "connect", psycopg.Connection.connect)
        yield found


@pytest.fixture
def sessions(
    conn: psycopg.Connection, database: str, via_pooler: PgBouncer | None
) -> Callable[[], list[str]]:
    """
    What returns the applications that Forebay has connected to the test's database.

    PgBouncer keeps its own sessions with the server, with the names of their last clients; then
    its clients are what counts.
    """
    query = (
        "select application_name from pg_stat_activity where datname = current_database()"
        " and application_name like 'forebay%'"
    )

    def found() -> list[str]:
        if via_pooler is None:
            return [name for (name,) in conn.execute(query)]
        return [name for name in via_pooler.clients(_name(database)) if "forebay" in name]

    return found


def _lead_past(
    patch: pytest.MonkeyPatch, cls: type, pooler: PgBouncer, server: EmbeddedServer
) -> None:
    original = cls.connect.__func__

    def connect(cls, conninfo="", **options):
        caller = sys._getframe(1).f_globals.get("__name__", "")
        if caller.startswith("tests.") and str(pooler.folder) in conninfo:
            parts = psycopg.conninfo.conninfo_to_dict(conninfo)
            if parts["dbname"] == "pgbouncer":  # its own console
                return original(cls, conninfo, **options)
            parts |= psycopg.conninfo.conninfo_to_dict(server.dsn(parts["dbname"]))
            conninfo = psycopg.conninfo.make_conninfo(**parts)
        return original(cls, conninfo, **options)

    patch.setattr(cls, "connect", classmethod(connect))


def _name(dsn: str) -> str:
    return str(psycopg.conninfo.conninfo_to_dict(dsn)["dbname"])
