"""``--hostile``: the tests run where the product may do little, and where nothing is set as it
expects.

The schema belongs to a role with CREATE on the database and no other right. Workers, and the calls
of applications and operators, log in as roles of their own, whose settings are as hostile as
PostgreSQL allows. All tables are published, and the server writes WAL for logical decoding.

A test's ``database`` is then the address of the worker's role. What the tests do on connections of
their own needs an administrator: ``psycopg.connect`` in a module of the tests becomes one. Calls of
applications and operators become the operator.
"""

import sys
from collections.abc import Iterator

import psycopg
import psycopg.conninfo
import pytest

from tests.support.hostile import Hostile
from tests.support.least_privilege import as_login

_OPTION = "--hostile"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        _OPTION,
        action="store_true",
        help="least privilege, hostile settings, and a publication of all tables",
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not config.getoption(_OPTION):
        return
    for item in items:
        marker = item.get_closest_marker("usual")
        if marker is not None:
            item.add_marker(pytest.mark.skip(reason=f"needs usual settings: {marker.args[0]}"))


@pytest.fixture(scope="session")
def hostile(pytestconfig: pytest.Config) -> Iterator[Hostile | None]:
    """The row with ``--hostile``; None without."""
    if not pytestconfig.getoption(_OPTION):
        yield None
        return
    with pytest.MonkeyPatch.context() as patch:
        _give_logins(patch, psycopg.Connection)
        _give_logins(patch, psycopg.AsyncConnection)
        patch.setattr(psycopg, "connect", psycopg.Connection.connect)
        yield Hostile()


#: What opens connections for calls of applications and operators.
_OF_OPERATORS = {"forebay.db.own", "forebay.db.kept"}


def _callers() -> list[str]:
    """The module that connects, and those of the library's connections that it does so for."""
    frame = sys._getframe(2)
    names = [str(frame.f_globals.get("__name__", ""))]
    while names[-1].startswith("forebay.db.") and frame.f_back is not None:
        frame = frame.f_back
        names.append(str(frame.f_globals.get("__name__", "")))
    return names


def _give_logins(patch: pytest.MonkeyPatch, cls: type) -> None:
    original = cls.connect.__func__

    def connect(cls, conninfo="", **options):
        callers = _callers()
        if "hostile_worker" in conninfo:
            if callers[0].startswith("tests."):
                conninfo = as_login(conninfo, "postgres")
            elif not _OF_OPERATORS.isdisjoint(callers):
                conninfo = as_login(conninfo, "hostile_operator")
        return original(cls, conninfo, **options)

    patch.setattr(cls, "connect", classmethod(connect))
