"""Checks of input values: names, tags, instants, durations.

Each check returns the value, normalised where several forms are accepted, or raises
``InvalidJob`` with the name of the field. The SQL functions check the same limits for producers in
other languages; a test compares the numbers.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Final, TypeVar

from forebay.errors import InvalidJob, shown

#: Names of queues, kinds and groups: valid without quotes in a command line, a metric label
#: and a file name.
NAME_CHARACTERS_MAX: Final = 128
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_.:-]{0,127}")

TAG_CHARACTERS_MAX: Final = 200
CORRELATION_ID_CHARACTERS_MAX: Final = 200
ORDERING_KEY_CHARACTERS_MAX: Final = 200
LIMIT_KEY_CHARACTERS_MAX: Final = 200

#: The range of smallint, the column's type.
PRIORITY_MIN: Final = -32768
PRIORITY_MAX: Final = 32767
#: A lower number runs first: ``forebay.policy.claims`` decides, ``forebay.django.tasks`` turns
#: Django's numbers round.
PRIORITY_DEFAULT: Final = 100
#: The priority of work that may wait: backfills, repairs. SQL has the same number in
#: functions/backfill/options.sql, mirror/bulk.sql, mirror/status.sql.
PRIORITY_BULK: Final = 1000

MAX_ATTEMPTS_MAX: Final = 10_000

ARGS_BYTES_MAX: Final = 1_048_576
ARGS_DEPTH_MAX: Final = 64

HEADERS_COUNT_MAX: Final = 64
HEADERS_BYTES_MAX: Final = 8192

#: A hundred years, of 360 days, as PostgreSQL compares intervals. A longer delay is a wrong unit.
DELAY_SECONDS_MAX: Final = 100 * 360 * 86_400

#: The range of the SQL type ``integer``.
INTEGER_MIN: Final = -(2**31)
INTEGER_MAX: Final = 2**31 - 1
#: The largest number of the SQL type ``bigint``.
BIGINT_MAX: Final = 2**63 - 1

#: What to write instead of the names that Celery and other libraries have for an option.
INSTEAD: Final = {
    "acks_late": "nothing: a job is done only when its handler has returned",
    "autoretry_for": "retry=RetryPolicy(...): each exception is retried but those of permanent_on",
    "bind": "a first parameter annotated Context",
    "countdown": "delay=60",
    "default_retry_delay": "retry=RetryPolicy(base_seconds=...)",
    "eta": "run_at=...",
    "expires": "expires_in=...",
    "ignore_result": "keep_result=False, the default",
    "link": "on_done=..., a kind whose job follows each job that is done",
    "link_error": "on_dead=..., a kind whose job follows each dead letter",
    "job_timeout": "timeout=...",
    "max_retries": "max_attempts=..., which counts the first attempt, too",
    "queue_name": "queue=...",
    "rate_limit": "app.queue(name, rate=...), a limit of all workers together",
    "retries": "max_attempts=..., which counts the first attempt, too",
    "retry_backoff": "retry=RetryPolicy(strategy=...)",
    "retry_backoff_max": "retry=RetryPolicy(cap_seconds=...)",
    "retry_kwargs": "max_attempts=... and retry=RetryPolicy(...)",
    "scheduled_at": "run_at=...",
    "serializer": "nothing: arguments are JSON, by the types of the signature",
    "soft_time_limit": "soft_timeout=...",
    "task_id": "unique=Idempotent(...)",
    "time_limit": "timeout=...",
    "timeout_seconds": "timeout=...",
}

#: What PostgreSQL cannot store, or people cannot read: control characters and lone surrogates.
UNREADABLE: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]")


def plain_text(value: str) -> str:
    """Return a text as ``str`` itself: a declared queue, or a member of an enumeration, by value.

    ``str(value)`` is the name of the member, where JSON and the database have the value.

    >>> from enum import Enum
    >>> Region = Enum("Region", {"EU": "mail.eu"}, type=str)
    >>> plain_text(Region.EU)
    'mail.eu'
    """
    return value if type(value) is str else str.__str__(value)


def checked_name(value: object, field: str) -> str:
    """Return a queue, kind or group name.

    >>> checked_name("mail.eu", "queue")
    'mail.eu'
    """
    if not isinstance(value, str):
        raise _wrong_type(field, "text", value)
    if not _NAME.fullmatch(value):
        raise InvalidJob(
            field,
            f"is not a name: {shown(value)}",
            hint="Use a letter or _, then letters, digits and _ . : -, at most 128 characters.",
        )
    return plain_text(value)


def checked_text(value: object, field: str, *, characters_max: int) -> str:
    """Return free text without control characters or lone surrogates, of bounded length."""
    if not isinstance(value, str):
        raise _wrong_type(field, "text", value)
    if not value:
        raise InvalidJob(field, "is empty")
    if len(value) > characters_max:
        raise InvalidJob(field, f"has {len(value)} characters, the limit is {characters_max}")
    if UNREADABLE.search(value):
        raise InvalidJob(field, f"has a control character or a lone surrogate: {shown(value)}")
    return plain_text(value)


T = TypeVar("T")


def checked_items(items: Iterable[T], cls: type[T], field: str, what: str) -> list[T]:
    """Return the items of an argument as a list, all of one class.

    Raises:
        InvalidJob: one of them is something else.
    """
    found = list(items)
    for item in found:
        if not isinstance(item, cls):
            raise InvalidJob(field, f"has {shown(item)}, which is no {what}")
    return found


def checked_integer(value: object, field: str, *, least: int, most: int) -> int:
    """Return an integer within bounds; a bool is refused."""
    if not isinstance(value, int) or isinstance(value, bool):
        raise _wrong_type(field, "an integer", value)
    if not least <= value <= most:
        raise InvalidJob(field, f"is {shown(value)}, not within {least} to {most}")
    return value


def integer_or_none(value: int | None, field: str) -> int | None:
    """Return an integer that SQL takes as ``integer``, whose range the SQL function checks."""
    if value is None:
        return None
    return checked_integer(value, field, least=INTEGER_MIN, most=INTEGER_MAX)


def checked_instant(value: object, field: str) -> datetime:
    """Return an aware datetime that exists in UTC."""
    if not isinstance(value, datetime):
        raise _wrong_type(field, "a datetime", value)
    if value.utcoffset() is None:
        raise InvalidJob(
            field,
            f"has no time zone: {value.isoformat()}",
            hint="Use datetime.now(timezone.utc) or a zone from zoneinfo.",
        )
    try:
        value.astimezone(UTC)
    except OverflowError:
        raise InvalidJob(field, f"is out of range: {value.isoformat()}") from None
    return value


def instant_text(value: object, field: str) -> str | None:
    """Return an aware datetime as text for SQL; None stays None."""
    return None if value is None else checked_instant(value, field).isoformat()


def checked_seconds(value: object, field: str, *, most: float = DELAY_SECONDS_MAX) -> float:
    """Return a duration in seconds, finite and not negative, from a number of seconds or a
    timedelta.

    >>> checked_seconds(timedelta(minutes=2), "delay")
    120.0
    """
    if isinstance(value, timedelta):
        seconds = value.total_seconds()
    elif isinstance(value, int | float) and not isinstance(value, bool):
        try:
            seconds = float(value)
        except OverflowError:
            seconds = math.inf
    else:
        raise _wrong_type(field, "seconds or a timedelta", value)
    if not math.isfinite(seconds) or not 0 <= seconds <= most:
        raise InvalidJob(field, f"is {shown(value)}, not within 0 to {most:g} seconds")
    return seconds


def checked_delay(value: object, field: str = "delay") -> float:
    """Return a time from now in seconds; one before now is now.

    >>> checked_delay(timedelta(minutes=2)), checked_delay(-5)
    (120.0, 0.0)
    """
    seconds = value.total_seconds() if isinstance(value, timedelta) else value
    if isinstance(seconds, int | float) and -math.inf < seconds < 0:
        return 0.0
    return checked_seconds(value, field)


def checked_headers(value: object, field: str = "headers") -> Mapping[str, str]:
    """Return a copy of a mapping of text to text, bounded in number and in bytes."""
    if not isinstance(value, Mapping):
        raise _wrong_type(field, "a mapping of text to text", value)
    if len(value) > HEADERS_COUNT_MAX:
        raise InvalidJob(field, f"has {len(value)} entries, the limit is {HEADERS_COUNT_MAX}")
    value = {
        checked_text(name, f"{field} name", characters_max=HEADERS_BYTES_MAX): text
        if text == ""
        else checked_text(text, f"{field}[{shown(name)}]", characters_max=HEADERS_BYTES_MAX)
        for name, text in value.items()
    }
    # With the separators of PostgreSQL, so that both count the same text.
    size = len(json.dumps(value, ensure_ascii=False).encode())
    if size > HEADERS_BYTES_MAX:
        raise InvalidJob(field, f"has {size} bytes, the limit is {HEADERS_BYTES_MAX}")
    return value


def hint_for(name: str, options: Iterable[str]) -> str:
    """Return what to write instead of an unknown option.

    >>> hint_for("countdown", ["delay", "queue"])
    'Write delay=60.'
    >>> hint_for("priorty", ["delay", "priority"])
    'Do you mean priority? Options: delay, priority.'
    """
    options = sorted(options)
    instead = INSTEAD.get(name, "")
    head = instead.partition("=")[0]
    if instead and (head in options or not head.isidentifier()):
        return f"Write {instead}."
    if instead and head in ("delay", "run_at") and "retry" in options:  # a declaration
        return f"Write handler.using({instead}).enqueue(conn, ...)."
    import difflib  # noqa: PLC0415 - for a mistake only

    like = difflib.get_close_matches(name, options, n=1, cutoff=0.75)
    guess = f"Do you mean {like[0]}? " if like else ""
    return f"{guess}Options: {', '.join(options) or 'none'}."


def _wrong_type(field: str, wanted: str, value: object) -> InvalidJob:
    return InvalidJob(field, f"must be {wanted}, not {type(value).__name__}: {shown(value)}")
