"""How an HTTP sink proves to an endpoint who it is, beside TLS: one of several ways."""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, ClassVar, TypeAlias

from forebay.errors import ConfigError
from forebay.sinks._http_request import is_header_value
from forebay.sinks._secrets import Secret, checked_secret

if TYPE_CHECKING:
    from forebay.sinks._http_client import Response

#: Reads the secret of a field, and hides it in reasons.
Reveal: TypeAlias = "Callable[[str, str | Secret], str]"


class BadSecret(ValueError):  # noqa: N818 - says what happened
    """A secret has another form. The message begins with its field, and does not repeat it."""


def revealed(reveal: Reveal, field: str, secret: str | Secret) -> str:
    """Return a secret of a login.

    Raises:
        SinkUnavailable, BadSecret: it cannot be used, which an operator can mend.
    """
    text = reveal(field, secret).strip()
    if not is_header_value(text):
        raise BadSecret(f"{field}: the secret has control characters")
    return text


class Login:
    """A way to log in; this one shows nothing.

    Attributes:
        hidden: texts that no reason may contain, beside those that were revealed.
        reserved: how names of headers begin that jobs cannot set.
    """

    reserved: ClassVar[tuple[str, ...]] = ()

    def __init__(self) -> None:
        self.hidden: list[str] = []

    async def read(self, reveal: Reveal) -> None:
        """Read what is referenced.

        Raises:
            SinkUnavailable, BadSecret: it cannot be used, which an operator can mend.
        """

    async def headers(
        self, headers: Mapping[str, str], body: bytes, seconds: float
    ) -> Mapping[str, str]:
        """Return the headers that log in one try of a request.

        Args:
            headers: the others of the request.
            body: of the request.
            seconds: how long this may take.
        """
        del headers, body, seconds
        return {}

    def renews(self, headers: Mapping[str, str]) -> bool:
        """Take the news that the endpoint did not accept these headers (401); return whether the
        next try has others.
        """
        del headers
        return False

    def refusal(self, response: Response) -> str | None:
        """Return the reason if an answer refuses this login, whatever the message; else None."""
        del response
        return None


class Authorization(Login):
    """The header Authorization, with the scheme basic or bearer.

    Args:
        value: a reference to "bearer TOKEN" or "basic USER:PASSWORD"; the scheme may stand before
            the reference.

    Raises:
        ConfigError: it is something else.
    """

    def __init__(self, value: str | Secret) -> None:
        super().__init__()
        self._scheme: str | None = None
        reference: str | Secret = value
        if isinstance(value, str):
            scheme, space, rest = value.partition(" ")
            if space and scheme.lower() in ("bearer", "basic"):
                self._scheme, reference = scheme.lower(), rest
        self._reference = checked_secret("sink http: auth", reference)
        self._header = ""

    async def read(self, reveal: Reveal) -> None:
        """Read the secret."""
        text = revealed(reveal, "auth", self._reference)
        scheme = self._scheme
        if scheme is None:
            scheme, _, text = text.partition(" ")
            scheme, text = scheme.lower(), text.strip()
        if scheme == "bearer" and text:
            self.hidden = [text]
            header = f"Bearer {text}"
        elif scheme == "basic" and ":" in text:
            encoded = base64.b64encode(text.encode()).decode()
            self.hidden = [encoded, text.partition(":")[2]]
            header = f"Basic {encoded}"
        else:
            raise BadSecret("auth: the secret is neither bearer TOKEN nor basic USER:PASSWORD")
        self._header = header

    async def headers(
        self, headers: Mapping[str, str], body: bytes, seconds: float
    ) -> Mapping[str, str]:
        """Return the header."""
        del headers, body, seconds
        return {"authorization": self._header}


def check_together(given: Mapping[str, object], first: str, *others: str) -> None:
    """Check that settings which belong to another one are given with it only.

    Args:
        given: settings by name; None: not given.
        first: the other one.
        others: the settings.

    Raises:
        ConfigError: one is given alone.
    """
    for name in others:
        if given[name] is not None and given[first] is None:
            raise ConfigError(f"sink http: {name}", f"has no meaning without {first}")


def check_needed(given: Mapping[str, object], first: str, *others: str) -> None:
    """Check that a setting has the others that it needs.

    Raises:
        ConfigError: one is missing.
    """
    for name in others:
        if given[first] is not None and given[name] is None:
            raise ConfigError(
                f"sink http: {name}", f"is missing: {first} needs it", hint=f"Give {name}."
            )
