"""A database whose tables are read: where it is, and whether it has them."""

from __future__ import annotations

from forebay.ops.operation import Operation


def place_of(table: str) -> Operation[tuple[str, bool]]:
    """Return the call that tells the name of the database, and whether the search path shows a
    table.
    """
    return Operation(
        "select current_database(), to_regclass(%(table)s) is not null",
        lambda rows: (str(rows[0][0]), bool(rows[0][1])),
        {"table": table},
    )
