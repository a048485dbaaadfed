"""What a worker needs from an application. ``forebay.App`` implements it and imports the worker, not the reverse."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import contextlib
    from collections.abc import Callable, Mapping, Sequence

    from forebay.arguments.kinds import Kinds
    from forebay.model.middleware import Middleware


class Intake(Protocol):
    """What bounds the claims of a worker beside its free slots: whether its handlers can do anything now."""

    def pause_seconds(self) -> float:
        """Return for how long to claim nothing; 0: jobs may be claimed."""

    def rows_max(self) -> int | None:
        """Return how many jobs may be in hand; None: any number."""

    def problem(self) -> str | None:
        """Return why the handlers make no progress, for the readiness of the worker; None if they do."""


class Application(Protocol):
    """The handlers, the place where another process can import them, and their shared resources."""

    @property
    def kinds(self) -> Kinds:
        """The handlers by kind."""

    @property
    def middleware(self) -> Sequence[Middleware]:
        """What runs around attempts and settlements, outermost first."""

    @property
    def listeners(self) -> Mapping[str, Sequence[Callable[[Any], Any]]]:
        """The functions to call after an event, by its name: failed, dead, done, worker_lost."""

    def location(self) -> tuple[str, str, bool] | None:
        """Return module or script, attribute, and whether it is a script; None when the app cannot be imported."""

    async def open_resources(self, stack: contextlib.AsyncExitStack) -> Mapping[str, Any]:
        """Build the resources that handlers share; return them by name. The stack closes them."""
