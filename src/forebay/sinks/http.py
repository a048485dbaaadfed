"""HTTP endpoints: webhooks.

Needs the extra ``http``. An endpoint may be slow, broken or hostile: times and sizes are bounded,
redirects are not followed unless the configuration says where to, and only public addresses are
called unless ``Destinations`` allow others.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal

from forebay.errors import ConfigError, shown
from forebay.model.text import logger
from forebay.sinks._contract import (
    Answer,
    FromRow,
    Message,
)
from forebay.sinks._destination import (
    Destinations,
    Lookup,
    parse_endpoint,
)
from forebay.sinks._http_calls import BEGIN_SECONDS, ROW_RULES, Calls
from forebay.sinks._http_login import BadSecret
from forebay.sinks._http_logins import make_login
from forebay.sinks._http_request import (
    BODILESS,
    Format,
    checked_headers,
    is_header_value,
)
from forebay.sinks._http_tls import Tls
from forebay.sinks._http_token import ANSWER_BYTES_MAX, Tokens
from forebay.sinks._redirects import Redirects
from forebay.sinks._secrets import Secret, checked_secret, is_reference, read_secret
from forebay.sinks._signing import Signer, public_key
from forebay.sinks._support import (
    checked_choice,
    checked_integer,
    checked_name,
    checked_number,
    library,
)

if TYPE_CHECKING:
    import ssl

    from forebay.sinks._http_client import Session

__all__ = ["Destinations", "Http", "Lookup", "Secret", "public_key"]

log = logger("forebay.sinks")

_METHODS: Final = ("POST", "PUT", "PATCH", "GET", "DELETE")

#: How often secrets and the files of TLS are read again.
_REREAD_SECONDS: Final = 60.0


class Http(Calls):
    """Sends each message to an HTTP endpoint. An answer with a status of 200 to 299 accepts it.

    The body is the arguments of the job as JSON. Headers are those of the job, ``forebay-id``,
    ``forebay-kind`` and the like, and those of the configuration. A repeated message has the same
    ``forebay-id``, and the same ``webhook-id`` if it is signed.

    Args:
        url: the address of the endpoint, without user, password and fragment.
        method: POST, PUT, PATCH, GET or DELETE. Requests of the last two have no body.
        headers: sent with each request. A value may be a reference to a secret, such as
            "env:API_KEY".
        auth: a reference to a secret, "bearer TOKEN" or "basic USER:PASSWORD". A scheme before the
            reference stands for the one in the secret: "bearer env:TOKEN". ``auth``, ``token_url``
            and ``aws_service`` exclude each other.
        token_url: the token endpoint of OAuth 2.0, for the grant client credentials. What holds for
            ``url`` holds for it: addresses, proxy, TLS, times.
        client_id: of the token endpoint; it may be a reference.
        client_secret: a reference to the secret of the client.
        scope: what the token is for, names with a space between them.
        audience: for whom the token is, where the token endpoint wants it.
        token_auth: how id and secret are sent: "basic" (None too), in a header, or "body".
        aws_service: signs with AWS Signature Version 4, for the service of this name.
        aws_region: of the service.
        aws_key_id: a reference to the id of an access key; None: botocore finds keys, in the
            environment, the profile, the container or the machine.
        aws_secret_key: a reference to the access key.
        aws_session_token: a reference to the token of temporary keys.
        aws_profile: of the shared configuration of AWS; None: the default.
        secrets: references to the keys that sign requests, at most 10; all of them sign. See
            Standard Webhooks.
        batch: "one": a request for each message. "array": a request for each call, with an array of
            objects with id, kind, headers and body, or of CloudEvents.
        cloudevents: "binary", "structured" or None: CloudEvents 1.0, with the kind as type.
        source: the source of CloudEvents.
        concurrency: the most requests at once, 1 to 1,000.
        connect_timeout: seconds for the look-up, the connection and the TLS handshake, 0.1 to 60.
        timeout: seconds for a whole request with its answer, 0.1 to 300. The ``timeout`` of the
            drain must be at least 10 s longer.
        response_bytes_max: how many bytes of an answer are read, 1 to 1,000,000.
        show_response: whether the beginning of a refusing answer appears in the error of the job,
            and whether the body of an accepting one is kept where the endpoint keeps answers.
            The owner of an endpoint who sees these can then read what the endpoint answers.
        url_suffixes: whether a message of an endpoint may add a path to the address. It cannot
            leave the place and the path of ``url``. Not for arrays.
        timeout_max: the longest ``timeout`` that a message of an endpoint may have, 0.1 to 300
            seconds; None: messages have none. Not for arrays.
        redirects: how many redirects of one request are followed, 0 to 10: 307 and 308, which keep
            method and body, and with GET also 301, 302 and 303. They must stay at scheme, host and
            port of ``url``.
        redirect_hosts: hosts to which redirects may lead besides, at most 20, in the form of
            ``Destinations``. They get neither ``auth``, ``headers`` nor signatures.
        ca_file: a file with the only certificate authorities that are trusted; None: those of the
            operating system.
        cert_file: the certificate with which this client shows who it is, and the chain to its
            authority; PEM, an absolute path.
        key_file: its private key; PEM. None: it is in ``cert_file``.
        key_passphrase: a reference to the passphrase of an encrypted key.
        pinned: hashes of public keys, 1 to 10, one of which the endpoint must have:
            "sha256//BASE64". Its certificate must be valid besides.
        proxy: the address of an HTTP proxy, or a reference to it if it has a password. The proxy
            resolves names, so it must refuse internal addresses itself. Proxies of the environment
            are not used.
        destinations: which addresses may be called; also a mapping of the arguments of
            ``Destinations``.

    A secret in Python code is a ``Secret``. References, and files that were replaced, are read when
    the sink opens, and at most every minute after that.

    A message that was not sent, because the endpoint answers so slowly that 10 s of the call have
    passed, uses no attempt.

    Raises:
        ConfigError: an argument is refused, or the library aiohttp is missing.
    """

    type: ClassVar[str] = "http"
    messages_max: ClassVar[int] = 500
    row_rules: ClassVar[Mapping[str, FromRow]] = ROW_RULES

    @classmethod
    def finds_login(cls, config: Mapping[str, Any]) -> bool:
        """Return whether botocore finds the keys that sign."""
        return config.get("aws_service") is not None and config.get("aws_key_id") is None

    def __init__(
        self,
        url: str,
        *,
        method: str = "POST",
        headers: Mapping[str, str] | None = None,
        auth: str | Secret | None = None,
        secrets: Sequence[str | Secret] = (),
        batch: Literal["one", "array"] = "one",
        cloudevents: Literal["binary", "structured"] | None = None,
        source: str | None = None,
        concurrency: int = 10,
        connect_timeout: float = 5.0,
        timeout: float = 15.0,
        response_bytes_max: int = 4096,
        show_response: bool = False,
        url_suffixes: bool = False,
        timeout_max: float | None = None,
        redirects: int = 0,
        redirect_hosts: Sequence[str] | None = None,
        ca_file: str | None = None,
        cert_file: str | None = None,
        key_file: str | None = None,
        key_passphrase: str | Secret | None = None,
        pinned: Sequence[str] | None = None,
        token_url: str | None = None,
        client_id: str | Secret | None = None,
        client_secret: str | Secret | None = None,
        scope: str | None = None,
        audience: str | None = None,
        token_auth: Literal["basic", "body"] | None = None,
        aws_service: str | None = None,
        aws_region: str | None = None,
        aws_key_id: str | Secret | None = None,
        aws_secret_key: str | Secret | None = None,
        aws_session_token: str | Secret | None = None,
        aws_profile: str | None = None,
        proxy: str | Secret | None = None,
        destinations: Destinations | Mapping[str, Any] | None = None,
    ) -> None:
        library("aiohttp", "http")
        self._destinations = _checked_destinations(destinations)
        self._endpoint = self._destinations.parse(url)
        self._method = checked_choice(self.type, "method", method, *_METHODS)
        self._is_array = checked_choice(self.type, "batch", batch, "one", "array") == "array"
        _check_events(cloudevents, source, self._method, is_array=self._is_array)
        self._headers = checked_headers(self.type, headers or {}, cloudevents)
        self._cloudevents, self._source = cloudevents, source
        self._login = make_login(
            {
                "auth": auth, "token_url": token_url, "client_id": client_id,
                "client_secret": client_secret, "scope": scope, "audience": audience,
                "token_auth": token_auth, "aws_service": aws_service, "aws_region": aws_region,
                "aws_key_id": aws_key_id, "aws_secret_key": aws_secret_key,
                "aws_session_token": aws_session_token, "aws_profile": aws_profile,
            },
            self._destinations, self._endpoint, self._method, self._headers,
        )  # fmt: skip
        self._secrets = _checked_secrets(secrets)
        self._concurrency = checked_integer(
            self.type, "concurrency", concurrency, least=1, most=1000
        )
        self._connect_seconds = checked_number(
            self.type, "connect_timeout", connect_timeout, least=0.1, most=60
        )
        self._seconds = checked_number(self.type, "timeout", timeout, least=0.1, most=300)
        self._bytes_max = checked_integer(
            self.type, "response_bytes_max", response_bytes_max, least=1, most=1_000_000
        )
        self._shows_response = _checked_boolean("show_response", show_response)
        self._takes_suffixes = _checked_boolean("url_suffixes", url_suffixes)
        self._seconds_max = (
            None
            if timeout_max is None
            else checked_number(self.type, "timeout_max", timeout_max, least=0.1, most=300)
        )
        self._redirects = Redirects(
            redirects, redirect_hosts, method=self._method, destinations=self._destinations
        )
        if self._is_array and (url_suffixes or timeout_max is not None):
            field = "url_suffixes" if url_suffixes else "timeout_max"
            raise ConfigError(
                f"sink http: {field}",
                "has no meaning for arrays: one request has many messages",
                hint='Give batch "one".',
            )
        if aws_service is not None and (redirects or url_suffixes):
            raise ConfigError(
                f"sink http: {'redirects' if redirects else 'url_suffixes'}",
                "excludes aws_service, whose signature is for one address",
                hint="Give one of the two.",
            )
        if cert_file is not None and redirect_hosts:
            raise ConfigError(
                "sink http: redirect_hosts",
                "excludes cert_file, whose certificate other hosts would see",
                hint="Give one of the two.",
            )
        self._tls = Tls(
            is_tls=self._endpoint.scheme == "https",
            ca_file=ca_file,
            cert_file=cert_file,
            key_file=key_file,
            key_passphrase=key_passphrase,
            pinned=pinned,
        )
        self._proxy = None if proxy is None else _checked_proxy(proxy)
        if not self._is_array:
            # A call ends in time even if every request takes some seconds.
            self.messages_max = min(500, 5 * self._concurrency)  # type: ignore[misc]  # of this object
            self.is_single = True
        self.call_seconds = BEGIN_SECONDS + max(self._seconds, self._seconds_max or 0) + 5
        self._slots = asyncio.Semaphore(self._concurrency)
        self._session: Session | None = None
        self._context: ssl.SSLContext | None = None
        self._format = Format()
        self._signer: Signer | None = None
        self._reading = asyncio.Lock()
        self._proxy_address: str | None = None
        #: Texts that no reason may contain, of the newest reading and of the one before.
        self._hidden: list[str] = []
        self._hidden_before: list[str] = []
        self._read_at = 0.0

    @property
    def place(self) -> str:
        """Scheme, host and port: the path may contain a secret."""
        return self._endpoint.place

    async def open(self) -> None:
        """Read the secrets. The endpoint is called for messages only."""
        await self.close()
        await self._read()
        self._session = self._new_session(
            self._method, self._concurrency, self._bytes_max, self._tls.pinned
        )
        if isinstance(self._login, Tokens):
            self._login.session = self._new_session("POST", 1, ANSWER_BYTES_MAX, frozenset())
            self._login.seconds = self._seconds

    def _new_session(
        self, method: str, connections: int, bytes_max: int, pinned: frozenset[str]
    ) -> Session:
        # Needs aiohttp, for which the constructor looked.
        from forebay.sinks._http_client import Session  # noqa: PLC0415 - an extra

        return Session(
            method=method,
            destinations=self._destinations,
            tls=self._context,
            pinned=pinned,
            has_certificate=self._tls.has_certificate,
            proxy=self._proxy_address,
            connections=connections,
            connect_seconds=self._connect_seconds,
            body_bytes_max=bytes_max,
        )

    async def close(self) -> None:
        """Close the connections."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()
        if isinstance(self._login, Tokens):
            await self._login.close()

    async def send(self, messages: Sequence[Message]) -> list[Answer]:
        """Send the messages: up to ``concurrency`` at once, or as arrays."""
        async with self._reading:
            if self._session is None:
                await self.open()
            elif time.monotonic() - self._read_at > _REREAD_SECONDS:
                await self._read()
                for session in (self._session, getattr(self._login, "session", None)):
                    if session is not None:
                        session.tls = self._context
        begin_until = time.monotonic() + BEGIN_SECONDS
        if self._is_array:
            return await self.send_array(messages, begin_until)
        async with asyncio.TaskGroup() as tasks:
            sent = [tasks.create_task(self.send_one(one, begin_until)) for one in messages]
        return [task.result() for task in sent]

    async def _read(self) -> None:
        """Read what is referenced."""
        self._hidden_before, self._hidden = self._hidden, []
        proxy = None if self._proxy is None else self._reveal("proxy", self._proxy)
        if proxy is not None and not proxy.startswith(("http://", "https://")):
            raise self._unavailable("proxy: does not begin with http://")
        self._proxy_address = proxy
        headers = {
            name: self._reveal(f"headers: {name}", value) if is_reference(value) else value
            for name, value in self._headers.items()
        }
        for name, value in headers.items():
            if not is_header_value(value):
                raise self._unavailable(f"headers: the secret for {name} has control characters")
        self._format = Format(
            method=self._method,
            headers=headers,
            cloudevents=self._cloudevents,
            source=self._source,
            reserved=self._login.reserved,
        )
        try:
            await self._login.read(self._reveal)
        except BadSecret as error:
            raise self._unavailable(str(error)) from None
        self._context = self._tls.context(self.place, self._reveal)
        keys = [self._reveal("secrets", one) for one in self._secrets]
        try:
            self._signer = Signer(keys) if keys else None
        except ValueError as error:
            raise self._unavailable(f"secrets: a secret {error}") from None
        self._read_at = time.monotonic()

    def _reveal(self, field: str, value: str | Secret) -> str:
        text = read_secret(f"{self.place}: {field}", value)
        self._hidden.append(text)
        return text


def _check_events(
    cloudevents: str | None, source: str | None, method: str, *, is_array: bool
) -> None:
    if cloudevents is not None:
        checked_choice("http", "cloudevents", cloudevents, "binary", "structured")
        checked_name("http", "source", source)
    elif source is not None:
        raise ConfigError("sink http: source", "has no meaning without cloudevents")
    if is_array and cloudevents == "binary":
        raise ConfigError("sink http: cloudevents", 'is "binary", which has no arrays')
    if method in BODILESS and (is_array or cloudevents == "structured"):
        raise ConfigError("sink http: method", f"is {method}, which sends no body")


def _checked_boolean(field: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise ConfigError(f"sink http: {field}", f"is {shown(value)}, not a boolean")
    return value


def _checked_destinations(value: Destinations | Mapping[str, Any] | None) -> Destinations:
    if isinstance(value, Destinations):
        return value
    if value is not None and not isinstance(value, Mapping):
        raise ConfigError("sink http: destinations", f"is {shown(value)}, not Destinations")
    try:
        return Destinations(**(value or {}))
    except TypeError as error:
        raise ConfigError("sink http: destinations", f"is malformed: {error}") from None


def _checked_secrets(value: Sequence[str | Secret]) -> list[str | Secret]:
    if isinstance(value, str) or not isinstance(value, Iterable):
        raise ConfigError("sink http: secrets", "is not a list of references")
    secrets = [checked_secret("sink http: secrets", one) for one in value]
    if len(secrets) > 10:
        raise ConfigError("sink http: secrets", f"has {len(secrets)} entries, not at most 10")
    return secrets


def _checked_proxy(value: str | Secret) -> str | Secret:
    """Return a reference, or a ``Secret`` with the address. A plain address has no password."""
    if isinstance(value, Secret) or is_reference(value):
        return value
    endpoint = None
    if isinstance(value, str):
        try:
            endpoint = parse_endpoint(value)
        except ConfigError as error:
            raise ConfigError(
                "sink http: proxy", error.problem, hint='With a password, write "env:NAME".'
            ) from None
    if endpoint is None:
        raise ConfigError("sink http: proxy", "is neither an address nor a reference")
    return Secret(endpoint.place)
