"""What commands read: JSON, stdin and files. Nothing else in this package reads them, so that no
input leads to an error of Python.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from forebay.errors import ConfigError, shown


def parsed_json(text: str, parse_constant: Callable[[str], Any] | None = None) -> Any:
    """Return a JSON value.

    Raises:
        ValueError: the text is not JSON, or nested more deeply than Python reads.
    """
    try:
        return json.loads(text, parse_constant=parse_constant)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def is_terminal() -> bool:
    """Tell whether a person can answer: stdin is open, and a terminal."""
    return sys.stdin is not None and not sys.stdin.closed and sys.stdin.isatty()


def stdin_text(name: str) -> str:
    """Return all that stdin has.

    Raises:
        ConfigError: it is closed, has other bytes than UTF-8, or cannot be read.
    """
    return _read_stdin(name, lambda: sys.stdin.read())


def stdin_line(name: str) -> str:
    """Return the first line of stdin, without its end.

    Raises:
        ConfigError: it is closed, has other bytes than UTF-8, or cannot be read.
    """
    return _read_stdin(name, lambda: sys.stdin.readline()).rstrip("\r\n")


def _read_stdin(name: str, read: Callable[[], str]) -> str:
    if sys.stdin is None or sys.stdin.closed:
        raise ConfigError(
            name,
            "is read from stdin, and stdin is closed",
            hint="Give it in a pipe, or with < FILE.",
        )
    try:
        return read()
    except UnicodeDecodeError as error:
        raise ConfigError(
            name,
            f"is read from stdin, which is not {error.encoding}: byte {error.start}",
            hint="Convert it: iconv -f ENCODING -t UTF-8.",
        ) from None
    except OSError as error:
        raise ConfigError(
            name,
            f"is read from stdin, which cannot be read: {error.strerror}",
            hint="Give it in a pipe, or with < FILE.",
        ) from None


def file_text(path: str | Path, name: str) -> str:
    """Return the text of a file in UTF-8; a mark at its beginning is left out.

    Raises:
        ConfigError: it cannot be read, or has other bytes.
    """
    try:
        return Path(path).read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigError(
            name,
            f"names {shown(str(path))}, which is not UTF-8: byte {error.start}",
            value=str(path),
            hint="Convert it: iconv -f ENCODING -t UTF-8.",
        ) from None
    except (OSError, ValueError) as error:  # ValueError: a null character in the name
        raise ConfigError(
            name,
            f"names {shown(str(path))}, which cannot be read: {error}",
            value=str(path),
            hint="Name a file that this user may read.",
        ) from None
