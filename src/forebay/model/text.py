"""Conversion of any text to a form that PostgreSQL can store, or that a terminal or a log line
can show.
"""

from __future__ import annotations

import json
import logging
import re
import signal
from collections.abc import Mapping
from typing import Any, Final

_ELLIPSIS: Final = " [...]"

#: What a terminal obeys instead of showing it: control characters except tab and line feed, the
#: marks that change the direction of text, and Unicode's separators of lines.
_UNSHOWABLE: Final = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]"
)
#: The same and the line feed, which would begin another line of a log.
_UNLOGGABLE: Final = re.compile(rf"{_UNSHOWABLE.pattern}|\n")

#: Words with which our sentences begin, and names of queues, jobs and workers seldom do.
_FIRST_WORDS: Final = frozenset(
    (
        *("a", "an", "another", "attempt", "dead", "endpoint", "it", "its", "job", "limit", "more"),
        *("no", "nothing", "ordering", "queue", "step", "the", "they", "too", "writes"),
    )
)


def sentence(text: str) -> str:
    """Return a text with a capital letter, unless it may begin with a name.

    >>> sentence("the audit ended"), sentence("web-1 has it")
    ('The audit ended', 'web-1 has it')
    """
    first = text.partition(" ")[0]
    return text[:1].upper() + text[1:] if first.strip(":,") in _FIRST_WORDS else text


def signal_name(number: int) -> str:
    """Return the name of a signal, such as ``SIGSEGV``, or its number where it has none."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def replaced_controls(text: str) -> str:
    r"""Return the text with a replacement character for each control character, except tab and
    line feed.

    >>> replaced_controls("a\x1b[2Jb") == "a\ufffd[2Jb"
    True
    """
    return _UNSHOWABLE.sub("\ufffd", text)


def escaped_controls(text: str) -> str:
    r"""Return the text as one line, with an escape such as ``\x1b`` for each control character
    except tab.

    >>> escaped_controls("a\x1b[2J\nb")
    'a\\x1b[2J\\nb'
    """
    return _UNLOGGABLE.sub(_escape, text)


def log_block(text: str) -> str:
    r"""Return the text as indented lines without control characters, to follow a line of a log.

    No line of it can be taken for a new record.

    >>> log_block("first\n2026-01-01 ERROR forged\n")
    '  first\n  2026-01-01 ERROR forged'
    """
    return "\n".join(f"  {line}" for line in replaced_controls(text).rstrip("\n").split("\n"))


def escaped_json(text: str) -> str:
    """Return JSON text with JSON escapes for the control characters in its strings, so that its
    value is the same.
    """
    return _UNSHOWABLE.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def call_text(kind: str, args: Mapping[str, Any]) -> str:
    """Return a job as a call: ``add(a=1, b=2)``. Arguments of Django's tasks may be positional.

    >>> call_text("add", {"a": 1, "b": [2]}), call_text("add", {"args": [1, 2], "kwargs": {}})
    ('add(a=1, b=[2])', 'add(1, 2)')
    """
    positional: list[Any] = []
    named = args
    if args.keys() == {"args", "kwargs"}:
        first, second = args["args"], args["kwargs"]
        if isinstance(first, list) and isinstance(second, dict):
            positional, named = first, second
    parts = [_json(value) for value in positional]
    parts += [f"{name}={_json(value)}" for name, value in named.items()]
    return f"{kind}({', '.join(parts)})"


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)


def _escape(found: re.Match[str]) -> str:
    number = ord(found[0])
    return "\\n" if number == 10 else f"\\x{number:02x}" if number < 256 else f"\\u{number:04x}"


class EscapeArguments(logging.Filter):
    """Escapes control characters in the arguments of log records: text of a job must not forge a
    log line.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        """Return True, after replacing text and exceptions among the arguments of the record."""
        if isinstance(record.args, tuple):
            record.args = tuple(
                escaped_controls(str(one)) if isinstance(one, str | BaseException) else one
                for one in record.args
            )
        return True


class _NotDisabled:
    """Makes a logger one that no configuration disables; levels and handlers work as ever.

    By default ``logging.config`` disables the loggers that exist already and that it does not
    name. An application that configures its log after it imported this library would not see that
    a job failed.
    """

    @property
    def disabled(self) -> bool:
        return False

    @disabled.setter
    def disabled(self, value: bool) -> None:
        """Ignore it."""


def lasting_logger(name: str) -> logging.Logger:
    """Return a logger that no configuration of the application disables because it exists."""
    made = logging.getLogger(name)
    if not isinstance(made, _NotDisabled):
        made.__class__ = type("Logger", (_NotDisabled, type(made)), {})
    return made


def logger(name: str) -> logging.Logger:
    """Return the lasting logger of a part of this library, with ``EscapeArguments``."""
    made = lasting_logger(name)
    if not any(isinstance(one, EscapeArguments) for one in made.filters):
        made.addFilter(EscapeArguments())
    return made


def bounded_text(text: str, *, bytes_max: int) -> str:
    r"""Return the text as storable UTF-8 of at most ``bytes_max`` bytes, cut at its end.

    NUL, which PostgreSQL cannot store, and lone surrogates, which UTF-8 cannot encode, are
    escaped.

    >>> bounded_text("a\x00b\ud800", bytes_max=100)
    'a\\x00b\\ud800'
    >>> bounded_text("x" * 50, bytes_max=20)
    'xxxxxxxxxxxxxx [...]'
    """
    # A first cut in characters avoids a copy of a message of many megabytes.
    data = storable_bytes(text[: bytes_max + 1])
    if len(data) <= bytes_max:
        return data.decode()
    return data[: max(0, bytes_max - len(_ELLIPSIS))].decode(errors="ignore") + _ELLIPSIS


def bounded_middle(text: str, *, bytes_max: int) -> str:
    """Return the text as storable UTF-8; the middle of a longer text is omitted.

    A quarter of the bytes is for the beginning and the rest for the end, the important part of a
    traceback.

    >>> bounded_middle("a" * 500 + "z" * 500, bytes_max=100)[-40:]
    'zzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzz'
    """
    if len(text) > 2 * bytes_max:
        text = text[:bytes_max] + text[-bytes_max:]
    data = storable_bytes(text)
    if len(data) <= bytes_max:
        return data.decode()
    omission = "\n[... middle omitted ...]\n"
    available = bytes_max - len(omission)
    if available <= 0:
        return bounded_text(text, bytes_max=bytes_max)
    head = data[: available // 4].decode(errors="ignore")
    tail = data[len(data) - (available - available // 4) :].decode(errors="ignore")
    return head + omission + tail


def storable_bytes(text: str) -> bytes:
    """Return the text as UTF-8 with NUL and lone surrogates escaped."""
    # Unbound calls: a hostile subclass of str may override its methods.
    return str.replace(text, "\x00", "\\x00").encode("utf-8", "backslashreplace")


def whole_number(text: str) -> int | None:
    """Return the whole number that a text of others is; None if it is none, or beyond a bigint.

    ``str.isdigit`` is true of texts that ``int`` refuses: of superscripts, and of thousands of
    digits.

    >>> whole_number("042"), whole_number("\u00b2"), whole_number("9" * 5000), whole_number("-1")
    (42, None, None, None)
    """
    if not (text.isascii() and text.isdigit() and len(text) <= 19):
        return None
    return found if (found := int(text)) < 2**63 else None


def counted(number: int, noun: str, plural: str | None = None) -> str:
    """Return a number with its noun in the right form.

    >>> counted(1, "job"), counted(2000, "job")
    ('1 job', '2,000 jobs')
    """
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def attempt_of(attempt: int, most: int | None) -> str:
    """Return the number of an attempt beside the most that a job may have.

    >>> attempt_of(2, None), attempt_of(2, 3), attempt_of(3, 1)
    ('2', '2 of 3', '3, limit 1')
    """
    if not most:
        return str(attempt)
    return f"{attempt} of {most}" if attempt <= most else f"{attempt}, limit {most}"


def human_bytes(size: float) -> str:
    """Return a size in readable units.

    >>> human_bytes(700), human_bytes(21_500_000)
    ('700 B', '21.5 MB')
    """
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:.3g} TB"
