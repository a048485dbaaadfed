"""The function that a step calls, perhaps in a transaction that also records the step."""

from __future__ import annotations

import functools
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from forebay.arguments.results import gives_coroutine, ran
from forebay.db.pools import READ_ONLY, broken, misuse_of, says_read_only
from forebay.errors import DatabaseUnavailable, StepRefused
from forebay.forks import end_if_copy
from forebay.in_threads import in_thread
from forebay.model.spans import stepping
from forebay.ops import flows
from forebay.policy.error_text import calls_handlers
from forebay.worker.run._step_values import shown_step, text_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from forebay.db.handler_connections import LastCall
    from forebay.model.context import Step
    from forebay.ops.flows import NewStep
    from forebay.worker.run._transactions import HandlerTransactions
    from forebay.worker.run.call import Call


#: The steps whose functions run here: name and key.
_within: ContextVar[tuple[tuple[str, str | None], ...]] = ContextVar("forebay_steps", default=())


def within_steps() -> tuple[tuple[str, str | None], ...]:
    """Return the steps whose functions have called this, the outermost first."""
    return _within.get()


class StepCall:
    """Calls the function of a step.

    Args:
        call: the call of the handler.
        transactions: gives connections.
        asked: the function and its arguments.
        made: makes the checkpoint of the result; None: it is not called in a transaction.
        commits: around the commit of its effects; raises if the attempt is over.
    """

    def __init__(
        self,
        call: Call,
        transactions: HandlerTransactions,
        asked: Step,
        made: Callable[[Any], NewStep] | None,
        commits: Callable[[], AbstractContextManager[None]],
    ) -> None:
        self._call = call
        self._commits = commits
        self._transactions = transactions
        self._asked = asked
        self._made = made

    @calls_handlers
    def here(self) -> Any:
        """Call it in this thread; return its result, or the checkpoint that is committed."""
        with self._span():
            return self._here()

    @calls_handlers
    def _here(self) -> Any:
        if self._made is None:
            return self._plainly(())
        with self._transactions.plain_connections().connection() as connection:
            self._call.connection = connection.raw
            try:
                with connection.transaction():
                    result = self._plainly((connection.given,))
                    self._check_open(connection.raw)
                    with self._commits():
                        step = self._made(result)
                        connection.settle_last(self._recording(step), begins=False)
            except DatabaseUnavailable as error:
                if says_read_only(error):
                    row = connection.raw.execute(READ_ONLY).fetchone()
                    connection.raw.rollback()
                    self._check_read_only(row, error)
                raise
            finally:
                self._call.connection = None
        return step

    async def __call__(self) -> Any:
        """Call it for a coroutine handler: a plain function in a thread."""
        if not gives_coroutine(self._asked.function):
            return await in_thread(self.here)
        with self._span():
            return await self._on_loop()

    async def _on_loop(self) -> Any:
        if self._made is None:
            return await self._awaited(())
        transactions = self._transactions
        connections = transactions.coroutine_connections()
        transactions.steps += 1
        try:
            async with connections.connection() as connection:
                self._call.connection = connection.raw
                try:
                    async with connection.transaction():
                        result = await self._awaited((connection.given,))
                        self._check_open(connection.raw)
                        with self._commits():
                            step = self._made(result)
                            # Who is in a step will probably be in the next one soon.
                            begins = transactions.steps > connections.begun + 1
                            await connection.settle_last(self._recording(step), begins=begins)
                except DatabaseUnavailable as error:
                    if says_read_only(error):
                        row = await (await connection.raw.execute(READ_ONLY)).fetchone()
                        await connection.raw.rollback()
                        self._check_read_only(row, error)
                    raise
                finally:
                    self._call.connection = None
        finally:
            transactions.steps -= 1
        if connections.begun:
            transactions.end_begun_later()
        return step

    def _span(self) -> AbstractContextManager[None]:
        asked = self._asked
        return stepping(self._call.jobs[0], asked.name, text_of(asked.key))

    @calls_handlers
    def _plainly(self, before: tuple[Any, ...]) -> Any:
        asked = self._asked
        outer = _within.get()
        _within.set((*outer, (asked.name, text_of(asked.key))))
        try:
            result = asked.function(*before, *asked.args, **asked.named)
            return ran(result, self._call.kind.name, step=asked.name)
        finally:
            _within.set(outer)
            end_if_copy()

    @calls_handlers
    async def _awaited(self, before: tuple[Any, ...]) -> Any:
        asked = self._asked
        outer = _within.get()
        _within.set((*outer, (asked.name, text_of(asked.key))))
        try:
            result = await asked.function(*before, *asked.args, **asked.named)
            return ran(result, self._call.kind.name, step=asked.name)
        finally:
            _within.set(outer)
            end_if_copy()

    def _check_open(self, connection: Any) -> None:
        """Refuse a function that returned though it had closed or lost its connection.

        The next attempt would do the same, and "released, the database is away" is not counted.
        """
        if not connection.closed:
            if (misuse := misuse_of(connection)) is not None:
                raise StepRefused(
                    self._shown(),
                    misuse,
                    hint="Leave it open: it is committed when the function has returned.",
                )
            return
        if connection.broken:
            raise broken(
                "the connection broke while the function of the step ran, and it continued"
            )
        raise StepRefused(
            self._shown(),
            "closes the connection that it gets",
            hint="Leave it open: its transaction is committed when the function has returned.",
        )

    def _check_read_only(self, row: Any, error: Exception) -> None:
        """Refuse a function that made its transaction read-only, on a server that is not."""
        if row == ("off",):
            raise StepRefused(
                self._shown(),
                "makes its transaction read-only, so nothing can be recorded in it",
                hint="For what only reads use ctx.step(), with a separate connection.",
            ) from error

    def _shown(self) -> str:
        return shown_step(self._asked.name, text_of(self._asked.key))

    def _recording(self, step: NewStep) -> LastCall:
        return functools.partial(flows.record_once, self._call.helds[0].lease.lease_id, step)
