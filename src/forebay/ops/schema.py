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


def require_version(found: int | None, *, newer_is_fine: bool = False) -> None:
    """Refuse a schema of another version than this library was made for.

    Args:
        found: the version of the database; None when none is recorded.
        newer_is_fine: let a newer one pass, as a worker does during a rolling upgrade: what it calls
            has the version in its name and stays until every worker is newer.

    Raises:
        SchemaError: it is not installed, too old or too new.
    """
    needed = latest_version()
    if newer_is_fine and found is not None and found > needed:
        return
    if found != needed:
        raise SchemaError(found=found, needed=needed)
