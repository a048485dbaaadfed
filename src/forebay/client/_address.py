"""Where a client without a connection finds its database, decided when it is first needed."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from forebay.config import resolve_address

if TYPE_CHECKING:
    from collections.abc import Callable


def address_of(dsn: str | Callable[[], str] | None) -> str:
    """Return a libpq connection string; ``embedded`` starts or finds the user's own server.

    Raises:
        ConfigError: there is no address.
    """
    address = resolve_address(dsn() if callable(dsn) else dsn, os.environ)
    if not address.is_embedded:
        return address.dsn
    from forebay.embedded import start_or_find  # noqa: PLC0415 - a service never needs it

    return start_or_find().dsn()
