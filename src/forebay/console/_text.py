"""Values as people read them, for the templates."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from markupsafe import Markup

from forebay.errors import ConfigError, shown
from forebay.model.status import shown_args
from forebay.model.text import (
    attempt_of,
    call_text,
    counted,
    human_bytes,
    replaced_controls,
    sentence,
)
from forebay.policy.retry import human_distance, human_duration

if TYPE_CHECKING:
    from collections.abc import Sequence

_WIDTH: Final = 120
_HEIGHT: Final = 24


def number(value: float | None) -> str:
    """Return a number with separators; ``-`` for None. Integers are exact, whatever their size.

    >>> number(12345678901234567890), number(0.125), number(None)
    ('12,345,678,901,234,567,890', '0.125', '-')
    """
    if value is None:
        return "-"
    return f"{value:,}" if isinstance(value, int) else f"{value:,.3g}"


def rate(value: float | None) -> str:
    """Return a number a second with two decimals at most; ``-`` for None.

    >>> rate(0.0), rate(0.002), rate(0.893), rate(4.125), rate(1234.5)
    ('0', '< 0.01', '0.89', '4.12', '1,234')
    """
    if not value:
        return "-" if value is None else "0"
    if value < 0.005:
        return "< 0.01"
    return f"{value:.2f}" if value < 10 else f"{value:.1f}" if value < 100 else f"{value:,.0f}"


def duration(seconds: float | None) -> str:
    """Return a duration in its largest fitting unit; ``-`` for None."""
    return "-" if seconds is None else human_duration(max(0.0, seconds))


def instant(value: datetime | float | None) -> Markup:
    """Return an instant as its distance from now, with the time itself on hover; ``-`` for None.

    The script of the console shows it in the reader's zone; without a script it is UTC.
    """
    if value is None:
        return Markup("-")
    at = value if isinstance(value, datetime) else datetime.fromtimestamp(value, UTC)
    at = at.astimezone(UTC)
    text = human_distance((datetime.now(UTC) - at).total_seconds())
    return Markup('<time datetime="{}" title="{}">{}</time>').format(at.isoformat(), utc(at), text)


def utc(value: datetime) -> str:
    """Return an instant in UTC, to the second."""
    return value.astimezone(UTC).isoformat(sep=" ", timespec="seconds").replace("+00:00", " UTC")


def instant_of(text: str, name: str) -> datetime:
    """Return the instant of a text in ISO 8601; without an offset it is UTC.

    Raises:
        ConfigError: it is none.
    """
    try:
        at = datetime.fromisoformat(text)
        return (at if at.tzinfo else at.replace(tzinfo=UTC)).astimezone(UTC)
    except (ValueError, OverflowError):
        raise ConfigError(
            name, f"is {shown(text)}, not a time", hint="As 2026-11-29 or 2026-11-29T14:30."
        ) from None


def short_json(value: Any, most: int = 80) -> str:
    """Return a value as one line of JSON, cut at some characters; ``-`` for none."""
    if value is None or value in ({}, []):
        return "-"
    text = json.dumps(value, ensure_ascii=False, separators=(", ", ": "), default=str)
    return text if len(text) <= most else f"{text[: most - 1]}…"


def long_json(value: Any) -> str:
    """Return a value as indented JSON."""
    return json.dumps(value, ensure_ascii=False, indent=2, default=str)


def coded(text: str) -> Markup:
    """Return a text whose parts between backticks are code.

    >>> coded("see `f <x>`"), coded("it`s")
    (Markup('see <code>f &lt;x&gt;</code>'), Markup('it`s'))
    """
    parts = replaced_controls(text).split("`")
    if len(parts) % 2 == 0:
        return Markup("{}").format("`".join(parts))
    code = Markup("<code>{}</code>")
    return Markup("").join(
        code.format(part) if place % 2 else part for place, part in enumerate(parts)
    )


def sparkline(
    values: Sequence[float | None], title: str, others: Sequence[float | None] = ()
) -> Markup:
    """Return a curve of values, oldest first, as a picture with its title; empty for none.

    ``others`` is a second curve on the same scale, as long as the first.
    """
    known = [value for value in values if value is not None]
    if len(known) < 2:
        return Markup("")
    top = max(*known, *(value for value in others if value is not None)) or 1.0
    return Markup(
        '<svg class="spark" viewBox="0 0 {} {}" preserveAspectRatio="none" role="img"'
        ' aria-label="{}"><title>{}</title>{}<polyline points="{}"/></svg>'
    ).format(
        _WIDTH,
        _HEIGHT,
        title,
        title,
        Markup('<polyline class="other" points="{}"/>').format(_points(others, top))
        if others
        else "",
        _points(values, top),
    )


def _points(values: Sequence[float | None], top: float) -> str:
    step = _WIDTH / (len(values) - 1)
    return " ".join(
        f"{place * step:.1f},{_HEIGHT - 1 - value / top * (_HEIGHT - 2):.1f}"
        for place, value in enumerate(values)
        if value is not None
    )


#: The filters of the templates.
FILTERS: Final = {
    "number": number,
    "rate": rate,
    "duration": duration,
    "instant": instant,
    "utc": utc,
    "json": short_json,
    "long_json": long_json,
    "bytes": lambda value: "-" if value is None else human_bytes(value),
    "plain": replaced_controls,
    "coded": coded,
    "sentence": sentence,
    "attempt_of": attempt_of,
}

#: The functions of the templates.
FUNCTIONS: Final = {
    "args_of": shown_args,
    "call": call_text,
    "counted": counted,
    "sparkline": sparkline,
}
