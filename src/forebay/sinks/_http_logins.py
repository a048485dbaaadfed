"""The ways in which an HTTP sink can log in, and which of them exclude each other."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from forebay.errors import ConfigError
from forebay.sinks._destination import Destinations, Endpoint
from forebay.sinks._http_aws import SIGNED_HEADERS, AwsSignature, check_aws
from forebay.sinks._http_login import Authorization, Login
from forebay.sinks._http_token import Tokens, check_tokens

#: The settings of which each stands for one way.
_WAYS: Final = ("auth", "token_url", "aws_service")


def make_login(
    given: Mapping[str, Any],
    destinations: Destinations,
    endpoint: Endpoint,
    method: str,
    headers: Mapping[str, str],
) -> Login:
    """Return how a sink logs in; without a setting it does not.

    ``forebay._http_login_problems()`` has the same rules in SQL; a test compares them.

    Args:
        given: all settings of all ways; None: not given.
        destinations: which addresses may be called.
        endpoint: where to.
        method: of HTTP.
        headers: of the configuration, with lower-case names.

    Raises:
        ConfigError: a setting is refused, or they contradict each other.
    """
    ways = [name for name in _WAYS if given[name] is not None]
    if len(ways) > 1:
        raise ConfigError(
            f"sink http: {ways[1]}", f"excludes {ways[0]}", hint="Give one of the two."
        )
    check_tokens(given)
    check_aws(given)
    match ways:
        case ["auth"]:
            return Authorization(given["auth"])
        case ["token_url"]:
            return Tokens(given, destinations)
        case ["aws_service"]:
            for name in headers:
                if name in SIGNED_HEADERS:
                    raise ConfigError("sink http: headers", f"has {name}, which the signature sets")
            return AwsSignature(given, method, f"{endpoint.place}{endpoint.target}")
    return Login()
