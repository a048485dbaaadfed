"""Tokens of OAuth 2.0 for an HTTP sink, by the grant client credentials (RFC 6749, section 4.4)."""

from __future__ import annotations

import asyncio
import base64
import math
import re
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote_plus, urlencode

import msgspec

from forebay.errors import ConfigError, shown
from forebay.sinks._destination import BlockedAddress, Destinations
from forebay.sinks._http_login import (
    Login,
    Reveal,
    check_needed,
    check_together,
    revealed,
)
from forebay.sinks._secrets import Secret, checked_secret, is_reference
from forebay.sinks._support import checked_choice, checked_name

if TYPE_CHECKING:
    from forebay.sinks._http_client import Response, Session

#: How much of an answer of the token endpoint is read.
ANSWER_BYTES_MAX: Final = 65_536

#: A token is renewed that long before it ends, or a tenth of its life if that is shorter.
_MARGIN_SECONDS: Final = 60.0

#: A token that is younger is not renewed after a 401, and a renewal that failed is not repeated
#: sooner while the token before it is still good.
_FRESH_SECONDS: Final = 5.0

_TEXT_MAX: Final = 1000
_TOKEN: Final = re.compile(r"[!-~]{1,16384}")
_SCOPE: Final = re.compile(r"(?=.{1,1000}\Z)[!#-\[\]-~]+(?: [!#-\[\]-~]+)*")

#: The errors of the RFCs 6749 and 8707. Other texts of an answer are not shown: it might repeat the
#: secret.
_ERRORS: Final = (
    "access_denied", "invalid_client", "invalid_grant", "invalid_request", "invalid_scope",
    "invalid_target", "server_error", "temporarily_unavailable", "unauthorized_client",
    "unsupported_grant_type",
)  # fmt: skip


class NoToken(Exception):  # noqa: N818 - says what happened
    """There is no token now. The message is a reason without secrets.

    Attributes:
        is_blocked: the token endpoint may not be called.
    """

    def __init__(self, reason: str, *, is_blocked: bool = False) -> None:
        super().__init__(reason)
        self.is_blocked = is_blocked


class Tokens(Login):
    """The token of an endpoint, in this process.

    Invariant "one request for a token at a time": all sends that need one wait for the same
    request, and get its answer or its failure. A send that ends before does not end it. A token
    that is about to end is renewed while it is still used.

    A crash leaves nothing: the next process asks for a token.

    Args:
        settings: by name: token_url, client_id, client_secret, scope, audience, token_auth.
        destinations: which addresses may be called, also for tokens.
        clock: a monotonic clock in seconds.

    Raises:
        ConfigError: a setting is refused.

    Attributes:
        endpoint: the token endpoint.
        session: its connections; None: closed.
        seconds: how long a request and its answer may take.
    """

    def __init__(
        self,
        settings: Mapping[str, Any],
        destinations: Destinations,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__()
        try:
            self.endpoint = destinations.parse(settings["token_url"])
        except ConfigError as error:
            raise ConfigError("sink http: token_url", error.problem, hint=error.hint) from None
        self._client_id = _checked_id(settings["client_id"])
        self._client_secret = checked_secret("sink http: client_secret", settings["client_secret"])
        self._is_basic = _checked_way(settings["token_auth"]) == "basic"
        self._form = {"grant_type": "client_credentials"}
        if settings["scope"] is not None:
            self._form["scope"] = _checked_scope(settings["scope"])
        if settings["audience"] is not None:
            self._form["audience"] = _checked_text("audience", settings["audience"])
        self.session: Session | None = None
        self.seconds = 15.0
        self._clock = clock
        self._credentials = ("", "")
        self._token: str | None = None
        self._fetched_at = self._renew_at = self._ends_at = -math.inf
        self._fetching: asyncio.Task[None] | None = None

    async def read(self, reveal: Reveal) -> None:
        """Read id and secret. A token that was given for others is forgotten."""
        client_id = self._client_id
        if isinstance(client_id, Secret) or is_reference(client_id):
            client_id = revealed(reveal, "client_id", client_id)
        credentials = (client_id, revealed(reveal, "client_secret", self._client_secret))
        if credentials != self._credentials:
            self._token = None
        self._credentials = credentials

    async def close(self) -> None:
        """End the request for a token, and close its connections. The token stays."""
        task, self._fetching = self._fetching, None
        if task is not None:
            task.cancel()
            await asyncio.wait({task})
        session, self.session = self.session, None
        if session is not None:
            await session.close()

    async def headers(
        self, headers: Mapping[str, str], body: bytes, seconds: float
    ) -> Mapping[str, str]:
        """Return the header with the token.

        Raises:
            NoToken: there is none.
            SessionClosed: ``close`` was called meanwhile.
        """
        del headers, body
        now = self._clock()
        if self._token is None or now >= self._ends_at:
            await self._wait(seconds)
        elif now >= self._renew_at:
            self._begin()
        return {"authorization": f"Bearer {self._token}"}

    def renews(self, headers: Mapping[str, str]) -> bool:
        """Forget the token, unless it is a newer one, or so fresh that the next is no better."""
        if headers.get("authorization") == f"Bearer {self._token}":
            if self._clock() - self._fetched_at < _FRESH_SECONDS:
                return False
            self._token = None
        return True

    def refusal(self, response: Response) -> str | None:
        """Return the reason if the endpoint does not accept the token."""
        return "the endpoint refuses the token: HTTP status 401" if response.status == 401 else None

    # --- the request for a token ---

    def _begin(self) -> asyncio.Task[None]:
        if self._fetching is None:
            self._fetching = asyncio.get_running_loop().create_task(self._fetch())
            self._fetching.add_done_callback(self._end)
        return self._fetching

    def _end(self, task: asyncio.Task[None]) -> None:
        if self._fetching is task:
            self._fetching = None
        if not task.cancelled() and task.exception() is not None:
            self._renew_at = self._clock() + _FRESH_SECONDS

    async def _wait(self, seconds: float) -> None:
        from forebay.sinks._http_client import SessionClosed  # noqa: PLC0415 - an extra

        task = self._begin()
        done, _ = await asyncio.wait({task}, timeout=max(0.0, seconds))
        if not done:
            raise NoToken(f"the token endpoint did not answer within {max(0.0, seconds):.3g} s")
        if task.cancelled():
            raise SessionClosed
        task.result()

    async def _fetch(self) -> None:
        from forebay.sinks._http_client import NoAnswer, SessionClosed  # noqa: PLC0415 - an extra

        if self.session is None:
            raise SessionClosed
        headers, body = self._request()
        try:
            response = await self.session.send(self.endpoint, headers, body, self.seconds)
        except BlockedAddress as error:
            raise NoToken(f"token_url: {error}", is_blocked=True) from None
        except NoAnswer as error:
            raise NoToken(f"the token endpoint: {error}") from None
        token, life = _read_answer(response)
        self.hidden = [*self.hidden[-1:], token]  # an answer may still show the token before
        self._token = token
        self._fetched_at = self._clock()
        self._ends_at = self._fetched_at + life
        self._renew_at = self._ends_at - min(_MARGIN_SECONDS, life / 10)

    def _request(self) -> tuple[dict[str, str], bytes]:
        headers = {
            "accept": "application/json",
            "content-type": "application/x-www-form-urlencoded",
        }
        form = dict(self._form)
        client_id, secret = self._credentials
        if self._is_basic:
            # RFC 6749, 2.3.1: both are encoded as in a form before they are joined.
            pair = f"{quote_plus(client_id)}:{quote_plus(secret)}"
            headers["authorization"] = "Basic " + base64.b64encode(pair.encode()).decode()
        else:
            form |= {"client_id": client_id, "client_secret": secret}
        return headers, urlencode(form).encode()


def _read_answer(response: Response) -> tuple[str, float]:
    """Return the token, and the seconds of its life; infinite if that was not told.

    Raises:
        NoToken: there is none in the answer.
    """
    try:
        found = msgspec.json.decode(response.body)
    except (msgspec.DecodeError, ValueError, RecursionError):
        found = None
    if response.status != 200:
        raise NoToken(
            _refusal(response.status, found.get("error") if type(found) is dict else None)
        )
    if type(found) is not dict:
        raise NoToken("the token endpoint answered something else than a JSON object")
    token, kind = found.get("access_token"), found.get("token_type", "bearer")
    if not isinstance(token, str) or not _TOKEN.fullmatch(token):
        raise NoToken("the token endpoint answered without a usable access_token")
    if not isinstance(kind, str) or kind.lower() != "bearer":
        raise NoToken("the token endpoint answered with another token_type than Bearer")
    return token, _life(found.get("expires_in"))


def _refusal(status: int, error: object) -> str:
    code = f" ({error})" if error in _ERRORS else ""
    if error in ("invalid_client", "unauthorized_client") or (status == 401 and not code):
        return f"the token endpoint refuses client_id and client_secret: HTTP status {status}{code}"
    if 300 <= status <= 399:
        code = ": redirect, which is not followed"
    return f"the token endpoint answered HTTP status {status}{code}"


def _life(value: object) -> float:
    """Return ``expires_in``; some servers write it as a text."""
    if isinstance(value, bool):
        return math.inf
    try:
        life = float(value)  # type: ignore[arg-type]  # the rest is caught
    except (TypeError, ValueError, OverflowError):
        return math.inf
    return math.inf if math.isnan(life) else max(0.0, life)


#: The settings of a token, apart from its address.
TOKEN_SETTINGS: Final = ("client_id", "client_secret", "scope", "audience", "token_auth")


def check_tokens(given: Mapping[str, object]) -> None:
    """Check which settings of tokens are given.

    Raises:
        ConfigError: one has no meaning, or one is missing.
    """
    check_together(given, "token_url", *TOKEN_SETTINGS)
    check_needed(given, "token_url", "client_id", "client_secret")


def _checked_id(value: object) -> str | Secret:
    return value if isinstance(value, Secret) else _checked_text("client_id", value)


def _checked_text(field: str, value: object) -> str:
    text = checked_name("http", field, value)
    if len(text) > _TEXT_MAX:
        raise ConfigError(f"sink http: {field}", f"is longer than {_TEXT_MAX:,} characters")
    return text


def _checked_way(value: object) -> str:
    return checked_choice(
        "http", "token_auth", "basic" if value is None else value, "basic", "body"
    )


def _checked_scope(value: object) -> str:
    if not isinstance(value, str) or not _SCOPE.fullmatch(value):
        raise ConfigError(
            "sink http: scope",
            f"is {shown(value)}, not names of ASCII characters with one space between them",
        )
    return value
