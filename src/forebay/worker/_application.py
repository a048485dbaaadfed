"""What a worker needs from an application. ``forebay.App`` implements it and imports the worker, not the reverse."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import contextlib
    from collections.abc import Mapping

    from forebay.arguments.kinds import Kinds


class Application(Protocol):
    """The handlers, the place where another process can import them, and their shared resources."""

    @property
    def kinds(self) -> Kinds:
        """The handlers by kind."""

    def location(self) -> tuple[str, str, bool] | None:
        """Return module or script, attribute, and whether it is a script; None when the app cannot be imported."""

    async def open_resources(self, stack: contextlib.AsyncExitStack) -> Mapping[str, Any]:
        """Build the resources that handlers share; return them by name. The stack closes them."""
