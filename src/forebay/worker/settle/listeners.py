"""Tells an application what happened to its jobs: its listeners, and its middlewares around
settlements.

Invariant "listeners harm no job": an outcome is settled whatever a listener does, and as if there
were none. A listener runs after the database has the outcome, so no outcome is taken back after its
listener ran. It runs in a thread, or as a task on the loop if it is a coroutine function; one
listener at a time, in the order of the events. Its exception is logged and counted. When more than
``EVENTS_MAX`` events wait, new ones are dropped, counted and logged.

Nothing is stored: a crash loses the events that wait. What must not be lost needs a job.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from collections import deque
from typing import TYPE_CHECKING, Any, Final

from forebay.errors import ConfigError, LeaseLost
from forebay.model.middleware import overrides
from forebay.model.text import counted, logger
from forebay.worker.ground.held import Announcement
from forebay.worker.ground.threads import Threads

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from forebay.arguments.kinds import Kinds
    from forebay.model.attempts import AttemptEnded, LostWorker
    from forebay.model.middleware import Middleware
    from forebay.worker.ground.stats import Stats

log = logger("forebay.worker")

#: Most events that wait for their listeners.
EVENTS_MAX: Final = 10_000

#: How long the end of a worker waits for listeners.
_DRAIN_SECONDS: Final = 5.0

#: The events that an outcome causes.
_EVENTS: Final = {"done": ("done",), "retried": ("failed",), "dead": ("failed", "dead")}


class Listeners:
    """Passes on how attempts ended, and which workers were lost.

    Args:
        declared: the listeners by event: failed, dead, done, worker_lost.
        middleware: those around settlements are called.
        stats: counts errors and dropped events.
    """

    def __init__(
        self,
        declared: Mapping[str, Sequence[Callable[[Any], Any]]],
        middleware: Sequence[Middleware],
        stats: Stats,
    ) -> None:
        self._declared = {event: tuple(found) for event, found in declared.items() if found}
        self._around = [each.settlement for each in middleware if overrides(each, "settlement")]
        self._stats = stats
        self._waiting: deque[tuple[Callable[[Any], Any], Any]] = deque()
        self._wake = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._threads = Threads(1)
        #: The outcomes with a listener; all of them with a middleware around settlements.
        self.outcomes: frozenset[str] | None = (
            None
            if self._around
            else frozenset(
                outcome
                for outcome, events in _EVENTS.items()
                if any(event in self._declared for event in events)
            )
        )

    @property
    def is_needed(self) -> bool:
        """Whether anybody listens to the ends of attempts."""
        return self.outcomes is None or bool(self.outcomes)

    def wants(self, outcome: str) -> bool:
        """Whether anybody listens to this outcome."""
        return self.outcomes is None or outcome in self.outcomes

    def announce(self, ended: AttemptEnded) -> Announcement:
        """Enter the middlewares around a settlement; call ``recorded`` or ``refused`` after it."""
        entered: list[Iterator[None]] = []
        for each in self._around:
            with self._harmless("a middleware around a settlement"):
                generator = each(ended)
                next(generator)
                entered.append(generator)
        return Announcement(ended, entered)

    def recorded(self, announcement: Announcement) -> None:
        """The database has the outcome: leave the middlewares, and tell the listeners."""
        for generator in reversed(announcement.around):
            with (
                self._harmless("a middleware around a settlement"),
                contextlib.suppress(StopIteration),
            ):
                next(generator)
        for event in _EVENTS.get(announcement.ended.outcome, ()):
            self._put(event, announcement.ended)

    def refused(self, announcement: Announcement) -> None:
        """The database did not take the outcome: the job belongs to another worker, and ends
        there.
        """
        error = LeaseLost(None)
        for generator in reversed(announcement.around):
            with (
                self._harmless("a middleware around a settlement"),
                contextlib.suppress(StopIteration, LeaseLost),
            ):
                generator.throw(error)  # type: ignore[attr-defined]

    def worker_lost(self, lost: LostWorker) -> None:
        """A lost worker's jobs were returned to the queue."""
        self._put("worker_lost", lost)

    def _put(self, event: str, subject: object) -> None:
        for listener in self._declared.get(event, ()):
            if len(self._waiting) >= EVENTS_MAX:
                if not self._stats.events_dropped:
                    log.error(
                        "%s events wait for their listeners; new ones are dropped", EVENTS_MAX
                    )
                self._stats.events_dropped += 1
                continue
            self._waiting.append((listener, subject))
            self._idle.clear()
            self._wake.set()

    @contextlib.contextmanager
    def _harmless(self, what: str) -> Iterator[None]:
        try:
            yield
        except (Exception, SystemExit, asyncio.CancelledError) as error:  # of the application
            task = asyncio.current_task()
            if isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling():
                raise  # The worker ends.
            self._stats.listener_errors += 1
            log.exception("%s failed; the job is not affected", what)

    async def run(self) -> None:
        """Call listeners until cancelled."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._waiting:
                listener, subject = self._waiting.popleft()
                with self._harmless(f"listener {getattr(listener, '__qualname__', listener)}"):
                    if inspect.iscoroutinefunction(listener):
                        await listener(subject)
                    else:
                        call = self._threads.submit(lambda: listener(subject))  # noqa: B023 - awaited here
                        await call.future
            self._idle.set()

    async def drained(self) -> None:
        """Wait until no event waits, but not for long: log how many are left then."""
        try:
            async with asyncio.timeout(_DRAIN_SECONDS):
                await self._idle.wait()
        except TimeoutError:
            waiting = counted(len(self._waiting) + 1, "event")
            log.error("the worker ends before the listeners of %s", waiting)

    def close(self) -> None:
        """End the thread when it is idle."""
        self._threads.close()


def require_middleware(kinds: Kinds, middleware: Sequence[Middleware]) -> None:
    """Refuse a middleware that would not run around some of the handlers.

    Raises:
        ConfigError: it has ``aattempt`` only, and a handler is a plain function.
    """
    plain = [kind.name for kind in kinds if not kind.is_async]
    for each in middleware:
        if plain and overrides(each, "aattempt") and not overrides(each, "attempt"):
            raise ConfigError(
                f"middleware {type(each).__name__}",
                (
                    f"has aattempt and no attempt, so it cannot run around {plain[0]}, a plain "
                    f"function"
                ),
                hint="Define both, or only attempt: it runs around coroutine functions too.",
            )
