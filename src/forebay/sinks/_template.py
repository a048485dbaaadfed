"""Names on the far side that depend on the message, such as routing keys: ``orders.{kind}``."""

from __future__ import annotations

import string
from typing import TYPE_CHECKING, Final

from forebay.errors import ConfigError, shown
from forebay.sinks._support import checked_name

if TYPE_CHECKING:
    from forebay.sinks._contract import Message

_FIELDS: Final = ("kind", "queue", "ordering_key", "tag")
_HINT: Final = "Names: {kind}, {queue}, {ordering_key}, {tag}, {header:NAME}; {{ is a brace."


class UnfitMessageError(ValueError):
    """The far side would never take this message, or the message lacks what a template needs."""


class Template:
    """A text with values of the message: ``{kind}``, ``{queue}``, ``{ordering_key}``, ``{tag}``,
    ``{header:NAME}``.

    Attributes:
        text: the template.
        constant: the result, if it is the same for all messages; else None.

    Raises:
        ConfigError: the text is empty, is not printable or names something else.

    >>> Template("nats", "subject", "orders.{knd}")
    Traceback (most recent call last): forebay.errors.ConfigError: sink nats: subject has the
    unknown name {knd}; Names: {kind}, {queue}, {ordering_key}, {tag}, {header:NAME}; {{ is a brace.
    """

    def __init__(self, sink: str, field: str, text: object) -> None:
        self.text = checked_name(sink, field, text)
        self._field = field
        where = f"sink {sink}: {field}"
        #: Texts and what follows each of them: the name of a value, or None.
        self._parts: list[tuple[str, str | None]] = []
        try:
            parts = list(string.Formatter().parse(self.text))
        except ValueError as error:
            raise ConfigError(where, f"is {shown(text)}: {error}", hint=_HINT) from None
        for before, name, specification, conversion in parts:
            if name is None:
                self._parts.append((before, None))
                continue
            is_header = name == "header" and bool(specification)
            if conversion or not (is_header or (name in _FIELDS and not specification)):
                whole = f"{{{name}{f':{specification}' if specification else ''}}}"
                raise ConfigError(where, f"has the unknown name {whole}", hint=_HINT)
            self._parts.append((before, f"header:{specification}" if is_header else name))
        names = any(name for _, name in self._parts)
        self.constant = None if names else "".join(before for before, _ in self._parts)

    def fill(self, message: Message) -> str:
        """Return the text for a message.

        Raises:
            UnfitMessageError: the message does not have a value, or it is empty.
        """
        if self.constant is not None:
            return self.constant
        found = []
        for before, name in self._parts:
            found.append(before)
            if name is None:
                continue
            if name.startswith("header:"):
                value = message.headers.get(name.removeprefix("header:"))
            else:
                value = getattr(message, name)
            if not value:
                raise UnfitMessageError(
                    f"{self._field} {self.text} needs {name}, which the job lacks"
                )
            found.append(value)
        return "".join(found)
