"""The schema version of a database, and whether this library can work with it."""

from __future__ import annotations

from forebay.errors import SchemaError
from forebay.ops.operation import Operation, scalar
from forebay.sql import latest_version, required_version


def schema_version() -> Operation[int | None]:
    """Return the call that reads the installed version; None if none is recorded.

    Running it on a database without the schema raises ``SchemaError``.
    """
    return Operation("select forebay.schema_version()", scalar)


def require_version(found: int | None, *, newer_is_fine: bool = False) -> None:
    """Refuse a schema version that this library does not support. Post migrations may be missing.

    Args:
        found: the version of the database; None if none is recorded.
        newer_is_fine: accept a newer version, as a worker does during a rolling upgrade: the
            functions that it calls have a version in their names and exist until every worker is
            newer. When the worker opens a lease, the database decides whether it still supports the
            worker.

    Raises:
        SchemaError: the schema is not installed, too old or too new.
    """
    if found is None or found < required_version():
        raise SchemaError(found=found, needed=required_version())
    if found > latest_version() and not newer_is_fine:
        raise SchemaError(found=found, needed=latest_version())
