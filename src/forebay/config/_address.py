"""The database address: --dsn, FOREBAY_DATABASE_URL, DATABASE_URL or PG*, in this order.

There is no default: an error is safer than the wrong database.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote

from forebay._dataclass import dataclass
from forebay.errors import ConfigError, shown

if TYPE_CHECKING:
    from collections.abc import Mapping

#: The address of the embedded server, which is started when needed.
EMBEDDED: Final = "embedded"

#: The libpq variables that locate a server; the others only say how to connect.
_LIBPQ_PLACES: Final = ("PGSERVICE", "PGHOST", "PGHOSTADDR", "PGPORT", "PGDATABASE")

_URL: Final = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*)://(?P<rest>.*)", re.DOTALL)
_HINT: Final = "Use postgresql://user@host/database, 'host=... dbname=...' or 'embedded'."

_MASK: Final = "****"
#: Names of options whose value is a secret, after decoding.
_SECRET_NAME: Final = re.compile(r"(?i)pass|secret|token|api_?key")
#: A word of a connection string. A backslash escapes the next character; a quote that is not closed
#: reaches to the end.
_WORD: Final = re.compile(
    r"(\w+)(\s*=\s*)('(?:[^'\\]|\\.)*(?:'|\\?$)|(?:[^\s'\\]|\\.?)*)\S*", re.DOTALL
)
_IS_WORDS: Final = re.compile(r"\s*\w+\s*=")


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
    """Return a connection string or URL with its secrets replaced, also if it is malformed.

    In doubt it replaces more: a password with unescaped characters may look like a host or a path.

    >>> masked_dsn("host=db password='a b' user=ann")
    'host=db password=**** user=ann'
    >>> masked_dsn("postgresql://ann:a/b?c#d@db/shop?sslpassword=x")
    'postgresql://ann:****@db/shop?sslpassword=****'
    """
    if _IS_WORDS.match(dsn):
        return _WORD.sub(_masked_word, dsn)
    scheme, separator, rest = dsn.partition("://")
    if not separator:
        scheme, rest = "", dsn
    credentials, at, rest = rest.rpartition("@")
    user, colon, _ = credentials.partition(":")
    if colon:
        credentials = f"{user}:{_MASK}"
    path, question, query = rest.partition("?")
    fields = "&".join(_masked_field(field) for field in query.split("&"))
    return f"{scheme}{separator}{credentials}{at}{path}{question}{fields}"


def _masked_word(found: re.Match[str]) -> str:
    name, equals, value = found.groups()
    return f"{name}{equals}{_MASK}" if _SECRET_NAME.search(name) and value else found[0]


def _masked_field(field: str) -> str:
    name, equals, _ = field.partition("=")
    # libpq decodes names too: pass%77ord is a password.
    return f"{name}={_MASK}" if equals and _SECRET_NAME.search(unquote(name)) else field


def require_address_text(dsn: object, source: str | None = None) -> None:
    """Refuse an address that is no text."""
    if not isinstance(dsn, str):
        raise ConfigError(
            "database address", f"is {shown(dsn)}, not text", source=source, hint=_HINT
        )


def _checked(dsn: str, source: str) -> Address:
    require_address_text(dsn, source)
    dsn = dsn.strip()
    if dsn == EMBEDDED:
        return Address(dsn, source)
    url = _URL.fullmatch(dsn)
    if url:
        # A SQLAlchemy URL names a driver: postgresql+psycopg://
        scheme = url["scheme"].lower().partition("+")[0]
        if scheme in ("postgresql", "postgres"):
            _check_credentials(url["rest"], dsn, source)
            return Address(f"postgresql://{url['rest']}", source)
    elif "=" in dsn:
        return Address(dsn, source)
    raise ConfigError(
        "database address",
        f"is not a PostgreSQL address: {masked_dsn(dsn) or 'empty'}",
        source=source,
        hint=_HINT,
    )


def _check_credentials(rest: str, dsn: str, source: str) -> None:
    """Refuse a password with an unescaped slash: libpq would take a part of it for a port, and
    print that.
    """
    before_path, slash, path = rest.partition("/")
    port = before_path.rpartition(":")[2] if ":" in before_path else ""
    if slash and "@" not in before_path and "@" in path and not port.isdecimal() and port:
        raise ConfigError(
            "database address",
            f"has an unescaped character in its password: {masked_dsn(dsn)}",
            source=source,
            hint="Write / as %2F, @ as %40, ? as %3F and # as %23.",
        )
