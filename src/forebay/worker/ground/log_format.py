"""The log of the command line, as text for people or as JSON for programs.

Invariant: one record cannot look like another. Control characters are replaced or escaped, and each
further line of a record is indented.
"""

from __future__ import annotations

import contextlib
import json
import logging
import sys
import textwrap
from datetime import UTC, datetime
from typing import Any, Final, Literal, cast

from forebay.model.text import escaped_json, log_block
from forebay.policy.error_text import describe_exception

LogFormat = Literal["text", "json"]

#: The attributes that every record has. All others are fields that the caller added.
_STANDARD: Final = frozenset(vars(logging.makeLogRecord({}))) | {"asctime", "message", "taskName"}

#: Level and format as ``log_to_stderr`` was called, for child processes.
_chosen: list[tuple[str, LogFormat]] = []


def log_to_stderr(level: str, form: LogFormat) -> None:
    """Log to stderr: messages of this library from the given level, and warnings of all others.

    A root logger that has handlers keeps them. In a terminal, lines are short.
    """
    handler = logging.StreamHandler(sys.stderr)
    text = TextFormatter(is_short=sys.stderr.isatty())
    handler.setFormatter(JsonFormatter() if form == "json" else text)
    logging.basicConfig(level=logging.WARNING, handlers=[handler])
    logging.getLogger("forebay").setLevel(level.upper())
    _chosen[:] = [(level, form)]


def log_choice() -> tuple[str, LogFormat] | None:
    """Return level and format of the last ``log_to_stderr``; None if it was not called."""
    return _chosen[0] if _chosen else None


class TextFormatter(logging.Formatter):
    """A line for each record, and indented lines for what follows it.

    Args:
        is_short: without the date, and without the logger of records of this library.
    """

    def __init__(self, *, is_short: bool = False) -> None:
        super().__init__()
        self._is_short = is_short

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as text without control characters."""
        message = record.getMessage()
        if record.name.startswith("forebay.job.") and hasattr(record, "job_id"):
            message = f"job {record.job_id}: {message}"
        if not self._is_short:
            head = f"{self.formatTime(record)} {record.levelname:<7} {record.name}: {message}"
        else:
            name = "" if record.name.startswith("forebay.") else f"{record.name}: "
            head = f"{self.formatTime(record, '%H:%M:%S')} {record.levelname:<7} {name}{message}"
        parts = [log_block(head).removeprefix("  ")]
        if exception := _exception_text(record):
            parts.append(log_block(exception))
        if record.stack_info:
            parts.append(log_block(record.stack_info))
        return "\n".join(parts)


class JsonFormatter(logging.Formatter):
    """A JSON object on one line for each record: time in UTC, level, logger, message, added fields,
    exception.
    """

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as JSON without control characters."""
        entry: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if exception := _exception_text(record):
            entry["exception"] = exception
        if record.stack_info:
            entry["stack"] = record.stack_info
        for name, value in vars(record).items():
            if name not in _STANDARD and value is not None:
                entry[f"{name}_" if name in entry else name] = value
        try:
            text = _json(entry)
        except Exception:  # a value without a JSON form, or one that cannot even be shown
            text = _json({name: _plain(value) for name, value in entry.items()})
        return escaped_json(text)


def _exception_text(record: logging.LogRecord) -> str:
    if record.exc_text:
        return textwrap.dedent(record.exc_text)
    if record.exc_info and record.exc_info[1] is not None:
        return describe_exception(record.exc_info[1]).traceback
    return ""


def _json(value: dict[str, Any]) -> str:
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, default=str)
    with contextlib.suppress(UnicodeEncodeError):
        text.encode()
        return text
    return json.dumps(value, allow_nan=False, default=str)  # lone surrogates


def _plain(value: object) -> object:
    try:
        json.dumps(value, allow_nan=False)
    except Exception:
        try:
            return str(value)
        except Exception:
            return f"<{type(value).__name__}>"
    return value


def as_log_format(value: str) -> LogFormat | None:
    """Return the format of this name; None if there is none."""
    return cast("LogFormat", value) if value in ("text", "json") else None
