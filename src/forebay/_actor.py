"""Who acts, for the event log."""

from __future__ import annotations

from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

#: The name; None if none was given.
ACTOR: Final[ContextVar[str | None]] = ContextVar("forebay_actor", default=None)


@contextmanager
def acting_as(name: str) -> Iterator[None]:
    """Name who acts: the event log records it for every act in this context.

    Nothing checks the name. The login role of the session is recorded beside it. It applies to the
    current thread or asyncio task. A call on your connection records the name only in an open
    transaction, not with autocommit.

    Args:
        name: a user of your application, for example; at most 200 characters are kept.
    """
    token = ACTOR.set(name)
    try:
        yield
    finally:
        ACTOR.reset(token)
