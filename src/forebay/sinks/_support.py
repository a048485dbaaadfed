"""What several sinks share: optional libraries, checks of configurations, and calls of blocking
clients.
"""

from __future__ import annotations

import asyncio
import importlib
import threading
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

import msgspec

from forebay.errors import ConfigError, shown
from forebay.in_threads import for_future

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    from forebay.sinks._contract import Message

T = TypeVar("T")


def envelope(message: Message) -> bytes:
    """Return a message as one JSON object, for places without headers."""
    return msgspec.json.encode(
        {
            "id": message.id,
            "kind": message.kind,
            "headers": message.metadata(),
            "body": msgspec.Raw(message.body),
        }
    )


def library(module: str, extra: str, *, field: str | None = None) -> ModuleType:
    """Import a client library that an extra installs.

    Args:
        module: of the library.
        extra: its name.
        field: what needs it; None: the sink that has the name of the extra.

    Raises:
        ConfigError: it is not installed.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name != module.partition(".")[0]:
            raise
        raise ConfigError(
            field or f"sink {extra}",
            f"needs the library {error.name}, which is not installed",
            hint=f"pip install 'forebay[{extra}]'",
        ) from None


def checked_url(sink: str, url: object, *schemes: str) -> str:
    """Return an address with one of the schemes.

    Raises:
        ConfigError: it is none. The message does not repeat the address, which may contain a
            password.
    """
    try:
        parts = urlsplit(url) if isinstance(url, str) else None
        is_one = parts is not None and parts.scheme in schemes
    except ValueError:
        is_one = False
    if not is_one:
        raise ConfigError(
            f"sink {sink}: url", f"is not an address that begins with {schemes[0]}://"
        )
    return str(url)


def place_of(url: str) -> str:
    """Return host and port of an address, for messages: without user and password.

    >>> place_of("amqp://user:secret@mq.example:5672/orders")
    'mq.example:5672'
    """
    return urlsplit(url).netloc.rpartition("@")[2]


def checked_name(sink: str, field: str, value: object) -> str:
    """Return a non-empty text without control characters.

    Raises:
        ConfigError: it is something else.
    """
    if not isinstance(value, str) or not value or not value.isprintable():
        raise ConfigError(
            f"sink {sink}: {field}", f"is {shown(value)}, not a printable text", value=value
        )
    return value


def checked_choice(sink: str, field: str, value: object, *choices: str) -> str:
    """Return a text that is one of some choices.

    Raises:
        ConfigError: it is none of them.
    """
    if value not in choices:
        raise ConfigError(
            f"sink {sink}: {field}",
            f"is {shown(value)}, not one of {', '.join(choices)}",
            value=value,
        )
    return str(value)


def checked_number(
    sink: str, field: str, value: object, *, least: float, most: float | None = None
) -> float:
    """Return a number within bounds.

    Raises:
        ConfigError: it is something else.
    """
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not least <= value <= (most if most is not None else float("inf")):  # type: ignore[operator]
        bounds = f"of at least {least:g}" if most is None else f"within {least:g} to {most:g}"
        raise ConfigError(
            f"sink {sink}: {field}", f"is {shown(value)}, not a number {bounds}", value=value
        )
    return value  # type: ignore[return-value]


def checked_integer(
    sink: str, field: str, value: object, *, least: int, most: int | None = None
) -> int:
    """Return a whole number within bounds.

    Raises:
        ConfigError: it is something else.
    """
    checked_number(sink, field, value, least=least, most=most)
    if not isinstance(value, int):
        raise ConfigError(f"sink {sink}: {field}", "is not a whole number", value=value)
    return value


async def call_in_thread(function: Callable[[], T], *, name: str) -> T:
    """Call a function of a blocking client in a new thread and return its result.

    The thread is a daemon. When the caller gives up, a call that hangs keeps its thread and delays
    neither other calls nor the end of the process.
    """
    loop = asyncio.get_running_loop()
    result: asyncio.Future[Any] = loop.create_future()

    def report(value: Any, error: BaseException | None) -> None:
        if result.cancelled():
            return
        if error is None:
            result.set_result(value)
        else:
            result.set_exception(for_future(error))

    def run() -> None:
        try:
            value, error = function(), None
        except BaseException as raised:  # for the caller, on the loop
            value, error = None, raised
        try:
            loop.call_soon_threadsafe(report, value, error)
        except RuntimeError:
            return  # The loop has ended: the result is not needed.

    threading.Thread(target=run, name=name, daemon=True).start()
    value: T = await result
    return value
