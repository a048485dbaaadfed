"""Databases for tests, copied from a migrated template and dropped at the end."""

from __future__ import annotations

import contextlib
import secrets
from typing import TYPE_CHECKING, Any

import psycopg
import psycopg.conninfo
from psycopg import sql

from forebay.upgrade.migrate import migrate

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextlib.contextmanager
def template_database(server: str) -> Iterator[str]:
    """Create a database with the newest schema, and drop it at the end; yield its name.

    Args:
        server: the address of any database on a server that allows creating databases.
    """
    name = f"forebay_template_{secrets.token_hex(4)}"
    _admin(server, "create database {} template template0", name)
    try:
        migrate(address_in(server, name))
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
            # Workers treat a copy of a database as foreign; make this copy belong to this cluster.
            conn.execute(
                "update forebay.cluster set database_oid ="
                " (select oid from pg_database where datname = current_database())"
            )
        yield dsn
    finally:
        _admin(server, "drop database if exists {} with (force)", name)


@contextlib.contextmanager
def rolled_back(dsn: str) -> Iterator[psycopg.Connection[tuple[Any, ...]]]:
    """Yield a connection with an open transaction, which is rolled back at the end."""
    with contextlib.closing(psycopg.connect(dsn)) as conn:
        yield conn
        conn.rollback()


def address_in(server: str, database: str) -> str:
    """Return the address of another database on a server."""
    return psycopg.conninfo.make_conninfo(server, dbname=database)


def _admin(server: str, statement: str, *names: str) -> None:
    with psycopg.connect(server, autocommit=True) as conn:
        conn.execute(sql.SQL(statement).format(*map(sql.Identifier, names)))
