"""Conversion of any text to a form that PostgreSQL can store as text or jsonb."""

from __future__ import annotations

from typing import Final

_ELLIPSIS: Final = " [...]"


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
