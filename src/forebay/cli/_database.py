"""The database of a command: what is needed of it is loaded when a command uses it, not for its
help.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from forebay.client import Client
    from forebay.ops.operation import Operation

T = TypeVar("T")


def client_of(dsn: str | None) -> Client:
    """Return a client of the database that ``--dsn`` or the environment names."""
    from forebay.client import Client

    return Client(dsn)


def address_of(dsn: str | None) -> str:
    """Return the address of that database.

    Raises:
        ConfigError: no address is set.
    """
    from forebay.client import address_of

    return address_of(dsn)


def run(dsn: str | None, operation: Operation[T]) -> T:
    """Run an operation there, in a separate transaction, and return its result."""
    from forebay.db.own import run_own

    return run_own(address_of(dsn), operation)
