"""What a message may add to the address of its endpoint: a path that only goes down.

Invariant "a message names no other place": a role that may send to an endpoint must not choose what
is called. Only characters are allowed that every server reads as themselves, in parts between
single slashes, of which none is of dots only. So no part of a suffix is a scheme, a host, a query
or a step up, also for a server that decodes twice, takes a backslash for a slash, or joins slashes.
SQL has the same rule in ``forebay._is_url_suffix``.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Final

from forebay.sinks._destination import Endpoint

_CHARACTERS_MAX: Final = 500
_SUFFIX: Final = re.compile(r"(?:/(?!\.+(?:/|\Z))[A-Za-z0-9._~:,=+-]+)+/?")


def is_suffix(value: object) -> bool:
    """Return whether a value is a path that only goes down.

    >>> is_suffix("/orders/7:cancel"), is_suffix("/orders/../admin"), is_suffix("/a%2e%2e/b")
    (True, False, False)
    """
    return (
        isinstance(value, str)
        and len(value) <= _CHARACTERS_MAX
        and _SUFFIX.fullmatch(value) is not None
    )


def below(endpoint: Endpoint, suffix: str) -> Endpoint:
    """Return an endpoint with a suffix behind its path and before its query.

    >>> from forebay.sinks._destination import parse_endpoint
    >>> below(parse_endpoint("https://a.example/hooks/?key=1"), "/orders/7").target
    '/hooks/orders/7?key=1'
    """
    path, mark, query = endpoint.target.partition("?")
    return replace(endpoint, target=f"{path.removesuffix('/')}{suffix}{mark}{query}")
