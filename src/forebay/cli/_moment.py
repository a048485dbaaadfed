"""The moment from which a command counts ages, and how the token of a dry run carries it.

An age such as ``2h`` would else be another time at each call, and the time is part of the token.
So a token of a dry run with ages ends with its moment, behind ``@``, and a command with such a
token counts its ages from there.
"""

from __future__ import annotations

import dataclasses
import re
from datetime import UTC, datetime
from typing import Any, Final, TypeVar

import click

from forebay.errors import ConfigError, shown

P = TypeVar("P")

#: In the context of a command that has an age: the moment.
_KEY: Final = f"{__name__}.counted_from"
_FORM: Final = "%Y%m%dT%H%M%S.%fZ"
_MOMENT: Final = re.compile(r"\d{8}T\d{6}\.\d{3}Z")


def counted_from(name: str) -> datetime:
    """Return the moment from which this command counts the age that an option has: that of its
    token, else now, and the same for all ages of the command.

    Raises:
        ConfigError: its token carries none.
    """
    context = click.get_current_context(silent=True)
    if context is None:
        return datetime.now(UTC)
    found: datetime | None = context.meta.get(_KEY)
    if found is None:
        token, at = parted(context.params.get("token"))
        if token is not None and at is None:
            raise ConfigError(
                name,
                "counts from a moment that the token does not carry",
                hint="Give the token of a dry run with the same age, whole with its part behind"
                " the @; or give times in ISO 8601, to the dry run too.",
            )
        # Without microseconds, as a token carries it.
        now = datetime.now(UTC)
        found = at or now.replace(microsecond=now.microsecond // 1000 * 1000)
        context.meta[_KEY] = found
    return found


def parted(token: str | None) -> tuple[str | None, datetime | None]:
    """Return a token as the database made it, and the moment that it carries, or None.

    Raises:
        ConfigError: what stands behind the ``@`` is not a moment.
    """
    if token is None:
        return None, None
    made, found, text = token.partition("@")
    if not found:
        return token, None
    try:
        if not made or not _MOMENT.fullmatch(text):
            raise ValueError
        return made, datetime.strptime(text, _FORM).replace(tzinfo=UTC)
    except ValueError:
        raise ConfigError(
            "--token",
            f"ends with {shown('@' + text)}, not with the moment of a dry run",
            value=token,
            hint="Copy the token of the dry run whole; its end is as in @20270131T080000.000Z.",
        ) from None


def check_ages() -> None:
    """Refuse a token that carries a moment where the command has no age.

    Raises:
        ConfigError: it is so.
    """
    context = click.get_current_context(silent=True)
    if context is None or _KEY in context.meta:
        return
    token = context.params.get("token")
    if parted(token)[1] is not None:
        raise ConfigError(
            "--token",
            "is that of a dry run with an age, and this command has none",
            value=token,
            hint="Give the options of the dry run, as they were given to it.",
        )


def with_moment(plan: P) -> P:
    """Return what a dry run found, with a token that carries the moment, if ages were given."""
    context = click.get_current_context(silent=True)
    found: datetime | None = None if context is None else context.meta.get(_KEY)
    if found is None:
        return plan
    text = f"{found:%Y%m%dT%H%M%S}.{found.microsecond // 1000:03}Z"
    made: Any = plan
    changed: P = dataclasses.replace(made, token=f"{made.token}@{text}")
    return changed
