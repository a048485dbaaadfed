"""Django's parallel test runner gives each process a copy of the migrated test database.

A copy of a database is foreign, and nothing runs in it. While tests run, a new connection makes the
copy that it meets its own, so that `run_until_idle` and eager jobs work there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.core import mail

from forebay.django._settings import has_schema

if TYPE_CHECKING:
    from django.db.backends.base.base import BaseDatabaseWrapper


def own_test_copy(connection: BaseDatabaseWrapper, **_: Any) -> None:
    """Receive ``connection_created``."""
    # Django's documented sign that tests run: it exists at no other time.
    if not hasattr(mail, "outbox") or not has_schema(connection.alias):
        return
    from forebay.testing.copies import OWN_COPY  # noqa: PLC0415 - for tests only

    with connection.cursor() as cursor:
        cursor.execute(OWN_COPY)
