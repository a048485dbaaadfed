"""Secrets of sinks by reference: the configuration names an environment variable or a file, and
never contains the secret.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from forebay.errors import ConfigError, SinkUnavailable
from forebay.model.doors import declaring_door

_SCHEMES: Final = ("env:", "file:")

#: A file that is longer is something else than a secret.
_FILE_BYTES_MAX: Final = 65_536


class Secret:
    """A secret given in Python, instead of a reference.

    Its text appears in no message and no representation.

    Args:
        secret: its text.

    Raises:
        ConfigError: it is no text.
    """

    __slots__ = ("_value",)

    @declaring_door
    def __init__(self, secret: str) -> None:
        self._value = secret

    def __repr__(self) -> str:
        return "Secret(...)"

    def reveal(self) -> str:
        """Return the secret."""
        return self._value


def is_reference(value: object) -> bool:
    """Return whether a text names a secret: ``env:NAME`` or ``file:/path``.

    >>> is_reference("env:WEBHOOK_SECRET"), is_reference("whsec_abc"), is_reference("env:")
    (True, False, False)
    """
    return isinstance(value, str) and any(
        value.startswith(scheme) and len(value) > len(scheme) for scheme in _SCHEMES
    )


def reference_in(value: object) -> str | None:
    """Return the reference that a text is, also in "bearer env:TOKEN"; None: it is none.

    >>> reference_in("Bearer env:TOKEN"), reference_in("file:/a"), reference_in("env")
    ('env:TOKEN', 'file:/a', None)
    """
    if not isinstance(value, str):
        return None
    texts = (value, value.partition(" ")[2])
    return next((text for text in texts if is_reference(text)), None)


def checked_secret(field: str, value: object) -> str | Secret:
    """Return a reference or a ``Secret``.

    Raises:
        ConfigError: it is something else. The message does not repeat it: it may be the secret.
    """
    if isinstance(value, Secret):
        return value
    if not is_reference(value):
        raise ConfigError(
            field, "is not a reference to a secret", hint='Write "env:NAME" or "file:/path".'
        )
    return str(value)


def read_secret(field: str, value: str | Secret) -> str:
    """Read a secret. Space around it is removed.

    Raises:
        SinkUnavailable: the variable or file is missing or empty, which an operator can mend.
    """
    if isinstance(value, Secret):
        return value.reveal()
    scheme, _, name = value.partition(":")
    try:
        if scheme == "env":
            text = os.environ.get(name, "")
        else:
            with Path(name).open("rb") as file:
                text = file.read(_FILE_BYTES_MAX).decode()
    except (OSError, ValueError) as error:
        raise SinkUnavailable(f"{field}: {value} cannot be read: {type(error).__name__}") from None
    if not text.strip():
        raise SinkUnavailable(f"{field}: {value} is missing or empty")
    return text.strip()
