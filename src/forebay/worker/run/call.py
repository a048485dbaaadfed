"""One call of a handler: what it gets, how it is called, and how it is interrupted.

A *call* runs one job, or several jobs of a batch handler.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
from typing import TYPE_CHECKING, Any

import msgspec

from forebay._family import RUNNING
from forebay.arguments.results import ran
from forebay.db.session import cut
from forebay.errors import JobCancelled
from forebay.forks import end_if_copy
from forebay.model.middleware import Attempt
from forebay.policy.around import run_within, run_within_async
from forebay.policy.error_text import calls_handlers
from forebay.worker.ground.held import job_of

if TYPE_CHECKING:
    from forebay.arguments.kinds import Kind
    from forebay.errors import HandlerError
    from forebay.model.context import Context
    from forebay.model.job import Job
    from forebay.policy.around import Around
    from forebay.worker.ground.held import HeldJob
    from forebay.worker.ground.threads import Threads


def attempt_of(job: Job) -> str:
    """Return which attempt of a job it is, for the log."""
    return f"attempt {job.attempt} of {job.max_attempts}"


class Call(msgspec.Struct, eq=False, weakref=True):
    """One call of a handler. ``context`` is None if the handler cannot access it."""

    kind: Kind
    helds: list[HeldJob]
    items: list[Any]
    group: str
    task: asyncio.Task[None]
    context: Context | None = None
    thread_call: Any = None
    connection: Any = None
    #: The connection as the handler sees it.
    given: Any = None
    #: Methods of middlewares around the handler.
    around: tuple[Around, ...] = ()
    started: bool = False
    why: HandlerError | None = None
    settling: bool = False
    in_child: bool = False
    has_ended: bool = False
    #: Its steps; None: the handler has used none.
    flow: Any = None
    timers: list[asyncio.TimerHandle] = []
    _jobs: list[Job] | None = None

    @property
    def jobs(self) -> list[Job]:
        """The jobs as the handler sees them.

        Built on first use, because short handlers do not need them.
        """
        if self._jobs is None:
            self._jobs = [job_of(held, self.kind, self.group) for held in self.helds]
        return self._jobs

    def restart_attempts(self) -> None:
        """Count the attempts of its job anew from this one: it has recorded a checkpoint."""
        (held,) = self.helds
        held.row.attempt = None
        self._jobs = None

    def parent(self) -> tuple[int, str | None] | None:
        """Return what the jobs learn of this one that its handler enqueues.

        None for a batch, and for a call that a test makes without a worker: its job has no row.
        """
        if self.kind.batch_size is not None or self.task is None:
            return None
        row = self.helds[0].row
        return row.job_id, row.correlation_id

    def attempt(self) -> Attempt:
        """Return the attempt as middlewares see it."""
        return Attempt(job=self.jobs[0], jobs=self.jobs, conn=self.given)

    def arguments(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Positional and keyword arguments of the handler."""
        before = (self.context,) if self.kind.takes_context else ()
        if self.kind.batch_size is not None:
            return (*before, self.items), {}
        return before, self.items[0]

    def interrupt(self, why: HandlerError, threads: Threads) -> None:
        """Ask the handler to stop, unless its transaction already settles.

        The first reason counts.
        """
        if self.settling:
            return
        self.why = self.why or why
        if self.context is not None:
            self.context.request_stop(why)
        if self.flow is not None and self.kind.is_async and self._is_cancelled(why):
            self.flow.cancel(why)
        elif self.kind.is_async or self.in_child:
            self.task.cancel()  # This kills a child process.
        elif self.thread_call is not None:
            threads.interrupt(self.thread_call, _ready_made(why))

    def _is_cancelled(self, why: HandlerError) -> bool:
        # A job that was given away, when its worker stops or has lost it, has ended here.
        return isinstance(why, JobCancelled) and not self.helds[0].ended

    def cut(self) -> None:
        """Close the socket of the call's transaction, if any, so that it can no longer commit."""
        if self.connection is not None:
            cut(self.connection)

    def forget_flow(self) -> None:
        """Let go of the steps, which refer to this call: it would keep its arguments for long."""
        if self.flow is not None:
            self.flow.unbegun.clear()
        self.flow = None
        if self.context is not None:
            self.context._forget_steps()

    def cancel_timers(self) -> None:
        """Cancel the timeouts of the call."""
        for timer in self.timers:
            timer.cancel()


@calls_handlers
async def run_on_loop(call: Call) -> Any:
    """Call a coroutine handler; return its result."""
    positional, named = call.arguments()
    call.started = True
    token = RUNNING.set(call.parent())
    try:
        if call.around:
            return await _within_async(call, positional, named)
        try:
            result = call.kind.function(*positional, **named)
            return ran(await result if inspect.isawaitable(result) else result, call.kind.name)
        finally:
            end_if_copy()
    finally:
        RUNNING.reset(token)


@calls_handlers
async def _within_async(call: Call, positional: tuple[Any, ...], named: dict[str, Any]) -> Any:
    attempt = call.attempt()

    @calls_handlers
    async def inner() -> Any:
        try:
            result = call.kind.function(*positional, **named)
            result = await result if inspect.isawaitable(result) else result
            attempt.returned = ran(result, call.kind.name)
        finally:
            end_if_copy()
        return attempt.returned

    return await run_within_async(call.around, attempt, inner)


async def run_in_thread(call: Call, threads: Threads) -> Any:
    """Call a plain handler in a thread; return its result."""
    call.thread_call = threads.submit(lambda: call_plainly(call))
    call.started = True
    return await call.thread_call.future


@calls_handlers
def call_plainly(call: Call) -> Any:
    """Call a plain handler in this thread; return its result."""
    positional, named = call.arguments()
    # The call has a separate context: what a handler or a middleware sets there, such as a tenant
    # or a language, does not reach the next job of this thread.
    run = _within if call.around else _alone
    context = contextvars.copy_context()
    context.run(RUNNING.set, call.parent())
    return context.run(run, call, positional, named)


@calls_handlers
def _alone(call: Call, positional: tuple[Any, ...], named: dict[str, Any]) -> Any:
    try:
        return ran(call.kind.function(*positional, **named), call.kind.name)
    finally:
        end_if_copy()


@calls_handlers
def _within(call: Call, positional: tuple[Any, ...], named: dict[str, Any]) -> Any:
    attempt = call.attempt()

    @calls_handlers
    def inner() -> Any:
        try:
            attempt.returned = ran(call.kind.function(*positional, **named), call.kind.name)
        finally:
            end_if_copy()
        return attempt.returned

    return run_within(call.around, attempt, inner)


def _ready_made(error: HandlerError) -> type[HandlerError]:
    # To raise an exception in another thread, Python needs a class without required arguments.
    kind = type(error)

    def init(self: HandlerError) -> None:
        self.__dict__.update(error.__dict__)
        self.args = error.args

    return type(kind.__name__, (kind,), {"__init__": init, "__module__": kind.__module__})
