"""The time that the curves of a page show, as its address says it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from forebay.console._request import instant_in, text_in
from forebay.errors import ConfigError

if TYPE_CHECKING:
    from starlette.requests import Request

    from forebay.model.stats import StatsStep

#: Times up to now, each with the step of its samples.
SPANS: Final[dict[str, tuple[Any, timedelta]]] = {
    "hour": ("minute", timedelta(hours=1)),
    "day": ("minute", timedelta(days=1)),
    "month": ("hour", timedelta(days=30)),
}

#: The finest steps first: how long each is kept, and the longest range of which it makes curves.
_STEPS: Final[tuple[tuple[StatsStep, timedelta, timedelta], ...]] = (
    ("second", timedelta(hours=1), timedelta(minutes=10)),
    ("minute", timedelta(days=7), timedelta(days=2)),
    ("hour", timedelta(days=366), timedelta(days=366)),
)


class Window(NamedTuple):
    """The time that curves show.

    Attributes:
        span: hour, day or month, up to now; empty: from one time to another.
        step: of its samples.
        until: None: now.
    """

    span: str
    step: StatsStep
    since: datetime
    until: datetime | None

    def moved(self, begin: float, end: float) -> dict[str, str]:
        """Return another window, by its ends in lengths of this one, as a part of an address."""
        until = self.until or datetime.now(UTC)
        length = until - self.since
        ends = {"since": self.since + begin * length, "until": self.since + end * length}
        return {name: at.isoformat(timespec="milliseconds") for name, at in ends.items()}


def window_of(request: Request) -> Window:
    """Return the time that an address asks for: a span, or what a person zoomed into."""
    now = datetime.now(UTC)
    since, until = instant_in(request, "since"), instant_in(request, "until")
    if since is None and until is None:
        span = text_in(request, "span") or "hour"
        if span not in SPANS:
            raise ConfigError("span", f"is {span!r}, not one of {', '.join(SPANS)}")
        step, length = SPANS[span]
        return Window(span, step, now - length, None)
    longest = _STEPS[-1][1]
    until = now if until is None else min(now, max(until, now - longest))
    since = until - timedelta(hours=1) if since is None else max(since, now - longest)
    if since >= until:
        raise ConfigError("since", "is not before until, or not in the past")
    step = next(
        (step for step, kept, most in _STEPS if since > now - kept and until - since <= most),
        _STEPS[-1][0],
    )
    return Window("", step, since, until)
