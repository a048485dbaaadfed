"""Which redirects of an HTTP endpoint are followed.

Invariant "accepted means the message": only what sends the same method and the same body again is
followed, so that an answer of 2xx is about the message. Invariant "a redirect leads where a row
may": each address of a redirect passes the same door as that of an endpoint, and each connection
the same check.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final
from urllib.parse import urldefrag, urljoin

from forebay.errors import ConfigError, shown
from forebay.model.text import logger
from forebay.sinks._destination import (
    BlockedAddress,
    Destinations,
    Endpoint,
    Rule,
    is_plain,
    rule_of,
)
from forebay.sinks._support import checked_integer

if TYPE_CHECKING:
    from forebay.sinks._http_client import Response, Session

log = logger("forebay.sinks")

#: With these a method and its body are the same at the new address.
_SAME: Final = (307, 308)
#: With these everything but GET becomes GET, without a body.
_BECOMES_GET: Final = (301, 302, 303)

_HOSTS_MAX: Final = 20

#: A scheme without a host, which programs read in different ways.
_SCHEME_ONLY: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:(?!//)")

_NOT_ALLOWED: Final = "its address is malformed or not allowed"


class RedirectRefused(Exception):  # noqa: N818 - says what happened
    """A redirect is not followed. The message does not repeat its address.

    Attributes:
        status: of the answer.
    """

    def __init__(self, status: int, why: str) -> None:
        super().__init__(
            f"HTTP status {status}: redirect, which is not followed" + (f": {why}" if why else "")
        )
        self.status = status


class Redirects:
    """Sends requests, and follows redirects by the rules of one sink.

    Args:
        most: how many redirects of one request are followed, 0 to 10.
        hosts: where they may lead besides the place of the endpoint, at most 20, in the form of
            ``Destinations``.
        method: of the requests.
        destinations: which addresses may be called.

    Raises:
        ConfigError: an argument is refused.
    """

    def __init__(
        self,
        most: int,
        hosts: Iterable[str] | None,
        *,
        method: str,
        destinations: Destinations,
    ) -> None:
        self._most = checked_integer("http", "redirects", most, least=0, most=10)
        self._hosts = _checked_hosts(hosts)
        if self._hosts and not self._most:
            raise ConfigError("sink http: redirect_hosts", "has no meaning without redirects")
        self._method = method
        self._destinations = destinations

    async def send(
        self,
        session: Session,
        endpoint: Endpoint,
        headers: Mapping[str, str],
        body: bytes,
        seconds: float,
        *,
        for_others: Mapping[str, str],
    ) -> Response:
        """Send a request, and once more for each redirect that is followed.

        Return the last answer.

        Args:
            session: what sends.
            endpoint: where to.
            headers: for the place of the endpoint.
            body: what is sent.
            seconds: how long all of it may take.
            for_others: the headers for other places, and for what comes after one: without secrets.

        Raises:
            BlockedAddress: the endpoint may not be called; nothing was sent.
            NoAnswer: there was no connection, or no complete answer in time.
            SessionClosed: the session was closed.
            RedirectRefused: a redirect is not followed.
        """
        from forebay.sinks._http_client import NoAnswer  # noqa: PLC0415 - an extra

        until = time.monotonic() + seconds
        here, followed = endpoint, 0
        response = await session.send(here, headers, body, seconds)
        while 300 <= response.status <= 399:
            here = self._next(endpoint, here, response, followed)
            followed += 1
            if here.place != endpoint.place:
                headers = for_others
            left = max(0.1, until - time.monotonic())
            try:
                response = await session.send(here, headers, body, left)
            except NoAnswer as error:
                raise NoAnswer(f"after a redirect: {error}") from None
            except BlockedAddress as error:
                # Unlike that of the endpoint, this address is none that an operator wrote.
                log.warning("sink http: a redirect of %s is blocked: %s", endpoint.place, error)
                raise RedirectRefused(response.status, _NOT_ALLOWED) from None
        return response

    def _next(
        self, origin: Endpoint, here: Endpoint, response: Response, followed: int
    ) -> Endpoint:
        """Return where a redirect leads.

        Raises:
            RedirectRefused: it is not followed.
        """
        found, why = None, ""
        if self._most:
            found, why = self._target(here, response)
        if found is None:
            raise RedirectRefused(response.status, why)
        if followed == self._most:
            why = f"there were {followed} before it"
        elif found.place != origin.place:
            if origin.scheme == "https" and found.scheme != "https":
                why = "it leads from https to http"
            elif not any(one.matches(found.host, found.address, found.port) for one in self._hosts):
                why = "redirect_hosts does not list its host"
        if why:
            raise RedirectRefused(response.status, why)
        return found

    def _target(self, here: Endpoint, response: Response) -> tuple[Endpoint | None, str]:
        """Return the address of a redirect, or None and why it is none."""
        location = response.location
        if response.status in _BECOMES_GET and self._method != "GET":
            return None, "it would drop the body of the message"
        if response.status not in (*_SAME, *_BECOMES_GET) or not location:
            return None, "it names no address"
        if not is_plain(location) or _SCHEME_ONLY.match(location):
            return None, _NOT_ALLOWED
        try:
            url = urldefrag(urljoin(f"{here.place}{here.target}", location)).url
            return self._destinations.parse(url), ""
        except (ConfigError, ValueError):
            return None, _NOT_ALLOWED


def _checked_hosts(hosts: Iterable[str] | None) -> list[Rule]:
    if hosts is not None and (isinstance(hosts, str) or not isinstance(hosts, Iterable)):
        raise ConfigError("sink http: redirect_hosts", f"is {shown(hosts)}, not a list")
    entries = list(hosts or ())
    if len(entries) > _HOSTS_MAX or not all(isinstance(one, str) for one in entries):
        raise ConfigError(
            "sink http: redirect_hosts", f"is not a list of at most {_HOSTS_MAX} hosts"
        )
    return [rule_of("redirect_hosts", one) for one in entries]
