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
#: A whole connection string, as libpq reads it.
_WORDS: Final = re.compile(
    r"\s*(?:\w+\s*=\s*(?:'(?:[^'\\]|\\.)*'|(?!')(?:[^\s\\]|\\.)*\\?)(?:\s+|$))*", re.DOTALL
)
#: What libpq cannot decode in a URL.
_BAD_ESCAPE: Final = re.compile(r"%(?![0-9A-Fa-f]{2})|%00")


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
    # The @ may stand in a value of the query.
    path, question, query = f"{credentials}{at}{rest}".partition("?")
    return f"{scheme}{separator}{path}{question}{_masked_fields(query)}"


def _masked_word(found: re.Match[str]) -> str:
    name, equals, value = found.groups()
    return f"{name}{equals}{_MASK}" if _SECRET_NAME.search(name) and value else found[0]


def _masked_fields(query: str) -> str:
    fields = []
    is_secret = False
    for field in query.split("&"):
        name, equals, _ = field.partition("=")
        if equals:
            # libpq decodes names too: pass%77ord is a password.
            is_secret = bool(_SECRET_NAME.search(unquote(name)))
        # What has no name may be the rest of a value with an unescaped &.
        fields.append(f"{name}={_MASK}" if is_secret and equals else _MASK if is_secret else field)
    return "&".join(fields)


def require_address(dsn: object, source: str | None = None) -> None:
    """Refuse what is not text, and an address that libpq would misread and print in part."""
    if not isinstance(dsn, str):
        raise ConfigError(
            "database address", f"is {shown(dsn)}, not text", source=source, hint=_HINT
        )
    if url := _URL.fullmatch(dsn):
        _check_url(url["rest"], dsn, source)
    elif "=" in dsn:
        _check_words(dsn, source)


def _checked(dsn: str, source: str) -> Address:
    require_address(dsn, source)
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
        hint=_HINT,
    )


def _check_url(rest: str, dsn: str, source: str | None) -> None:
    """Refuse a URL with an unescaped character: libpq would take a part of the password for a host,
    a port or a database, and print that; or it would print what it cannot decode.

    libpq's credentials end at the first @, and a slash before it says that there are none.
    """
    credentials, _, after = rest.partition("@")
    address = rest if "/" in credentials else after
    if "@" in address.partition("?")[0] or _BAD_ESCAPE.search(rest):
        raise ConfigError(
            "database address",
            f"has an unescaped character: {masked_dsn(dsn)}",
            source=source,
            hint="Write % as %25, / as %2F, @ as %40, ? as %3F and # as %23.",
        )


def _check_words(dsn: str, source: str | None) -> None:
    """Refuse a connection string that libpq cannot read: it would print a word of it, which may be
    a part of the password.
    """
    if not _WORDS.fullmatch(dsn):
        raise ConfigError(
            "database address",
            f"is malformed: {masked_dsn(dsn)}",
            source=source,
            hint=r"Quote values with spaces: password='a b'. Write ' as \' and \ as \\.",
        )
