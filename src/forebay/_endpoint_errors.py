"""Errors of endpoints."""

# ruff: noqa: N818 - as in forebay.errors
from __future__ import annotations

from forebay._error import ForebayError


class EndpointError(ForebayError):
    """An endpoint cannot be used or changed as requested."""

    template = "endpoint {endpoint!r}"
    endpoint: str | None


class EndpointNotFound(EndpointError):
    """No endpoint has the name."""

    sqlstate = "JQ050"
    template = "endpoint {endpoint!r} not found"


class EndpointExists(EndpointError):
    """An endpoint has the name already."""

    sqlstate = "JQ051"
    template = "endpoint {endpoint!r} exists already"


class EndpointDisabled(EndpointError):
    """The endpoint is disabled: nothing is sent to it, and nothing was written."""

    sqlstate = "JQ052"
    template = "endpoint {endpoint!r} is disabled[: {why}]"
    why: str | None = None  # as the operator, or the rule that disabled it, said


class EndpointInUse(EndpointError):
    """Deliveries wait for the endpoint that should be dropped."""

    sqlstate = "JQ053"
    template = "endpoint {endpoint!r} has {waiting} waiting deliveries"
    waiting: int | None = None
