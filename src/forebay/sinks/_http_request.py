"""What an HTTP sink sends: headers and bodies, plain or as CloudEvents 1.0."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Final
from urllib.parse import quote

import msgspec

from forebay._dataclass import dataclass
from forebay.errors import ConfigError, shown
from forebay.sinks._contract import Message
from forebay.sinks._support import envelope

_TOKEN: Final = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f]")

#: Names that belong to the connection, to the body or to the signature. A job cannot set them, nor
#: can the configuration.
_RESERVED: Final = frozenset(
    [
        "accept-encoding",
        "connection",
        "content-encoding",
        "content-length",
        "expect",
        "host",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
        "webhook-id",
        "webhook-signature",
        "webhook-timestamp",
    ]
)
#: Names that say who sends and what: the configuration sets them, a job does not.
_OF_THE_SINK: Final = frozenset(["authorization", "content-type", "cookie", "user-agent"])

#: Methods whose requests have no body.
BODILESS: Final = ("GET", "DELETE")


class UnsendableHeader(ValueError):  # noqa: N818 - says what happened
    """A header of a job that HTTP cannot carry."""


@dataclass(frozen=True, slots=True)
class Request:
    """One request.

    Attributes:
        id: the same on every try.
        headers: with lower-case names.
        body: empty for methods without a body.
    """

    id: str
    headers: dict[str, str]
    body: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """How messages become requests.

    Attributes:
        method: of HTTP.
        headers: sent with each request, with lower-case names.
        cloudevents: "binary", "structured" or None.
        source: the attribute ``source`` of events.
        reserved: how names of headers begin, in lower case, that a job cannot set either.
    """

    method: str = "POST"
    headers: Mapping[str, str] = field(default_factory=dict)
    cloudevents: str | None = None
    source: str | None = None
    reserved: tuple[str, ...] = ()

    def one(self, message: Message) -> Request:
        """Return the request for one message.

        Raises:
            UnsendableHeader: a header of the job has a name or a value that HTTP cannot carry.
        """
        headers = _of_job(message, self.reserved)
        body = message.body
        content_type = "application/json"
        if self.cloudevents == "binary":
            for name, value in self._attributes(message).items():
                headers[f"ce-{name}"] = percent_encoded(value)
        elif self.cloudevents == "structured":
            content_type = "application/cloudevents+json"
            body = self._event(message)
        if self.method in BODILESS:
            return Request(message.id, {**headers, **self.headers}, b"")
        return Request(message.id, {**headers, "content-type": content_type, **self.headers}, body)

    def array(self, messages: Sequence[Message]) -> Request:
        """Return the request for several messages, as one JSON array."""
        if self.cloudevents is None:
            content_type, items = "application/json", [envelope(one) for one in messages]
        else:
            content_type = "application/cloudevents-batch+json"
            items = [self._event(one) for one in messages]
        headers = {"content-type": content_type, "forebay-count": str(len(messages))}
        ids = "\n".join(one.id for one in messages).encode()
        return Request(
            f"batch-{hashlib.sha256(ids).hexdigest()[:32]}",
            {**headers, **self.headers},
            b"[" + b",".join(items) + b"]",
        )

    def _attributes(self, message: Message) -> dict[str, str]:
        assert self.source is not None
        found = {
            "specversion": "1.0",
            "id": message.id,
            "source": self.source,
            "type": message.kind,
            "time": message.enqueued_at.isoformat(),
        }
        if message.ordering_key is not None:
            found["partitionkey"] = message.ordering_key
        return found

    def _event(self, message: Message) -> bytes:
        return msgspec.json.encode(
            {
                **self._attributes(message),
                "datacontenttype": "application/json",
                "data": msgspec.Raw(message.body),
            }
        )


def checked_headers(sink: str, headers: object, cloudevents: str | None) -> dict[str, str]:
    """Return the headers of a configuration, with lower-case names.

    Raises:
        ConfigError: a name or a value is refused. The message does not repeat a value, which may be
            a secret.
    """
    if not isinstance(headers, Mapping):
        raise ConfigError(f"sink {sink}: headers", f"is {shown(headers)}, not a mapping")
    found = {}
    for name, value in headers.items():
        if not isinstance(name, str) or not _TOKEN.fullmatch(name):
            raise ConfigError(
                f"sink {sink}: headers", f"has the name {shown(name)}, which HTTP does not allow"
            )
        low = name.lower()
        if low == "authorization":
            raise ConfigError(
                f"sink {sink}: headers", "has authorization", hint='Use auth="env:NAME" instead.'
            )
        is_event = cloudevents is not None and (low.startswith("ce-") or low == "content-type")
        if low in _RESERVED or low.startswith("forebay-") or is_event:
            raise ConfigError(f"sink {sink}: headers", f"has {low}, which the sink sets")
        if not isinstance(value, str) or not is_header_value(value):
            raise ConfigError(
                f"sink {sink}: headers", f"has a value for {low} that HTTP does not allow"
            )
        found[low] = value
    return found


def is_header_value(value: str) -> bool:
    """Return whether HTTP can carry a value unchanged: without control characters, and without
    space at its ends.
    """
    return _CONTROL.search(value) is None and value == value.strip() and _is_unicode(value)


def percent_encoded(value: str) -> str:
    """Return a value as CloudEvents and our headers carry it: space, quote, percent and all but
    visible ASCII as %XX.

    >>> percent_encoded("order.created"), percent_encoded('Süd "1"')
    ('order.created', 'S%C3%BCd%20%221%22')
    """
    return quote(value, safe="!#$&'()*+,-./:;<=>?@[\\]^_`{|}~", errors="replace")


def _of_job(message: Message, reserved: tuple[str, ...]) -> dict[str, str]:
    """Return the headers of a job, without those of the sink, and the metadata of the message."""
    reserved = ("ce-", "forebay-", *reserved)
    found = {}
    for name, value in message.headers.items():
        low = name.lower()
        if low in _RESERVED or low in _OF_THE_SINK or low.startswith(reserved):
            continue
        if not _TOKEN.fullmatch(name) or not is_header_value(value):
            raise UnsendableHeader(f"HTTP cannot carry the header {shown(name)} of the job")
        found[low] = value
    metadata = msgspec.structs.replace(message, headers={}).metadata()
    return found | {name: percent_encoded(value) for name, value in metadata.items()}


def _is_unicode(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True
