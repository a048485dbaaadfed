"""Transactions for handlers that write with Django: ``TransactionContext[BaseDatabaseWrapper]``.

The handler runs inside ``atomic()`` on the connection that Django uses in the handler's thread, so
all writes of its models commit together with the job's completion. The transaction must be in the
worker's database, because a settlement in another one has no effect. The servers are queried to
find the entry of DATABASES for it.
"""

from __future__ import annotations

import contextlib
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

import psycopg
import psycopg.conninfo
import psycopg.pq
from django.db import connections, transaction

from forebay.db.errors import translate
from forebay.db.opening import connected
from forebay.db.pools import connect_options, record_use, was_idle
from forebay.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from forebay.db.handler_connections import LastCall
    from forebay.ops.operation import Operation, T

#: Identifies one database while its server runs.
_IDENTITY: Final = """\
select d.oid::text operator(pg_catalog.||) ' '
    operator(pg_catalog.||) extract(epoch from pg_postmaster_start_time())::text
from pg_database d where d.datname operator(pg_catalog.=) current_database()"""


def handler_connections(wanted: type, dsn: str, name: str, is_pooled: bool) -> Any:
    """Return the handler connections for plain handlers, on Django's connections."""
    del wanted, is_pooled  # Django makes the connections, with the options of DATABASES
    return _HandlerConnections(dsn, name)


class _HandlerConnections:
    begun = 0

    def __init__(self, dsn: str, name: str) -> None:
        self._dsn = dsn
        self._name = name

    @cached_property
    def _alias(self) -> str:
        """The alias of the worker's database."""
        with connected(self._dsn, **connect_options(self._name, is_pooled=False)) as conn:
            mine = conn.execute(_IDENTITY).fetchone()
        for alias in sorted(connections.settings, key=lambda alias: alias != "default"):
            connection = connections[alias]
            if connection.vendor == "postgresql":
                with connection.cursor() as cursor:
                    cursor.execute(_IDENTITY)
                    if cursor.fetchone() == mine:
                        return str(alias)
        raise ConfigError(
            "DATABASES",
            (
                "has no entry for the worker's database, so handlers cannot share a "
                "transaction with it"
            ),
            hint="Run the worker as `manage.py forebay worker`, or give both the same address.",
        )

    @contextlib.contextmanager
    def connection(self) -> Iterator[_HandlerConnection]:
        before_handler()
        try:
            connection = connections[self._alias]
            connection.ensure_connection()
            yield _HandlerConnection(connection, self._alias)
        finally:
            after_handler()

    def end_begun(self) -> None:
        """Do nothing: no transaction begins before its call."""

    def close(self) -> None:
        """Do nothing: no connections are kept here."""


def _between_transactions() -> list[Any]:
    """Return this thread's connections, but not that of a test around its transaction."""
    return [one for one in connections.all(initialized_only=True) if not one.in_atomic_block]


def before_handler() -> None:
    """Close this thread's connections that are broken or past CONN_MAX_AGE, as Django does before
    a request, and those that have ended while they were idle: they must not use an attempt.
    """
    for connection in _between_transactions():
        connection.close_if_unusable_or_obsolete()
        kept = connection.connection
        if isinstance(kept, psycopg.Connection) and was_idle(kept) and not connection.is_usable():
            connection.close()


def after_handler() -> None:
    """Close this thread's connections that are broken or past CONN_MAX_AGE."""
    for connection in _between_transactions():
        connection.close_if_unusable_or_obsolete()
        if isinstance(connection.connection, psycopg.Connection):
            record_use(connection.connection)


class _HandlerConnection:
    def __init__(self, connection: Any, alias: str) -> None:
        self.given = connection
        self._alias = alias
        driver = connection.connection
        self.raw = driver if isinstance(driver, psycopg.Connection) else None

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        with transaction.atomic(using=self._alias):
            yield

    def settle(self, operation: Operation[T]) -> T:
        try:
            with self.given.cursor() as cursor:
                cursor.execute(operation.sql, dict(operation.params))
                rows = cursor.fetchall()
        except Exception as error:
            ours = translate(error)
            if ours is None:
                raise
            raise ours from error
        return operation.decode(rows)

    def settle_last(self, last: LastCall, *, begins: bool) -> None:
        del begins  # The library begins and commits.
        self.settle(last(clears=False))


def address_of_alias(alias: str) -> str:
    """Return the libpq address of one of Django's databases.

    Raises:
        ConfigError: the alias does not exist, or is not PostgreSQL.
    """
    if alias not in connections.settings:
        raise ConfigError("DATABASES", f"has no entry {alias!r}", value=alias)
    connection = connections[alias]
    if connection.vendor != "postgresql":
        raise ConfigError(f"DATABASES[{alias!r}]", f"is {connection.vendor}, not PostgreSQL")
    known = {option.keyword.decode() for option in psycopg.pq.Conninfo.get_defaults()}
    given = connection.get_connection_params()
    # Keywords of libpq may have values that only Django or psycopg understand, such as a context or
    # a pool.
    return psycopg.conninfo.make_conninfo(
        **{name: value for name, value in given.items() if name in known and value is not None}
    )
