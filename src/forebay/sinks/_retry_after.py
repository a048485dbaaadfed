"""The header Retry-After of an HTTP answer."""

from __future__ import annotations

from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Final

#: The longest wait that an endpoint may choose.
RETRY_AFTER_SECONDS_MAX: Final = 86_400.0


def retry_after_seconds(value: str | None, now: datetime) -> float | None:
    """Return how long to wait: at most a day.

    The result is None if the header is missing, malformed or in the past.

    Args:
        value: the header: a number of seconds, or a date.
        now: the present time, with a time zone.

    >>> now = datetime(2026, 1, 1, tzinfo=UTC)
    >>> retry_after_seconds("120", now), retry_after_seconds("Thu, 01 Jan 2026 00:00:30 GMT", now)
    (120.0, 30.0)
    >>> retry_after_seconds("Fri, 31 Dec 9999 23:59:59 GMT", now), retry_after_seconds("soon", now)
    (86400.0, None)
    """
    text = (value or "").strip()
    if text.isascii() and text.isdigit():
        return min(float(text), RETRY_AFTER_SECONDS_MAX)
    try:
        at = parsedate_to_datetime(text)
        seconds = (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp() - now.timestamp()
    except (ArithmeticError, LookupError, TypeError, ValueError):
        return None
    return min(seconds, RETRY_AFTER_SECONDS_MAX) if seconds >= 0 else None
