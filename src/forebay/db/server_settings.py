"""The server settings that Forebay's calls rely on, whatever the server, the database, the role
or the environment sets.

A setting of the session overrides all of those: PGOPTIONS and ``options`` of an address, ``alter
database``, ``alter role``. Two sets, by what a connection runs; see
docs/decisions/0042-settings-of-our-own-connections.md. ``client_encoding`` is not here. It belongs
to the connect, because psycopg reads it there.

Not here on purpose: ``default_transaction_read_only``. An administrator who sets it wants no
writes, as during a switch-over.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

#: How values become text. psycopg reads timestamps in ISO format only, and floats as they are
#: written.
_TEXT: Final = {
    "datestyle": "ISO",
    "intervalstyle": "postgres",
    "extra_float_digits": "1",
    "bytea_output": "hex",
    "array_nulls": "on",
    "quote_all_identifiers": "off",
}

#: One call for an application or an operator, and statements of the user, such as those of a
#: mirror: time zone, search_path and limits remain those of the role.
OF_CALLS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "default_transaction_isolation": "read committed",
        **_TEXT,
        "idle_session_timeout": "0",
    }
)

#: The services of a worker, the doctor and the guard. Each call has a deadline at the client.
OF_SERVICES: Final[Mapping[str, str]] = MappingProxyType(
    {
        **OF_CALLS,
        "timezone": "UTC",
        "search_path": "pg_catalog, pg_temp",
        "standard_conforming_strings": "on",
        "lock_timeout": "0",
        "statement_timeout": "0",
        "transaction_timeout": "0",
        "idle_in_transaction_session_timeout": "0",
    }
)

#: Connect option of every connection. It overrides PGCLIENTENCODING and the default of the database
#: or the role.
ENCODING: Final[Mapping[str, Any]] = MappingProxyType({"client_encoding": "utf8"})

#: Settings that older servers do not know, by the version that introduced them.
_SINCE: Final = {"transaction_timeout": 170_000}

#: Settings of a session. They have no meaning within one transaction.
_OF_SESSIONS: Final = frozenset({"idle_session_timeout"})


def known(settings: Mapping[str, str], server_version: int) -> dict[str, str]:
    """Return the settings that a server knows."""
    return {
        name: value for name, value in settings.items() if server_version >= _SINCE.get(name, 0)
    }


def for_one_transaction(settings: Mapping[str, str], server_version: int) -> str:
    """Return the statements that apply settings to the transaction that they begin, to be sent
    in one message with a call.

    Values must need no quoting.
    """
    statements, calls = [], []
    for name, value in known(settings, server_version).items():
        if name == "default_transaction_isolation":
            statements.append(f"set transaction isolation level {value}; ")
        elif name == "default_transaction_read_only":
            statements.append(f"set transaction read {'only' if value == 'on' else 'write'}; ")
        elif name not in _OF_SESSIONS:
            calls.append(f"pg_catalog.set_config('{name}', '{value}', true)")
    return "".join(statements) + (f"select {', '.join(calls)}; " if calls else "")
