"""What runs beside each other in one attempt of a flow."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any, Final

from forebay.errors import StepRefused
from forebay.worker.run._step_calls import within_steps
from forebay.worker.run._step_values import checked_key, text_of

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

_ALONE: Final = "Await the other steps first; wait, sleep and gather run alone."

#: How long a failed step waits for those beside it.
_REST_SECONDS: Final = 60.0

#: A failure names at most this number of steps beside it.
_BESIDE_MOST: Final = 100


class Beside:
    """The verbs and steps of an attempt that run at once.

    Args:
        loop: the event loop of the worker.
        is_async: whether the handler is a coroutine.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, *, is_async: bool) -> None:
        self._loop = loop
        self._is_async = is_async
        #: How many verbs run; the step among them that gives the slot back; and whether one was
        #: refused to, so that those that ran beside it are refused, too.
        self._open = 0
        self._parks: str | None = None
        self._is_crowded = False
        #: The steps that are under way.
        self._running: set[tuple[str, str | None]] = set()
        #: Those of them that wait for the others, since one has failed; and who waits.
        self._failing: set[tuple[str, str | None]] = set()
        self._turns: list[asyncio.Future[None]] = []

    def during(
        self, name: str, key: object, verb: Generator[Any, Any, Any]
    ) -> Generator[Any, Any, Any]:
        """Note that a step is under way until its verb returns."""
        step = (name, checked_key(name, key))
        self._running.add(step)
        try:
            return (yield from verb)
        finally:
            self._running.discard(step)
            self._look_at_rest()

    async def rest(self, name: str, key: object) -> None:
        """Wait until the steps beside a failed one have ended, so that they are recorded.

        The end of the attempt would leave them behind, or a task group would cancel them, and the
        next attempt would do them again. Steps that have failed wait for no other such step, nor
        for one whose function has called them.
        """
        step = (name, text_of(key))
        self._failing.update((step, *within_steps()))
        future = self._loop.create_future()
        self._turns.append(future)
        self._look_at_rest()
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_REST_SECONDS):
                    await future
        finally:
            self._turns.remove(future)
            self._failing.discard(step)

    def has_rest(self) -> bool:
        """Whether several steps of a coroutine handler are under way."""
        return self._is_async and len(self._running) > 1

    def _look_at_rest(self) -> None:
        if self._turns and self._running <= self._failing:
            for future in self._turns:
                if not future.done():
                    future.set_result(None)

    def others(self, name: str, key: object) -> set[tuple[str, str | None]]:
        """Return the other steps that are under way."""
        return self._running - {(name, text_of(key))}

    def recorded(self, name: str, key: object) -> list[dict[str, str | None]]:
        """Return them as a checkpoint has them: they are no compensation of this step."""
        others = sorted(self.others(name, key), key=str)
        return [{"name": each, "key": text} for each, text in others[:_BESIDE_MOST]]

    @contextlib.contextmanager
    def will_park(self, name: str) -> Iterator[None]:
        """Do what must not be done if the slot cannot be given back; no other verb begins."""
        self.require_alone(name)
        self._parks = name
        try:
            yield
        finally:
            self._parks = None

    def require_alone(self, name: str) -> None:
        """Refuse to give the slot back while another verb runs.

        Raises:
            StepRefused: one does; those that ran beside it are refused likewise.
        """
        if self._open > 1 or self._is_crowded:
            self._is_crowded = True
            raise StepRefused(
                name, "gives the slot back while another step of the job runs", hint=_ALONE
            )

    @contextlib.contextmanager
    def entered(self, name: str) -> Iterator[None]:
        """Note that a verb runs."""
        if self._parks is not None:
            problem = f"begins while step {self._parks!r} gives the slot back"
            raise StepRefused(name, problem, hint=_ALONE)
        self._open += 1
        try:
            yield
        finally:
            self._open -= 1
            self._is_crowded = self._is_crowded and self._open > 0
