"""HTTP endpoints: webhooks.

Needs the extra ``http``. An endpoint may be slow, broken or hostile: times and sizes are bounded,
redirects are not followed unless the configuration says where to, and only public addresses are
called unless ``Destinations`` allow others.
"""

from __future__ import annotations

import asyncio
import base64
import ssl
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal

from forebay.errors import ConfigError, shown
from forebay.model.text import logger
from forebay.sinks._contract import (
    Answer,
    FromRow,
    Message,
    Refused,
    Rejected,
    Sink,
    TryLater,
)
from forebay.sinks._destination import (
    BlockedAddress,
    Destinations,
    Endpoint,
    Lookup,
    parse_endpoint,
)
from forebay.sinks._http_answer import answer_of
from forebay.sinks._http_request import (
    BODILESS,
    Format,
    Request,
    UnsendableHeader,
    checked_headers,
    is_header_value,
)
from forebay.sinks._redirects import RedirectRefused, Redirects
from forebay.sinks._secrets import Secret, checked_secret, is_reference, read_secret
from forebay.sinks._signing import Signer, public_key
from forebay.sinks._suffix import below, is_suffix
from forebay.sinks._support import (
    checked_choice,
    checked_integer,
    checked_name,
    checked_number,
    library,
)

if TYPE_CHECKING:
    from forebay.sinks._http_client import Session

__all__ = ["Destinations", "Http", "Lookup", "Secret", "public_key"]

log = logger("forebay.sinks")

_METHODS: Final = ("POST", "PUT", "PATCH", "GET", "DELETE")

#: No request of a call begins later than this after the beginning of the call, so that a call ends
#: in time.
_BEGIN_SECONDS: Final = 10.0

#: How often secrets and the CA file are read again.
_REREAD_SECONDS: Final = 60.0

#: Statuses that one message of an array may have caused.
_OF_A_MESSAGE: Final = (400, 413, 422)


class Http(Sink):
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
            reference stands for the one in the secret: "bearer env:TOKEN".
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
        proxy: the address of an HTTP proxy, or a reference to it if it has a password. The proxy
            resolves names, so it must refuse internal addresses itself. Proxies of the environment
            are not used.
        destinations: which addresses may be called; also a mapping of the arguments of
            ``Destinations``.

    A secret in Python code is a ``Secret``. References are read when the sink opens, and at most
    every minute after that.

    A message that was not sent, because the endpoint answers so slowly that 10 s of the call have
    passed, uses no attempt.

    Raises:
        ConfigError: an argument is refused, or the library aiohttp is missing.
    """

    type: ClassVar[str] = "http"
    messages_max: ClassVar[int] = 500
    row_rules: ClassVar[Mapping[str, FromRow]] = {
        "url": FromRow.CHECKED_ADDRESS,
        "method": FromRow.PLAIN,
        "headers": FromRow.SECRETS,
        "auth": FromRow.SECRETS,
        "secrets": FromRow.SECRETS,
        "batch": FromRow.PLAIN,
        "cloudevents": FromRow.PLAIN,
        "source": FromRow.PLAIN,
        "concurrency": FromRow.PLAIN,
        "connect_timeout": FromRow.PLAIN,
        "timeout": FromRow.PLAIN,
        "response_bytes_max": FromRow.PLAIN,
        "show_response": FromRow.ANSWERS,
        "url_suffixes": FromRow.PLAIN,
        "timeout_max": FromRow.PLAIN,
        "redirects": FromRow.PLAIN,
        "redirect_hosts": FromRow.CHECKED_ADDRESS,
    }

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
        proxy: str | Secret | None = None,
        destinations: Destinations | Mapping[str, Any] | None = None,
    ) -> None:
        library("aiohttp", "http")
        self._destinations = _checked_destinations(destinations)
        self._endpoint = self._destinations.parse(url)
        self._method = checked_choice(self.type, "method", method, *_METHODS)
        self._is_array = checked_choice(self.type, "batch", batch, "one", "array") == "array"
        self._check_events(cloudevents, source)
        self._headers = checked_headers(self.type, headers or {}, cloudevents)
        self._cloudevents, self._source = cloudevents, source
        self._auth = None if auth is None else _checked_auth(auth)
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
        self._ca_file = None if ca_file is None else checked_name(self.type, "ca_file", ca_file)
        self._proxy = None if proxy is None else _checked_proxy(proxy)
        if not self._is_array:
            # A call ends in time even if every request takes some seconds.
            self.messages_max = min(500, 5 * self._concurrency)  # type: ignore[misc]  # of this object
            self.is_single = True
        self.call_seconds = _BEGIN_SECONDS + max(self._seconds, self._seconds_max or 0) + 5
        self._slots = asyncio.Semaphore(self._concurrency)
        self._session: Session | None = None
        self._format = Format()
        self._signer: Signer | None = None
        #: Texts that no reason may contain.
        self._hidden: list[str] = []
        self._read_at = 0.0

    def _check_events(self, cloudevents: str | None, source: str | None) -> None:
        if cloudevents is not None:
            checked_choice(self.type, "cloudevents", cloudevents, "binary", "structured")
            checked_name(self.type, "source", source)
        elif source is not None:
            raise ConfigError("sink http: source", "has no meaning without cloudevents")
        if self._is_array and cloudevents == "binary":
            raise ConfigError("sink http: cloudevents", 'is "binary", which has no arrays')
        if self._method in BODILESS and (self._is_array or cloudevents == "structured"):
            raise ConfigError("sink http: method", f"is {self._method}, which sends no body")

    @property
    def place(self) -> str:
        """Scheme, host and port: the path may contain a secret."""
        return self._endpoint.place

    async def open(self) -> None:
        """Read the secrets. The endpoint is called for messages only."""
        await self.close()
        self._read()
        # Needs aiohttp, for which the constructor looked.
        from forebay.sinks._http_client import Session  # noqa: PLC0415 - an extra

        proxy = None if self._proxy is None else self._reveal("proxy", self._proxy)
        if proxy is not None and not proxy.startswith(("http://", "https://")):
            raise self._unavailable("proxy: does not begin with http://")
        self._session = Session(
            method=self._method,
            destinations=self._destinations,
            tls=self._tls(),
            proxy=proxy,
            connections=self._concurrency,
            connect_seconds=self._connect_seconds,
            body_bytes_max=self._bytes_max,
        )

    async def close(self) -> None:
        """Close the connections."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def send(self, messages: Sequence[Message]) -> list[Answer]:
        """Send the messages: up to ``concurrency`` at once, or as arrays."""
        if self._session is None:
            await self.open()
        elif time.monotonic() - self._read_at > _REREAD_SECONDS:
            self._read()
        begin_until = time.monotonic() + _BEGIN_SECONDS
        if self._is_array:
            return await self._send_array(messages, begin_until)
        async with asyncio.TaskGroup() as tasks:
            sent = [tasks.create_task(self._send_one(one, begin_until)) for one in messages]
        return [task.result() for task in sent]

    def refusal_of(self, message: Message) -> str | None:
        """Return why a message with a suffix or a timeout is never sent; None: it is."""
        if message.url_suffix is not None:
            if not self._takes_suffixes:
                return "the endpoint takes no url_suffix"
            if not is_suffix(message.url_suffix):
                return "its url_suffix is not a path that only goes down"
        if message.timeout is not None:
            if self._seconds_max is None:
                return "the endpoint takes no timeout of a message"
            if not 0.1 <= message.timeout <= 300:
                return "its timeout is outside 0.1 to 300 s"
        return None

    async def _send_one(self, message: Message, begin_until: float) -> Answer:
        # Once more, for each caller: an address is never made of a suffix that was not checked.
        refusal = self.refusal_of(message)
        if refusal is not None:
            return Rejected(refusal)
        endpoint, seconds = self._endpoint, self._seconds
        if message.url_suffix is not None:
            endpoint = below(endpoint, message.url_suffix)
        if message.timeout is not None:
            # The setting may be lower than when the message was sent.
            seconds = min(message.timeout, self._seconds_max or self._seconds)
        try:
            request = self._format.one(message)
        except UnsendableHeader as error:
            return Rejected(str(error))
        answer, _ = await self._send_request(request, begin_until, endpoint, seconds)
        return answer

    async def _send_array(self, messages: Sequence[Message], begin_until: float) -> list[Answer]:
        """Send messages as one array.

        Halve an array that is refused for what one message may have caused.
        """
        if not messages:
            return []
        request = self._format.array(messages)
        answer, status = await self._send_request(
            request, begin_until, self._endpoint, self._seconds
        )
        if status in _OF_A_MESSAGE and len(messages) > 1:
            middle = len(messages) // 2
            return [
                *await self._send_array(messages[:middle], begin_until),
                *await self._send_array(messages[middle:], begin_until),
            ]
        return [answer] * len(messages)

    async def _send_request(
        self, request: Request, begin_until: float, endpoint: Endpoint, seconds: float
    ) -> tuple[Answer, int]:
        """Return the answer, and the status or 0."""
        from forebay.sinks._http_client import NoAnswer, SessionClosed  # noqa: PLC0415 - an extra

        try:
            async with asyncio.timeout(max(0.0, begin_until - time.monotonic())):
                await self._slots.acquire()
        except TimeoutError:
            return self._unavailable(
                f"answers too slowly: a message was not sent within {_BEGIN_SECONDS:g} s"
            ), 0
        begun = time.monotonic()
        # That of this request: secrets may be read again before its answer.
        hidden = self._hidden
        try:
            session = self._session
            if session is None:
                raise SessionClosed
            response = await self._redirects.send(
                session,
                endpoint,
                {**request.headers, **self._signature(request)},
                request.body,
                seconds,
                for_others=self._for_others(request),
            )
        except BlockedAddress as error:
            log.warning("sink http: %s is blocked: %s", self.place, error)
            return Refused(
                f"{self.place}: blocked address, which the settings of this process do not allow"
            ), 0
        except NoAnswer as error:
            return TryLater(str(error)), 0
        except RedirectRefused as error:
            return TryLater(str(error)), error.status
        except SessionClosed:
            return self._unavailable("the sink was closed"), 0
        finally:
            self._slots.release()
        answer = answer_of(
            response, time.monotonic() - begun, shows_body=self._shows_response, hidden=hidden
        )
        return answer, response.status

    def _signature(self, request: Request) -> dict[str, str]:
        if self._signer is None:
            return {}
        return self._signer.headers(request.id, int(time.time()), request.body)

    def _for_others(self, request: Request) -> dict[str, str]:
        """Return the headers of a request for another place than that of the endpoint.

        They are those of the message: what the configuration adds may be a secret.
        """
        own = set(self._format.headers)
        if not is_reference(self._headers.get("content-type", "")):
            own.discard("content-type")
        return {name: value for name, value in request.headers.items() if name not in own}

    def _read(self) -> None:
        """Read what is referenced."""
        self._hidden = []
        headers = {
            name: self._reveal(f"headers: {name}", value) if is_reference(value) else value
            for name, value in self._headers.items()
        }
        if self._auth is not None:
            headers["authorization"] = self._authorization(*self._auth)
        for name, value in headers.items():
            if not is_header_value(value):
                raise self._unavailable(f"headers: the secret for {name} has control characters")
        self._format = Format(
            method=self._method, headers=headers, cloudevents=self._cloudevents, source=self._source
        )
        keys = [self._reveal("secrets", one) for one in self._secrets]
        try:
            self._signer = Signer(keys) if keys else None
        except ValueError as error:
            raise self._unavailable(f"secrets: a secret {error}") from None
        self._read_at = time.monotonic()

    def _authorization(self, scheme: str | None, reference: str | Secret) -> str:
        text = self._reveal("auth", reference)
        if scheme is None:
            scheme, _, text = text.partition(" ")
            text = text.strip()
        scheme = scheme.lower()
        if scheme == "bearer" and text:
            self._hidden.append(text)
            return f"Bearer {text}"
        if scheme == "basic" and ":" in text:
            encoded = base64.b64encode(text.encode()).decode()
            self._hidden += [encoded, text.partition(":")[2]]
            return f"Basic {encoded}"
        raise self._unavailable("auth: the secret is neither bearer TOKEN nor basic USER:PASSWORD")

    def _reveal(self, field: str, value: str | Secret) -> str:
        text = read_secret(f"{self.place}: {field}", value)
        self._hidden.append(text)
        return text

    def _tls(self) -> ssl.SSLContext | None:
        if self._ca_file is None:
            return None
        try:
            return ssl.create_default_context(cafile=self._ca_file)
        except (OSError, ValueError) as error:
            raise self._unavailable(f"ca_file: {type(error).__name__}") from None


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


def _checked_auth(value: str | Secret) -> tuple[str | None, str | Secret]:
    """Return the scheme, None if the secret contains it, and the reference."""
    if isinstance(value, str):
        scheme, space, reference = value.partition(" ")
        if space and scheme.lower() in ("bearer", "basic"):
            return scheme.lower(), checked_secret("sink http: auth", reference)
    return None, checked_secret("sink http: auth", value)


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
