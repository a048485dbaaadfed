"""The database address: --dsn, FOREBAY_DATABASE_URL, DATABASE_URL or PG*, in this order.

There is no default: an error is safer than the wrong database.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from forebay.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

#: The address of the embedded server, which is started when needed.
EMBEDDED: Final = "embedded"

#: The libpq variables that locate a server; the others only say how to connect.
_LIBPQ_PLACES: Final = ("PGSERVICE", "PGHOST", "PGHOSTADDR", "PGPORT", "PGDATABASE")

_URL: Final = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*)://(?P<rest>.*)", re.DOTALL)
_MASK: Final = "****"
_URL_PASSWORD: Final = re.compile(r"(?<=://)([^/?#]*):([^/?#]*)(?=@)")
_QUERY_PASSWORD: Final = re.compile(r"(?i)\b((?:ssl)?password)=([^&#]*)")
_WORD_PASSWORD: Final = re.compile(r"(?i)\b((?:ssl)?password)(\s*=\s*)('(?:[^'\\]|\\.)*'?|\S+)")


@dataclass(frozen=True, slots=True)
class Address:
    """A database address.

    Attributes:
        dsn: a libpq connection string or URL, ``embedded``, or empty for libpq's variables.
        source: the option or variable that it comes from.
    """

    dsn: str
    source: str

    @property
    def is_embedded(self) -> bool:
        """Whether it is the embedded server."""
        return self.dsn == EMBEDDED

    @property
    def masked(self) -> str:
        """The address without its password."""
        return masked_dsn(self.dsn) or "(libpq environment)"

    def __repr__(self) -> str:
        return f"Address({self.masked!r}, source={self.source!r})"


def resolve_address(dsn: str | None, environ: Mapping[str, str]) -> Address:
    """Return the address of the database.

    Args:
        dsn: the value of ``--dsn`` or of the ``dsn`` argument; None if not given.
        environ: the environment; empty variables count as absent.

    Raises:
        ConfigError: no address is set, or it is not a PostgreSQL address.

    >>> resolve_address(None, {"DATABASE_URL": "postgresql://ann:secret@db/shop"})
    Address('postgresql://ann:****@db/shop', source='DATABASE_URL')
    """
    if dsn is not None:
        return _checked(dsn, "--dsn")
    for variable in ("FOREBAY_DATABASE_URL", "DATABASE_URL"):
        if environ.get(variable):
            return _checked(environ[variable], variable)
    places = [variable for variable in _LIBPQ_PLACES if environ.get(variable)]
    if places:
        return Address("", ", ".join(places))
    raise ConfigError.no_address()


def masked_dsn(dsn: str) -> str:
    """Return a connection string or URL with its passwords replaced.

    >>> masked_dsn("host=db password='a b' user=ann")
    'host=db password=**** user=ann'
    """
    if "://" in dsn:
        dsn = _URL_PASSWORD.sub(rf"\1:{_MASK}", dsn)
        return _QUERY_PASSWORD.sub(rf"\1={_MASK}", dsn)
    return _WORD_PASSWORD.sub(rf"\1\2{_MASK}", dsn)


def _checked(dsn: str, source: str) -> Address:
    dsn = dsn.strip()
    if dsn == EMBEDDED:
        return Address(dsn, source)
    url = _URL.fullmatch(dsn)
    if url:
        # A SQLAlchemy URL names a driver: postgresql+psycopg://
        scheme = url["scheme"].lower().partition("+")[0]
        if scheme in ("postgresql", "postgres"):
            return Address(f"postgresql://{url['rest']}", source)
    elif "=" in dsn:
        return Address(dsn, source)
    raise ConfigError(
        "database address",
        f"is not a PostgreSQL address: {masked_dsn(dsn) or 'empty'}",
        source=source,
        hint="Use postgresql://user@host/database, 'host=... dbname=...' or 'embedded'.",
    )
