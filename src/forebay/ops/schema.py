"""Which version of the schema a database has, and whether this library can work with it."""

from __future__ import annotations

from forebay.errors import SchemaError
from forebay.ops.operation import Operation, scalar
from forebay.sql import latest_version


def schema_version() -> Operation[int | None]:
    """Return the call that asks for the installed version; None when none is recorded.

    On a database without the schema running it raises ``SchemaError``.
    """
    return Operation("select forebay.schema_version()", scalar)


def require_version(found: int | None) -> None:
    """Refuse a schema of another version than this library was made for.

    Raises:
        SchemaError: it is not installed, too old or too new.
    """
    needed = latest_version()
    if found != needed:
        raise SchemaError(found=found, needed=needed)
