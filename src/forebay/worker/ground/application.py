"""What a worker needs from an application.

``forebay.App`` implements it and imports the worker, not the reverse.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from forebay.arguments.kinds import OneHandler

if TYPE_CHECKING:
    import contextlib
    from collections.abc import Callable, Mapping, Sequence

    from forebay.arguments.kinds import Kind, Kinds
    from forebay.model.middleware import Middleware
    from forebay.model.schedules import Schedule


class Intake(Protocol):
    """What bounds the claims of a worker beside its free slots: whether its handlers can do
    anything now.
    """

    def pause_seconds(self) -> float:
        """Return for how long to claim nothing; 0: jobs may be claimed."""

    def rows_max(self) -> int | None:
        """Return how many jobs may be in hand; None: any number."""

    def problem(self) -> str | None:
        """Return why the handlers make no progress, for the readiness of the worker.

        The result is None if they do.
        """


class Application(Protocol):
    """The handlers, the place where another process can import them, and their shared resources."""

    @property
    def kinds(self) -> Kinds:
        """The handlers by kind."""

    @property
    def middleware(self) -> Sequence[Middleware]:
        """What runs around attempts and settlements, outermost first."""

    @property
    def intake(self) -> Intake | None:
        """What bounds the claims; None: only the free slots do."""

    @property
    def title(self) -> str | None:
        """What `forebay workers list` shows of an application without a location."""

    @property
    def listeners(self) -> Mapping[str, Sequence[Callable[[Any], Any]]]:
        """The functions to call after an event, by its name: failed, dead, done, worker_lost."""

    def declared_schedules(self) -> tuple[str, Sequence[Schedule]] | None:
        """Return the name of the application and the schedules that it declares; None: its workers
        decide no instants.
        """

    def follow(self, found: Mapping[str, Any]) -> None:
        """Take the settings of the database that were set: they hold for handlers where
        neither the code nor the process has its own.
        """

    def location(self) -> tuple[str, str, bool] | None:
        """Return module or script, attribute, and whether it is a script.

        The result is None when the app cannot be imported.
        """

    async def open_resources(self, stack: contextlib.AsyncExitStack) -> Mapping[str, Any]:
        """Build the resources that handlers share; return them by name. The stack closes them."""


class OneHandlerApplication:
    """An internal application: one handler for the jobs of every kind, which runs in this process
    only.

    Args:
        kind: the handler.
        title: what `forebay workers list` shows; None: nothing.
        intake: what bounds the claims; None: only the free slots do.
    """

    def __init__(self, kind: Kind, title: str | None = None, intake: Intake | None = None) -> None:
        self._kind = kind
        self.title = title
        self.intake = intake

    @property
    def kinds(self) -> Kinds:
        """The handler."""
        return OneHandler(self._kind)

    @property
    def middleware(self) -> Sequence[Middleware]:
        """None: middleware of an application is about its handlers."""
        return ()

    @property
    def listeners(self) -> Mapping[str, Sequence[Callable[[Any], Any]]]:
        """None."""
        return {}

    def declared_schedules(self) -> None:
        """Return None: the workers of applications decide the instants."""
        return

    def follow(self, found: Mapping[str, Any]) -> None:
        """Do nothing: the handler has its own settings."""
        del found

    async def has_more(self) -> bool:
        """Return whether jobs wait that no claim can take now and that can run soon.

        A worker that ends when it is idle waits for them.
        """
        return False

    def location(self) -> None:
        """Return None: its jobs run in this process, also after the death of a worker that had
        them.
        """
        return

    async def open_resources(self, stack: contextlib.AsyncExitStack) -> Mapping[str, Any]:
        """Share nothing."""
        del stack
        return {}
