"""The part of an app for code around its jobs and after them: middlewares and listeners."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from forebay.model.doors import Doors

if TYPE_CHECKING:
    from collections.abc import Callable

    from forebay.app._internals import Internals
    from forebay.model.attempts import AttemptEnded, LostWorker
    from forebay.model.middleware import Middleware

AttemptListener = TypeVar("AttemptListener", bound="Callable[[AttemptEnded], Any]")
LostListener = TypeVar("LostListener", bound="Callable[[LostWorker], Any]")


class JobsEvents(Doors, declares=True):
    """Declares middlewares and listeners."""

    if TYPE_CHECKING:

        @property
        def _internals(self) -> Internals: ...

    def add_middleware(self, middleware: Middleware) -> None:
        """Add a middleware inside of the existing ones; see ``Middleware``.

        Raises:
            ConfigError: it is not a middleware.
        """
        self._internals.middlewares.add(middleware)

    def on_failed(self, listener: AttemptListener) -> AttemptListener:
        """Declare a function to call after each failed attempt, whether the job runs again or is
        dead.

        The worker that ran the attempt calls it, once the database has the outcome: in a thread, or
        on the event loop if it is a coroutine function. Its exception is logged and counted, and
        harms no job. A crash loses calls that wait.

        >>> import forebay
        >>> app = forebay.App()
        >>> @app.on_failed
        ... def report(ended):
        ...     print(ended.job.kind, ended.outcome, ended.error)
        """
        self._internals.add_listener("failed", listener)
        return listener

    def on_dead(self, listener: AttemptListener) -> AttemptListener:
        """Declare a function to call when a failed attempt has made its job a dead letter.

        See ``on_failed``.

        A job that expired never had an attempt; it is not reported here.
        """
        self._internals.add_listener("dead", listener)
        return listener

    def on_done(self, listener: AttemptListener) -> AttemptListener:
        """Declare a function to call when a job is done; see ``on_failed``."""
        self._internals.add_listener("done", listener)
        return listener

    def on_worker_lost(self, listener: LostListener) -> LostListener:
        """Declare a function to call when a worker is lost and its jobs return to the queue.

        See ``on_failed``.

        The worker that found it calls the function.
        """
        self._internals.add_listener("worker_lost", listener)
        return listener
