"""Which version of the schema a database has, and whether this library can work with it."""

from __future__ import annotations

from forebay.errors import SchemaError
from forebay.ops.operation import Operation, scalar
from forebay.sql import latest_version, required_version


def schema_version() -> Operation[int | None]:
    """Return the call that asks for the installed version; None when none is recorded.

    On a database without the schema running it raises ``SchemaError``.
    """
    return Operation("select forebay.schema_version()", scalar)


def require_version(found: int | None, *, newer_is_fine: bool = False) -> None:
    """Refuse a schema that this library was not made for. Post migrations may be missing.

    Args:
        found: the version of the database; None when none is recorded.
        newer_is_fine: let a newer one pass, as a worker does during a rolling upgrade: what it calls
            has the version in its name and stays until every worker is newer. Whether it is still served
            the database says when a lease is opened.

    Raises:
        SchemaError: it is not installed, too old or too new.
    """
    if found is None or found < required_version():
        raise SchemaError(found=found, needed=required_version())
    if found > latest_version() and not newer_is_fine:
        raise SchemaError(found=found, needed=latest_version())
