"""The database address of a client without a connection, looked up on first use."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from forebay.config import OwnAddress, UnkeptAddress, resolve_address

if TYPE_CHECKING:
    from collections.abc import Callable


def address_of(dsn: str | Callable[[], str] | None) -> str:
    """Return a libpq connection string; for ``embedded``, start the local server if needed.

    Raises:
        ConfigError: no address is set.
    """
    given = dsn() if callable(dsn) else dsn
    if isinstance(given, OwnAddress | UnkeptAddress):
        return given  # The app has resolved it.
    address = resolve_address(given, os.environ)
    if not address.is_embedded:
        return address.dsn
    from forebay.embedded import Project, start_or_find  # noqa: PLC0415 - services do not need it

    return Project.of().ensure(start_or_find())
