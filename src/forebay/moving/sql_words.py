"""A database whose tables are read: which table it is, among those of all servers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

from forebay.moving.found import digest_of
from forebay.ops.operation import Operation, boolean

_MAY_READ_SYSTEM: Final = (
    "select has_function_privilege('pg_catalog.pg_control_system()', 'execute')"
)
_SYSTEM: Final = "(select c.system_identifier::text from pg_catalog.pg_control_system() c)"

#: Of digests of a table.
_SHORT: Final = 8


class Place(NamedTuple):
    """Which table it is.

    A name of a database is no identity: two servers have a database ``app``, and two schemas of one
    database a table of the same name.

    Attributes:
        database: its name.
        table: the oid of the table; None: the search path shows none.
        identity: of the table, for keys of jobs. It is the same over each address, also on a
            standby.
        short: of the table, for owners of schedules.
    """

    database: str
    table: int | None
    identity: str
    short: str


def place_of(run: Callable[[Operation[Any]], Any], table: str) -> Place:
    """Return which table it is.

    It is known by the identifier of the cluster and by the oids of the database and the table.
    Where the role may not read that identifier, the keys of jobs do without it, as they have a
    digest of their contents, and owners of schedules have the address of the server instead.
    """
    system = _SYSTEM if run(Operation(_MAY_READ_SYSTEM, boolean)) else "null::text"
    return run(  # type: ignore[no-any-return]
        Operation(
            "select current_database()::text, d.oid::bigint, to_regclass(%(table)s)::oid::bigint,"
            f" {system}, concat_ws(':', inet_server_addr(), inet_server_port())"
            " from pg_catalog.pg_database d where d.datname = current_database()",
            lambda rows: _place(*rows[0]),
            {"table": table},
        )
    )


def _place(
    database: str, number: int, table: int | None, system: str | None, address: str
) -> Place:
    return Place(
        database,
        table,
        digest_of(system, number, table),
        digest_of(system or address, number, table)[:_SHORT],
    )
