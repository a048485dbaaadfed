"""An address as libpq reads it."""

from __future__ import annotations

from typing import Any

import psycopg
import psycopg.conninfo

from forebay.config import masked_dsn, require_address
from forebay.errors import ConfigError


def parsed_address(dsn: str) -> dict[str, Any]:
    """Return the options in an address.

    Raises:
        ConfigError: libpq cannot read it. Its own message would repeat what it cannot read, which
            may be a part of the password.
    """
    require_address(dsn)
    try:
        return psycopg.conninfo.conninfo_to_dict(dsn)
    except (psycopg.ProgrammingError, UnicodeError):
        raise ConfigError(
            "database address",
            f"is malformed: {masked_dsn(dsn)}",
            hint="In a URL, write & as %26, = as %3D and spaces as %20.",
        ) from None
