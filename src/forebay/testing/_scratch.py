"""Databases and connections for tests: databases are copied from a migrated template and dropped
at the end.
"""

from __future__ import annotations

import contextlib
import re
import secrets
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, urlencode

import psycopg
import psycopg.conninfo
from psycopg import sql
from psycopg.pq import TransactionStatus

from forebay.testing._clock import install_clock
from forebay.testing.copies import OWN_COPY
from forebay.upgrade.migrate import migrate

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextlib.contextmanager
def template_database(server: str) -> Iterator[str]:
    """Create a database with the newest schema and a test clock, and drop it at the end.

    Yield its name.

    Args:
        server: the address of any database on a server that allows creating databases.
    """
    name = f"forebay_test_template_{secrets.token_hex(4)}"
    _admin(server, "create database {} template template0", name)
    try:
        address = address_in(server, name)
        migrate(address)
        with psycopg.connect(address) as conn:
            install_clock(conn)
        yield name
    finally:
        _admin(server, "drop database if exists {} with (force)", name)


@contextlib.contextmanager
def scratch_database(server: str, template: str) -> Iterator[str]:
    """Create a copy of a template and drop it at the end; yield its address."""
    name = f"forebay_test_{secrets.token_hex(4)}"
    _admin(server, "create database {} template {} strategy file_copy", name, template)
    dsn = address_in(server, name)
    try:
        with psycopg.connect(dsn) as conn:
            conn.execute(OWN_COPY)
        yield dsn
    finally:
        _admin(server, "drop database if exists {} with (force)", name)


class SharedConnection:
    """One connection to the server that several tests use one after the other, each in a
    transaction that is rolled back.

    A new connection would compile Forebay's SQL functions again, which takes longer than most
    tests. Each test gets a new object of psycopg around the connection, so that nothing that a test
    sets on the object reaches the next one.
    """

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self._kept: psycopg.Connection[tuple[Any, ...]] | None = None
        #: They warn if they are forgotten before the connection is closed.
        self._given: list[psycopg.Connection[Any] | psycopg.AsyncConnection[Any]] = []

    @contextlib.contextmanager
    def open(self) -> Iterator[psycopg.Connection[tuple[Any, ...]]]:
        """Yield a connection for one test."""
        conn = psycopg.Connection[tuple[Any, ...]](self._opened())
        self._given.append(conn)
        try:
            yield conn
        finally:
            self._clean()

    @contextlib.contextmanager
    def open_async(self) -> Iterator[psycopg.AsyncConnection[tuple[Any, ...]]]:
        """Yield an asynchronous connection for one test.

        It belongs to no event loop before its first statement.
        """
        conn = psycopg.AsyncConnection[tuple[Any, ...]](self._opened())
        self._given.append(conn)
        try:
            yield conn
        finally:
            self._clean()

    def _opened(self) -> psycopg.pq.abc.PGconn:
        if self._kept is None:
            self._kept = psycopg.connect(self._dsn, autocommit=True)
        return self._kept.pgconn

    def _clean(self) -> None:
        """Roll back, and remove what a test left in the session.

        Close the connection if the test closed or broke it.
        """
        if self._kept is not None and self._kept.info.transaction_status in _USABLE:
            with contextlib.suppress(psycopg.Error):
                self._kept.rollback()
                psycopg.ClientCursor(self._kept).execute(_CLEAN)
                return
        self.close()

    def close(self) -> None:
        """Close the connection; the server rolls back what is open."""
        if self._kept is not None:
            self._kept.pgconn.finish()
            self._kept = None
        self._given.clear()


_USABLE: Final = {
    TransactionStatus.IDLE,
    TransactionStatus.INTRANS,
    TransactionStatus.INERROR,
}

#: What a rollback leaves of a test. Prepared statements are those of the previous object of
#: psycopg.
_CLEAN: Final = (
    "close all; reset session authorization; reset all; unlisten *; deallocate all;"
    " select pg_advisory_unlock_all(); discard sequences; discard temp"
)


#: The name of one host, or an address of IPv4.
_NAME: Final = re.compile(r"[A-Za-z0-9._-]+")


def address_in(server: str, database: str) -> str:
    """Return the address of another database on a server.

    It is a URL, which other libraries take too: SQLAlchemy and asyncpg know no pairs of keywords
    and values.
    """
    given = {key: str(value) for key, value in psycopg.conninfo.conninfo_to_dict(server).items()}
    given.pop("dbname", None)
    login = quote(given.pop("user", ""), safe="")
    if "password" in given:
        login += f":{quote(given.pop('password'), safe='')}"
    place = f"{login}@" if login else ""
    if _NAME.fullmatch(given.get("host", "")):
        port = given.pop("port", "")
        place += given.pop("host") + (f":{port}" if port else "")
    # A socket's folder, an address of IPv6 and several hosts stay in the query.
    query = urlencode(given, quote_via=quote, safe="")
    return f"postgresql://{place}/{quote(database, safe='')}{'?' if query else ''}{query}"


def _admin(server: str, statement: str, *names: str) -> None:
    with psycopg.connect(server, autocommit=True) as conn:
        conn.execute(sql.SQL(statement).format(*map(sql.Identifier, names)))
