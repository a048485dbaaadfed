"""A schema whose owner may do nothing but own it, and one login role for each part that uses it."""

from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from forebay.embedded import EmbeddedServer
from forebay.upgrade.migrate import migrate

#: Login role: the roles that it is a member of. Members do not exist of each other, nor of
#: pg_monitor.
LOGINS = {
    "least_owner": (),
    "least_worker": ("forebay_worker", "forebay_producer"),
    "least_producer": ("forebay_producer",),
    "least_operator": ("forebay_operator", "forebay_reader", "forebay_producer"),
}


def make_logins(server: EmbeddedServer) -> None:
    """Create the four roles of the schema and the login roles, as an administrator would
    beforehand.
    """
    with psycopg.connect(server.dsn(), autocommit=True) as admin:
        for role in ("producer", "worker", "operator", "reader"):
            _create(admin, f"forebay_{role}", "nologin")
        for login, roles in LOGINS.items():
            _create(admin, login, "login nosuperuser nocreaterole nocreatedb")
            for role in roles:
                admin.execute(f"grant {role} to {login}")


def _create(admin: psycopg.Connection, role: str, options: str) -> None:
    if admin.execute("select from pg_roles where rolname = %s", [role]).fetchone() is None:
        admin.execute(f"create role {role} {options}")


def as_login(dsn: str, login: str) -> str:
    """Return the address for another login role."""
    return make_conninfo(**conninfo_to_dict(dsn) | {"user": login})


def make_least(server: EmbeddedServer, name: str, *settings: str) -> str:
    """Create a database whose schema belongs to ``least_owner``, with CREATE on the database alone.

    Return its address.

    Args:
        server: where to create it.
        name: of the database.
        settings: "name = value" of the database, made before the schema is created.
    """
    make_logins(server)
    database = sql.Identifier(name)
    with psycopg.connect(server.dsn(), autocommit=True) as admin:
        admin.execute(sql.SQL("create database {} template template0").format(database))
        admin.execute(sql.SQL("grant create on database {} to least_owner").format(database))
        for setting in settings:
            admin.execute(sql.SQL("alter database {} set " + setting).format(database))
    dsn = server.dsn(name)
    migrate(as_login(dsn, "least_owner"))
    return dsn


@contextmanager
def least_database(server: EmbeddedServer, name: str, *settings: str) -> Iterator[str]:
    """Lend such a database, by the address of the administrator."""
    dsn = make_least(server, name, *settings)
    try:
        yield dsn
    finally:
        with psycopg.connect(server.dsn(), autocommit=True) as admin:
            admin.execute(sql.SQL("drop database {} with (force)").format(sql.Identifier(name)))
