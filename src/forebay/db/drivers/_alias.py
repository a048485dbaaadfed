"""A string that names one of Django's databases: ``enqueue("default", ...)``.

This works only in a process that uses Django, and only if DATABASES has the name. Type checkers
refuse a string, because it is usually a mistake: they expect ``connections[alias]``.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from forebay.db.drivers._adapters import AsyncRunner, Runner


def sync_runner(conn: Any) -> Runner | None:
    """Return the runner for the database of an alias; None for other objects."""
    connection = _connection(conn)
    if connection is None:
        return None
    from forebay.db.drivers import _django  # noqa: PLC0415 - Django is there

    return _django.sync_runner(connection)


def async_runner(conn: Any) -> AsyncRunner | None:
    """Do as ``sync_runner``, in Django's thread for database calls."""
    connection = _connection(conn)
    if connection is None:
        return None
    from forebay.db.drivers import _django  # noqa: PLC0415 - Django is there

    return _django.async_runner(connection)


def stands_for(conn: Any) -> Any:
    """Return this thread's connection to the database of an alias."""
    from forebay.db.drivers import _django  # noqa: PLC0415 - Django is there

    return _django.stands_for(_connection(conn))


def driver_connection(conn: Any) -> Any:
    """Return the connection of psycopg."""
    return conn.connection  # of what it stands for


def _connection(alias: Any) -> Any:
    if not isinstance(alias, str) or "django.db" not in sys.modules:
        return None
    from django.conf import settings  # noqa: PLC0415
    from django.db import connections  # noqa: PLC0415
    from django.utils.connection import ConnectionProxy  # noqa: PLC0415

    if not settings.configured or alias not in connections.settings:
        return None
    return ConnectionProxy(connections, alias)
