"""The calls of an HTTP sink: what messages become, and what an answer means.

``forebay.sinks.http`` has the settings.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

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
from forebay.sinks._destination import BlockedAddress, Endpoint
from forebay.sinks._http_answer import answer_of
from forebay.sinks._http_request import Format, Request, UnsendableHeader
from forebay.sinks._http_token import NoToken
from forebay.sinks._redirects import RedirectRefused, Redirects
from forebay.sinks._secrets import is_reference
from forebay.sinks._suffix import below, is_suffix

if TYPE_CHECKING:
    from forebay.sinks._http_client import Response, Session
    from forebay.sinks._http_login import Login
    from forebay.sinks._signing import Signer

log = logger("forebay.sinks")

#: No request of a call begins later than this after the beginning of the call, so that a call ends
#: in time.
BEGIN_SECONDS: Final = 10.0

#: Statuses that one message of an array may have caused.
_OF_A_MESSAGE: Final = (400, 413, 422)

#: What a row may choose of the settings.
ROW_RULES: Final[Mapping[str, FromRow]] = {
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
    "cert_file": FromRow.FILE,
    "key_file": FromRow.FILE,
    "key_passphrase": FromRow.SECRETS,
    "pinned": FromRow.PLAIN,
    "token_url": FromRow.CHECKED_ADDRESS,
    "client_id": FromRow.SECRETS,
    "client_secret": FromRow.SECRETS,
    "scope": FromRow.PLAIN,
    "audience": FromRow.PLAIN,
    "token_auth": FromRow.PLAIN,
    "aws_service": FromRow.PLAIN,
    "aws_region": FromRow.PLAIN,
    "aws_key_id": FromRow.SECRETS,
    "aws_secret_key": FromRow.SECRETS,
    "aws_session_token": FromRow.SECRETS,
    "url_suffixes": FromRow.PLAIN,
    "timeout_max": FromRow.PLAIN,
    "redirects": FromRow.PLAIN,
    "redirect_hosts": FromRow.CHECKED_ADDRESS,
}


class Calls(Sink):
    """Calls an endpoint for messages, by settings that its subclass has checked."""

    _endpoint: Endpoint
    _seconds: float
    _seconds_max: float | None
    _takes_suffixes: bool
    _shows_response: bool
    _headers: Mapping[str, str]
    _format: Format
    _signer: Signer | None
    _login: Login
    _redirects: Redirects
    _session: Session | None
    _slots: asyncio.Semaphore
    _hidden: list[str]
    _hidden_before: list[str]

    @property
    def hidden_texts(self) -> list[str]:
        """Texts that no reason and no answer may contain."""
        return [*self._hidden_before, *self._hidden, *self._login.hidden]

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

    async def send_one(self, message: Message, begin_until: float) -> Answer:
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

    async def send_array(self, messages: Sequence[Message], begin_until: float) -> list[Answer]:
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
                *await self.send_array(messages[:middle], begin_until),
                *await self.send_array(messages[middle:], begin_until),
            ]
        return [answer] * len(messages)

    async def _send_request(
        self, request: Request, begin_until: float, endpoint: Endpoint, seconds: float
    ) -> tuple[Answer, int]:
        """Return the answer, and the status or 0."""
        from forebay.sinks._http_client import (  # noqa: PLC0415 - an extra
            CertificateRefused,
            NoAnswer,
            SessionClosed,
        )

        try:
            async with asyncio.timeout(max(0.0, begin_until - time.monotonic())):
                await self._slots.acquire()
        except TimeoutError:
            return self._unavailable(
                f"answers too slowly: a message was not sent within {BEGIN_SECONDS:g} s"
            ), 0
        begun = time.monotonic()
        # Those of this request: secrets may be read again before its answer.
        hidden = self.hidden_texts
        try:
            session = self._session
            if session is None:
                raise SessionClosed
            response = await self._exchange(session, request, endpoint, seconds)
        except BlockedAddress as error:
            return self._blocked("address", error), 0
        except NoToken as error:
            if error.is_blocked:
                return self._blocked("address of token_url", error), 0
            return self._unavailable(str(error)), 0
        except CertificateRefused as error:
            return self._unavailable(str(error)), 0
        except NoAnswer as error:
            return TryLater(str(error)), 0
        except RedirectRefused as error:
            return TryLater(str(error)), error.status
        except SessionClosed:
            return self._unavailable("the sink was closed"), 0
        finally:
            self._slots.release()
        refusal = self._login.refusal(response)
        if refusal is not None:
            return self._unavailable(refusal), 0
        answer = answer_of(
            response,
            time.monotonic() - begun,
            shows_body=self._shows_response,
            hidden=[*hidden, *self.hidden_texts],
        )
        return answer, response.status

    async def _exchange(
        self, session: Session, request: Request, endpoint: Endpoint, seconds: float
    ) -> Response:
        """Send a request, and once more if the endpoint wants a newer login."""
        headers = request.headers
        if self._signer is not None:
            now = int(time.time())
            headers = {**headers, **self._signer.headers(request.id, now, request.body)}
        until = time.monotonic() + seconds
        is_last = False
        while True:
            login = await self._login.headers(headers, request.body, until - time.monotonic())
            response = await self._redirects.send(
                session,
                endpoint,
                {**headers, **login},
                request.body,
                until - time.monotonic(),
                for_others=self._for_others(request),
            )
            is_late = is_last or time.monotonic() >= until
            if response.status != 401 or is_late or not self._login.renews(login):
                return response
            is_last = True

    def _blocked(self, what: str, error: Exception) -> Refused:
        log.warning("sink http: %s is blocked: %s", self.place, error)
        return Refused(
            f"{self.place}: blocked {what}, which the settings of this process do not allow"
        )

    def _for_others(self, request: Request) -> dict[str, str]:
        """Return the headers of a request for another place than that of the endpoint.

        They are those of the message: what the configuration adds may be a secret.
        """
        own = set(self._format.headers)
        if not is_reference(self._headers.get("content-type", "")):
            own.discard("content-type")
        return {name: value for name, value in request.headers.items() if name not in own}
