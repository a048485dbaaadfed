"""Text from anywhere, made fit for a PostgreSQL text or jsonb column."""

from __future__ import annotations

from typing import Final

_MARK: Final = " [...]"


def bounded_text(text: str, *, bytes_max: int) -> str:
    r"""Return the text as storable UTF-8 of at most ``bytes_max`` bytes, cut at its end.

    NUL, which PostgreSQL cannot store, and lone surrogates, which UTF-8 cannot, become their
    escaped forms.

    >>> bounded_text("a\x00b\ud800", bytes_max=100)
    'a\\x00b\\ud800'
    >>> bounded_text("x" * 50, bytes_max=20)
    'xxxxxxxxxxxxxx [...]'
    """
    # A first cut in characters keeps a message of many megabytes from being copied whole.
    data = storable_bytes(text[: bytes_max + 1])
    if len(data) <= bytes_max:
        return data.decode()
    return data[: max(0, bytes_max - len(_MARK))].decode(errors="ignore") + _MARK


def bounded_middle(text: str, *, bytes_max: int) -> str:
    """Return the text as storable UTF-8, its middle left out where it is longer than allowed.

    A quarter of the room goes to the beginning and the rest to the end, where a traceback has
    what matters.

    >>> bounded_middle("a" * 500 + "z" * 500, bytes_max=100)[-40:]
    'zzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzz'
    """
    if len(text) > 2 * bytes_max:
        text = text[:bytes_max] + text[-bytes_max:]
    data = storable_bytes(text)
    if len(data) <= bytes_max:
        return data.decode()
    mark = "\n[... middle left out ...]\n"
    room = bytes_max - len(mark)
    if room <= 0:
        return bounded_text(text, bytes_max=bytes_max)
    head = data[: room // 4].decode(errors="ignore")
    tail = data[len(data) - (room - room // 4) :].decode(errors="ignore")
    return head + mark + tail


def storable_bytes(text: str) -> bytes:
    """Return the text as UTF-8 with NUL and lone surrogates escaped."""
    # Unbound calls, since a hostile subclass of str may override its methods.
    return str.replace(text, "\x00", "\\x00").encode("utf-8", "backslashreplace")
