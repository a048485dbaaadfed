"""Who looks at the console of the command line: names with passwords, or the header of a proxy.

Invariants:
    "Closed when in doubt": a file of passwords that is missing, open to others or has a bad line
    refuses each request, also if it became so while the console serves.
    "Equal cost": an unknown name costs what a wrong password costs.
    "Bounded tries": an address has ten failed tries a minute, and all addresses together fifty.
    A person who was let in is not counted, so that others cannot lock colleagues out.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import ipaddress
import os
import re
import secrets
import time
from collections import deque
from typing import TYPE_CHECKING, Final, NamedTuple

from starlette.exceptions import HTTPException

from forebay.console._acts import PERMISSIONS
from forebay.console._web import LOOPBACK as LOOPBACK  # noqa: PLC0414
from forebay.console._web import User
from forebay.errors import ConfigError, shown
from forebay.in_threads import in_thread

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from starlette.requests import Request

#: The cost of a hash: 32 MiB and a third of a second. Every line has it, so each try costs the
#: same.
_COST: Final = "ln=15,r=8,p=3"
_HASH: Final = re.compile(
    rf"\$scrypt\${_COST}\$([A-Za-z0-9+/]{{22}})\$([A-Za-z0-9+/]{{43}})", re.ASCII
)

_PASSWORD_MIN: Final = 12
_PASSWORD_MAX: Final = 1024

_WINDOW_SECONDS: Final = 60.0
_TRIES_OF_ADDRESS: Final = 10
_TRIES_MAX: Final = 50

#: Written by others or by the group, or read by others.
_OPEN_MODE: Final = 0o027

_HINT: Final = "Make a line with: forebay console --hash NAME"


class _Entry(NamedTuple):
    """A line of the file."""

    salt: bytes
    hash: bytes
    permissions: frozenset[str]


def _hashed(password: str, salt: bytes) -> bytes:
    return hashlib.scrypt(password.encode(), salt=salt, n=2**15, r=8, p=3, maxmem=2**26, dklen=32)


def password_line(name: str, password: str, *, acts: bool) -> str:
    """Return the line of a file of passwords: ``NAME:HASH``, or ``NAME:HASH:acts``.

    The hash is scrypt in the PHC string format.

    Args:
        name: of the person, as the event log has it; at most 200 characters, without a colon.
        password: 12 to 1,024 characters.
        acts: whether this person may act.

    Raises:
        ConfigError: the name or the password is refused.
    """
    if not _is_name(name):
        raise ConfigError(
            "--hash", f"is {shown(name)}, not a name", hint="At most 200 characters, no colon."
        )
    if not password.isprintable():
        raise ConfigError("password", "has a character that cannot be printed")
    if not _PASSWORD_MIN <= len(password) <= _PASSWORD_MAX:
        raise ConfigError(
            "password",
            f"has {len(password)} characters, not {_PASSWORD_MIN} to {_PASSWORD_MAX:,}",
            hint="Four random words are a good one.",
        )
    salt = secrets.token_bytes(16)
    texts = (base64.b64encode(one).decode().rstrip("=") for one in (salt, _hashed(password, salt)))
    return f"{name}:$scrypt${_COST}${'$'.join(texts)}{':acts' if acts else ''}"


class Passwords:
    """Lets in people by HTTP Basic who have a line in a file. It is an ``authorize`` of ``asgi()``.

    The file is read again when it has changed.

    Args:
        path: the file.

    Raises:
        ConfigError: the file is refused.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._stamp: tuple[int, ...] = ()
        self._entries: dict[str, _Entry] = {}
        #: Passwords that were right, as digests with a key of this process.
        self._right: dict[str, bytes] = {}
        self._key = secrets.token_bytes(32)
        self._nobody = _Entry(secrets.token_bytes(16), secrets.token_bytes(32), frozenset())
        self._failed: deque[tuple[float, str]] = deque(maxlen=_TRIES_MAX)
        self._turn = asyncio.Lock()
        self._read()

    async def __call__(self, request: Request) -> User:
        """Return who sends a request.

        Raises:
            HTTPException: 401 for a wrong or missing password, 429 after too many, 503 if the file
                is refused now.
        """
        try:
            self._read()
        except ConfigError as error:
            raise HTTPException(
                503, "The file of passwords is bad: no password is right."
            ) from error
        name, password = _credentials(request.headers.getlist("authorization"))
        digest = hmac.digest(self._key, password.encode(), "sha256")
        if not self._is_known(name, digest):
            async with self._turn:
                if not self._is_known(name, digest):
                    await self._try(name, password, digest, _place(request))
        return User(name, self._entries[name].permissions)

    def _is_known(self, name: str, digest: bytes) -> bool:
        return hmac.compare_digest(self._right.get(name, bytes(32)), digest)

    async def _try(self, name: str, password: str, digest: bytes, place: str) -> None:
        now = time.monotonic()
        while self._failed and now - self._failed[0][0] >= _WINDOW_SECONDS:
            self._failed.popleft()
        of_place = sum(one == place for _, one in self._failed)
        if of_place >= _TRIES_OF_ADDRESS or len(self._failed) >= _TRIES_MAX:
            wait = str(int(_WINDOW_SECONDS))
            raise HTTPException(429, "Too many wrong passwords.", {"Retry-After": wait})
        entry = self._entries.get(name, self._nobody)
        found = await in_thread(_hashed, password, entry.salt)
        # The file may have changed meanwhile.
        if hmac.compare_digest(found, entry.hash) and self._entries.get(name) is entry:
            self._right[name] = digest
            return
        self._failed.append((now, place))
        raise _unauthorized()

    def _read(self) -> None:
        """Read the file if it has changed.

        Raises:
            ConfigError: it is refused; no password is right then.
        """
        try:
            with self._path.open("rb") as file:
                facts = os.fstat(file.fileno())
                stamp = (facts.st_ino, facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns)
                if stamp == self._stamp:
                    return
                self._forget()
                if facts.st_mode & _OPEN_MODE:
                    raise ConfigError(
                        "--passwords",
                        f"is {self._path}, which others can read or change",
                        hint=f"chmod 600 {self._path}",
                    )
                self._entries = _parsed(file.read().decode())
        except (OSError, UnicodeDecodeError) as error:
            self._forget()
            why = error.strerror if isinstance(error, OSError) else "not text in UTF-8"
            raise ConfigError("--passwords", f"is {self._path}: {why}", hint=_HINT) from None
        self._stamp = stamp

    def _forget(self) -> None:
        self._stamp = ()
        self._entries = {}
        self._right.clear()


class TrustedHeader:
    """Lets in whom a proxy names in a header. It is an ``authorize`` of ``asgi()``.

    Each of them may act if the console lets people act.

    Args:
        name: of the header.
        networks: of the proxies, as ``10.0.0.0/24`` or ``10.0.0.7``. A request from elsewhere is
            refused, whatever its headers say.

    Raises:
        ConfigError: the name or a network is refused.
    """

    def __init__(self, name: str, networks: Iterable[str]) -> None:
        if not re.fullmatch(r"[A-Za-z0-9-]{1,100}", name):
            raise ConfigError("--trust-header", f"is {shown(name)}, not the name of a header")
        self._name = name
        self._networks = [_network(text) for text in networks]

    def __call__(self, request: Request) -> User | None:
        """Return who sends a request; None to refuse it."""
        peer = _peer(request)
        given = request.headers.getlist(self._name)
        if peer is None or len(given) != 1:
            return None
        if not any(peer in network for network in self._networks):
            return None
        name = given[0].encode("latin-1").decode("utf-8", "replace").strip()
        return User(name, frozenset(PERMISSIONS)) if name else None


def _parsed(text: str) -> dict[str, _Entry]:
    entries: dict[str, _Entry] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        name, _, rest = line.partition(":")
        hash_, colon, rights = rest.partition(":")
        matched = _HASH.fullmatch(hash_)
        if not (_is_name(name) and matched and rights == ("acts" if colon else "")):
            raise ConfigError("--passwords", f"has a bad line {number}", hint=_HINT)
        if name in entries:
            raise ConfigError("--passwords", f"has {shown(name)} twice, again in line {number}")
        salt, hashed = (base64.b64decode(one + "==="[: -len(one) % 4]) for one in matched.groups())
        entries[name] = _Entry(salt, hashed, frozenset(PERMISSIONS if colon else ()))
    if not entries:
        raise ConfigError("--passwords", "has no line with a name", hint=_HINT)
    return entries


def _is_name(text: str) -> bool:
    return 0 < len(text) <= 200 and text.isprintable() and text == text.strip() and (
        ":" not in text and not text.startswith("#")
    )  # fmt: skip


def _credentials(given: list[str]) -> tuple[str, str]:
    """Return the name and the password of the one header of HTTP Basic."""
    scheme, _, encoded = given[0].partition(" ") if len(given) == 1 else ("", "", "")
    if scheme.lower() != "basic":
        raise _unauthorized()
    try:
        text = base64.b64decode(encoded.strip(), validate=True).decode()
    except ValueError:
        raise _unauthorized() from None
    name, _, password = text.partition(":")
    return name, password


def _unauthorized() -> HTTPException:
    challenge = {"WWW-Authenticate": 'Basic realm="forebay console", charset="UTF-8"'}
    return HTTPException(401, "A name and a password are needed.", challenge)


def _peer(request: Request) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """Return the address of the socket at the other end."""
    try:
        peer = ipaddress.ip_address(request.client.host if request.client else "")
    except ValueError:
        return None
    return getattr(peer, "ipv4_mapped", None) or peer


def _place(request: Request) -> str:
    """Return where tries come from: an address, of IPv6 its network of one customer."""
    peer = _peer(request)
    if isinstance(peer, ipaddress.IPv6Address):
        return str(ipaddress.ip_network((int(peer), 64), strict=False))
    return str(peer)


def _network(text: str) -> ipaddress.IPv4Network | ipaddress.IPv6Network:
    try:
        network = ipaddress.ip_network(text)
    except ValueError as error:
        raise ConfigError(
            "--trust-from", f"is {shown(text)}: {error}", hint="As 10.0.0.7 or 10.0.0.0/24."
        ) from None
    if network.prefixlen == 0:
        raise ConfigError(
            "--trust-from", f"is {text}, which is every address", hint="Name the proxy."
        )
    return network
