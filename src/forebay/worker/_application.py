"""What a worker needs of an application. ``forebay.App`` implements it, and imports the worker; the worker does not import it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import contextlib
    from collections.abc import Mapping

    from forebay.arguments.kinds import Kinds


class Application(Protocol):
    """The handlers, where another process finds them, and what is built for them."""

    @property
    def kinds(self) -> Kinds:
        """The handlers by kind."""

    def location(self) -> tuple[str, str, bool] | None:
        """Return module or script, attribute, and whether it is a script; None when it cannot be imported."""

    async def open_resources(self, stack: contextlib.AsyncExitStack) -> Mapping[str, Any]:
        """Build what handlers share, to be closed with the stack; return it by name."""
