"""Which addresses an HTTP sink may call: a guard against server-side request forgery.

Invariant "no connection to a blocked address": one parser reads the address of an endpoint; the
request uses its result. A name is resolved for each new connection, every address of the answer is
checked, and the connection goes to one of these addresses. A second look-up never happens, so a DNS
server cannot change its answer in between.
"""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Awaitable, Callable, Iterable
from typing import Final, TypeAlias
from urllib.parse import urlsplit

from forebay._dataclass import dataclass
from forebay.errors import ConfigError, shown
from forebay.sinks._support import call_in_thread

Address: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address
Network: TypeAlias = ipaddress.IPv4Network | ipaddress.IPv6Network

#: From the name of a host to its addresses.
Lookup: TypeAlias = Callable[[str], Awaitable[list[str]]]

_FIELD: Final = "sink http: url"

#: Spaces, control characters and backslashes: parsers disagree about them.
_UNSAFE: Final = re.compile(r"[\x00-\x20\x7f-\xa0\\]")
_LABEL: Final = re.compile(r"(?!-)[a-z0-9_-]{1,63}(?<!-)")
#: The last label of what a C library may take for an IPv4 address: 127.1, 0x7f.1, 017700000001.
_NUMERIC: Final = re.compile(r"[0-9]+|0x[0-9a-f]*")

_BLOCKED_V4: Final = [
    ipaddress.IPv4Network(text)
    for text in (
        "0.0.0.0/8",  # this network
        "10.0.0.0/8",  # private
        "100.64.0.0/10",  # carrier-grade NAT
        "127.0.0.0/8",  # loopback
        "169.254.0.0/16",  # link-local, with the metadata of most clouds
        "172.16.0.0/12",  # private
        "192.0.0.0/24",  # protocol assignments
        "192.0.2.0/24",  # documentation
        "192.88.99.0/24",  # 6to4 relays
        "192.168.0.0/16",  # private
        "198.18.0.0/15",  # benchmarks
        "198.51.100.0/24",  # documentation
        "203.0.113.0/24",  # documentation
        "224.0.0.0/4",  # multicast
        "240.0.0.0/4",  # reserved, and broadcast
    )
]

#: Everything outside of global unicast is blocked: loopback, unspecified, v4-compatible, ULA,
#: link-local, site-local, multicast.
_GLOBAL_V6: Final = ipaddress.IPv6Network("2000::/3")
_BLOCKED_V6: Final = [
    ipaddress.IPv6Network(text)
    for text in (
        "2001::/23",  # protocol assignments: Teredo, benchmarks, ORCHID
        "2001:db8::/32",  # documentation
        "2002::/16",  # 6to4
        "3fff::/20",  # documentation
    )
]
#: NAT64 with the well-known prefix leads to the IPv4 address in the last 32 bits. The local prefix
#: 64:ff9b:1::/48 is blocked whole.
_NAT64: Final = ipaddress.IPv6Network("64:ff9b::/96")

#: Addresses with credentials of machines, some of them in public networks. An allowed network does
#: not include them: they must be allowed one by one.
_METADATA: Final = frozenset(
    ipaddress.ip_address(text)
    for text in (
        "169.254.169.254",
        "169.254.170.2",  # credentials of containers
        "169.254.170.23",
        "168.63.129.16",
        "100.100.100.200",
        "192.0.0.192",
        "fd00:ec2::254",
        "fd00:ec2::23",
        "fd20:ce::254",
    )
)

_PORTS: Final = {"https": 443, "http": 80}


class BlockedAddress(Exception):  # noqa: N818 - says what happened
    """A destination may not be called. The message is for the operator: it names the address."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """The parsed address of an endpoint.

    Attributes:
        scheme: https or http.
        host: the name in lower-case ASCII without a trailing dot, or a canonical address without
            brackets.
        port: the port.
        target: path and query as given.
        address: the address if ``host`` is one.
    """

    scheme: str
    host: str
    port: int
    target: str
    address: Address | None

    @property
    def place(self) -> str:
        """Scheme, host and port, without path and query: these may contain a secret."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        port = "" if self.port == _PORTS[self.scheme] else f":{self.port}"
        return f"{self.scheme}://{host}{port}"


@dataclass(frozen=True, slots=True)
class Rule:
    """An entry of an allow or deny list: a network or a name, and perhaps a port."""

    network: Network | None
    name: str
    port: int | None

    def matches(self, host: str, address: Address | None, port: int) -> bool:
        """Return whether a host, its address if it is one, and a port are those of the entry."""
        if self.port is not None and self.port != port:
            return False
        if self.network is not None:
            return address is not None and address in self.network
        if self.name.startswith("*."):
            return host.endswith(self.name[1:])
        return host == self.name


class Destinations:
    """Which endpoints may be called.

    Args:
        allow: what may be called although it is blocked by default: networks (10.1.0.0/16),
            addresses, names (hooks.internal), or all names below one (``*.internal``). Each may end
            with a port (hooks.internal:9000), which is then allowed for it.
        deny: what may not be called, in the same form; it has precedence over ``allow``.
        https_only: whether an address must begin with https://.
        ports: the allowed ports; None allows every port.
        lookup: an async function from a name to its addresses as text; it raises OSError if there
            are none. None: the resolver of the operating system.

    Raises:
        ConfigError: an entry or a port is refused.

    Blocked by default are all addresses that are not public: loopback, private, link-local, shared,
    multicast, reserved, documentation and benchmark networks, IPv6 forms that contain an IPv4
    address (except public ones through NAT64), and the metadata services of clouds. If one address
    of a name is blocked, the name is blocked. An allowed network does not include a metadata
    service; allow its single address.
    """

    def __init__(
        self,
        *,
        allow: Iterable[str] = (),
        deny: Iterable[str] = (),
        https_only: bool = True,
        ports: Iterable[int] | None = (443, 8443),
        lookup: Lookup | None = None,
    ) -> None:
        self._allow = [rule_of("allow", entry) for entry in _entries("allow", allow)]
        self._deny = [rule_of("deny", entry) for entry in _entries("deny", deny)]
        if not isinstance(https_only, bool):
            raise ConfigError("destinations: https_only", f"is {shown(https_only)}, not a boolean")
        self._https_only = https_only
        self._ports = None if ports is None else frozenset(ports)
        for port in self._ports or ():
            if type(port) is not int or not 1 <= port <= 65_535:
                raise ConfigError("destinations: ports", f"has {shown(port)}, which is not a port")
        self._lookup = lookup or _system_lookup

    def parse(self, url: object) -> Endpoint:
        """Read the address of an endpoint.

        Raises:
            ConfigError: it is malformed or ambiguous, or its scheme or port is not allowed. The
                message does not repeat it.
        """
        endpoint = parse_endpoint(url)
        if self._https_only and endpoint.scheme != "https":
            raise ConfigError(
                _FIELD,
                "does not begin with https://",
                hint='To allow http, give the setting destinations {"https_only": false}.',
            )
        if not self.allows_port(endpoint):
            raise ConfigError(
                _FIELD,
                f"has the port {endpoint.port}, which is not allowed",
                hint=f'To allow it, give the setting destinations {{"ports": [{endpoint.port}]}}.',
            )
        return endpoint

    def allows_port(self, endpoint: Endpoint) -> bool:
        """Return whether the port of an endpoint may be called, at some address of its host."""
        if self._ports is None or endpoint.port in self._ports:
            return True
        return any(
            # Which network a name leads to is known after its look-up.
            rule.port == endpoint.port
            and (
                (rule.network is not None and endpoint.address is None)
                or rule.matches(endpoint.host, endpoint.address, endpoint.port)
            )
            for rule in self._allow
        )

    def check_endpoint(self, endpoint: Endpoint) -> None:
        """Check what can be known without a look-up.

        Raises:
            BlockedAddress: the endpoint may not be called.
        """
        if endpoint.address is not None:
            self.check(endpoint.host, endpoint.host, endpoint.port)
        elif any(rule.matches(endpoint.host, None, endpoint.port) for rule in self._deny):
            raise BlockedAddress(f"{endpoint.host} is denied")

    def check(self, host: str, address: str, port: int) -> None:
        """Check an address to which a connection for a host would go.

        Raises:
            BlockedAddress: it may not be called.
        """
        try:
            found = _plain(ipaddress.ip_address(address))
        except ValueError:
            raise BlockedAddress(f"{host} has the address {shown(address)}") from None
        if self._is_blocked(host, found, port):
            raise BlockedAddress(f"{host} has the address {found}")

    def _is_blocked(self, host: str, address: Address, port: int) -> bool:
        if any(rule.matches(host, address, port) for rule in self._deny):
            return True
        is_usual_port = self._ports is None or port in self._ports
        for rule in self._allow:
            allows_port = is_usual_port or rule.port is not None
            if allows_port and rule.matches(host, address, port):
                is_single = rule.network is None or rule.network.num_addresses == 1
                if is_single or address not in _METADATA:
                    return False
        return not is_usual_port or is_internal(address)

    def lists(self, host: str) -> bool:
        """Return whether the allow list has a host as it is written: a name, or an address.

        ``:port`` behind it matters where the list has a port.

        Raises:
            ConfigError: it is malformed.
        """
        rule = rule_of("allow", host)
        address = None if rule.network is None else _plain(rule.network.network_address)
        name = rule.name if address is None else str(address)
        return not any(one.matches(name, address, rule.port or 0) for one in self._deny) and any(
            one.matches(name, address, rule.port or 0)
            and (one.network is None or one.network.num_addresses == 1 or address not in _METADATA)
            for one in self._allow
        )

    async def resolve(self, host: str, port: int) -> list[str]:
        """Return the addresses of a host; all of them may be called.

        Raises:
            BlockedAddress: one of them may not be called.
            OSError: there are none.
        """
        addresses = await self._lookup(host)
        if not addresses:
            raise OSError("the name has no address")
        for address in addresses:
            self.check(host, address, port)
        return addresses


def is_plain(url: str) -> bool:
    """Return whether a text has none of the characters about which parsers disagree."""
    return _UNSAFE.search(url) is None


def parse_endpoint(url: object) -> Endpoint:
    """Read an http or https address strictly: whatever two parsers could read in two ways is
    refused.

    Raises:
        ConfigError: it is malformed or ambiguous. The message does not repeat it.

    >>> parse_endpoint("https://EXAMPLE.com./hook?a=1")
    Endpoint(scheme='https', host='example.com', port=443, target='/hook?a=1', address=None)
    """
    if not isinstance(url, str) or not url:
        raise ConfigError(_FIELD, "is not an address that begins with https://")
    if _UNSAFE.search(url):
        raise ConfigError(_FIELD, "contains a space, a control character or a backslash")
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise ConfigError(_FIELD, "is malformed") from error
    if parts.scheme not in _PORTS:
        raise ConfigError(_FIELD, "is not an address that begins with https://")
    if "@" in parts.netloc:
        raise ConfigError(
            _FIELD, "contains a user or a password", hint='Use auth="env:NAME" instead.'
        )
    if "#" in url:
        raise ConfigError(_FIELD, "contains a fragment")
    if port == 0:
        raise ConfigError(_FIELD, "has the port 0")
    host, address = _host(parts.netloc)
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    if not target.isascii():
        raise ConfigError(
            _FIELD, "has a path or a query with other characters than ASCII: write them as %XX"
        )
    return Endpoint(parts.scheme, host, port or _PORTS[parts.scheme], target, address)


def _host(netloc: str) -> tuple[str, Address | None]:
    if netloc.startswith("["):
        inside, bracket, rest = netloc[1:].partition("]")
        try:
            if not bracket or (rest and not rest.startswith(":")):
                raise ValueError
            found = ipaddress.IPv6Address("" if "%" in inside else inside)
        except ValueError:
            raise ConfigError(_FIELD, "has a malformed IPv6 address") from None
        return str(found), found
    return _name(_FIELD, netloc.partition(":")[0])


def _name(field: str, text: str) -> tuple[str, Address | None]:
    """Return a host as ASCII, and its address if it is an IPv4 address."""
    host = text.lower()
    if not host.isascii() or "xn--" in host:
        host = _idna(field, host)
    host = host.removesuffix(".")
    labels = host.split(".")
    if len(host) > 253 or not all(_LABEL.fullmatch(label) for label in labels):
        raise ConfigError(field, "has a malformed host name")
    if not _NUMERIC.fullmatch(labels[-1]):
        return host, None
    try:
        # Refuses other forms than a.b.c.d in decimal without leading zeros.
        return host, ipaddress.IPv4Address(host)
    except ValueError:
        raise ConfigError(
            field, "has an IPv4 address in another form than four decimal numbers"
        ) from None


def _idna(field: str, host: str) -> str:
    try:
        import idna  # noqa: PLC0415 - comes with aiohttp, an extra
    except ModuleNotFoundError:
        raise ConfigError(
            field, "has an international name", hint="pip install 'forebay[http]'"
        ) from None
    try:
        encoded = idna.encode(host, uts46=True).decode().lower()
        idna.decode(encoded)  # refuses labels xn-- that encode nothing valid
    except UnicodeError as error:
        raise ConfigError(field, "has a malformed international name") from error
    return encoded


def _plain(address: Address) -> Address:
    """Return the IPv4 address to which a v4-mapped address leads."""
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return mapped or address


def is_internal(address: Address) -> bool:
    """Return whether an address is not a public one, whatever its form.

    >>> is_internal(ipaddress.ip_address("64:ff9b::a9fe:a9fe"))
    True
    >>> is_internal(ipaddress.ip_address("2606:4700::1111"))
    False
    """
    address = _plain(address)
    if address in _METADATA:
        return True
    if isinstance(address, ipaddress.IPv4Address):
        return any(address in network for network in _BLOCKED_V4)
    if address in _NAT64:
        return is_internal(ipaddress.IPv4Address(int(address) & 0xFFFF_FFFF))
    return address not in _GLOBAL_V6 or any(address in network for network in _BLOCKED_V6)


def _entries(field: str, value: Iterable[str]) -> list[str]:
    entries = [] if isinstance(value, str) else list(value)
    if isinstance(value, str) or not all(isinstance(entry, str) for entry in entries):
        raise ConfigError(f"destinations: {field}", f"is {shown(value)}, not a list of texts")
    return entries


def rule_of(field: str, entry: str) -> Rule:
    """Return the rule of an entry.

    Raises:
        ConfigError: it is malformed.
    """
    where = f"destinations: {field}"
    text, port = entry, None
    if entry.startswith("[") or entry.count(":") == 1:
        text, _, digits = entry.rpartition(":")
        if entry.endswith("]"):
            text, digits = entry, ""
        text = text.removeprefix("[").removesuffix("]")
        if digits or not entry.endswith("]"):
            port = int(digits) if digits.isascii() and digits.isdigit() and len(digits) < 6 else 0
            if not 1 <= port <= 65_535:
                raise ConfigError(where, f"has {shown(entry)}, whose port is not a port")
    try:
        network: Network | None = ipaddress.ip_network(text)
    except ValueError:
        network = None
    if network is not None:
        return Rule(network, "", port)
    if not text or "/" in text or ":" in text:
        raise ConfigError(
            where,
            f"has {shown(entry)}, which is neither a network nor a name",
            hint="A network has no bits behind its prefix: 10.1.0.0/16.",
        )
    star = "*." if text.startswith("*.") else ""
    name, address = _name(where, text.removeprefix("*."))
    if address is not None:
        raise ConfigError(where, f"has {shown(entry)}, which is neither a network nor a name")
    return Rule(None, star + name, port)


async def _system_lookup(host: str) -> list[str]:
    infos = await call_in_thread(
        lambda: socket.getaddrinfo(host, None, type=socket.SOCK_STREAM), name="forebay-lookup"
    )
    return [str(info[4][0]) for info in infos]
