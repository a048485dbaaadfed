"""The context that a handler receives."""

from __future__ import annotations

import logging
import threading
import time
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    Generic,
    Literal,
    NamedTuple,
    Protocol,
    TypeVar,
    overload,
)

from forebay.errors import OutcomeRefused, StepRefused, shown
from forebay.model.doors import of_a_handler
from forebay.model.schedules import Scheduled
from forebay.model.subjects import SubjectRun
from forebay.model.text import lasting_logger

if TYPE_CHECKING:
    from collections.abc import (
        AsyncIterable,
        Callable,
        Coroutine,
        Iterable,
        Mapping,
        MutableMapping,
        Sequence,
    )
    from datetime import datetime, timedelta

    from forebay.errors import HandlerError
    from forebay.model.job import Job

ConnectionT = TypeVar("ConnectionT")
T = TypeVar("T")
ItemT = TypeVar("ItemT")


class RetryRule(Protocol):
    """A ``RetryPolicy``."""

    @property
    def max_attempts(self) -> int: ...


class JobCall(Protocol):
    """A ``Call``: what ``handler.call(...)`` returns."""

    @property
    def kind(self) -> str: ...
    @property
    def args(self) -> str: ...


#: Held briefly at the start of a wait and of a stop request.
_waiting = threading.Lock()


class Step(NamedTuple):
    """A step as a handler gives it; see ``Context.step``."""

    name: str
    function: Callable[..., Any]
    args: tuple[Any, ...]
    named: Mapping[str, Any]
    key: object
    retry: object
    also: Sequence[str]


class _JobLogger(logging.LoggerAdapter[logging.Logger]):
    """Adds the facts of the job to the fields of its records.

    A field of the call with the same name counts.
    """

    def process(
        self, msg: Any, kwargs: MutableMapping[str, Any]
    ) -> tuple[Any, MutableMapping[str, Any]]:
        kwargs["extra"] = {**(self.extra or {}), **(kwargs.get("extra") or {})}
        return msg, kwargs


class Context:
    """The attempt that a handler runs; its first parameter, if the handler declares one.

    Attributes:
        job: the job; for a batch handler, the first one.
        jobs: all jobs of the call, in the order of the handler's list.
        conn: with ``transaction=True``, the connection whose transaction also completes the job;
            otherwise None. It is a psycopg connection, asynchronous for a coroutine function; see
            ``TransactionContext`` for others. Do not commit it.
        deadline: time of the hard timeout, by ``time.monotonic()``; None without one.
        resources: the resources of this worker, by name.
    """

    __forebay_context__: ClassVar[bool] = True

    def __init__(
        self,
        *,
        job: Job,
        jobs: Sequence[Job] | None = None,
        conn: Any = None,
        deadline: float | None = None,
        resources: Mapping[str, Any] | None = None,
        report: Callable[[float, str], None] | None = None,
        verbs: Callable[[], Any] | None = None,
    ) -> None:
        self.job = job
        self.jobs = jobs if jobs is not None else (job,)
        self.conn = conn
        self.deadline = deadline
        self.resources: Mapping[str, Any] = resources if resources is not None else {}
        self._report = report
        self._verbs_of = verbs
        self._verbs: Any = None
        self._logger: logging.LoggerAdapter[logging.Logger] | None = None
        self._stop: threading.Event | None = None  # created by the first wait
        self._why: HandlerError | None = None
        self._subject: SubjectRun | None = None

    @property
    def logger(self) -> logging.LoggerAdapter[logging.Logger]:
        """The logger ``forebay.job.KIND``, which adds the job to its records.

        Fields: job_id, kind, queue, attempt, max_attempts, tag, correlation_id; of a batch, those
        of the first job.
        """
        if self._logger is None:
            job = self.job
            self._logger = _JobLogger(
                lasting_logger(f"forebay.job.{job.kind}"),
                {
                    "job_id": job.job_id,
                    "kind": job.kind,
                    "queue": job.queue,
                    "attempt": job.attempt,
                    "max_attempts": job.max_attempts,
                    "tag": job.tag,
                    "correlation_id": job.correlation_id,
                },
            )
        return self._logger

    @property
    def attempt(self) -> int:
        """Number of this attempt, from 1."""
        return self.job.attempt

    @property
    def scheduled(self) -> Scheduled | None:
        """The instant that a schedule enqueued the job for; None: no schedule did."""
        return Scheduled.of(self.job.headers)

    @property
    def subject(self) -> SubjectRun | None:
        """The subject whose run this is; None: the job is not a run of a subject."""
        if self._subject is None:
            self._subject = SubjectRun.of(self.job.headers)
        return self._subject

    @property
    def used_subject(self) -> SubjectRun | None:
        """The subject, if the handler has looked at it; None else. For the worker."""
        return self._subject

    @property
    def state(self) -> dict[str, Any]:
        """What handlers of the subject keep between its runs, empty at first: see ``SubjectRun``.

        Change it in place.

        Raises:
            TypeError: the job is not a run of a subject.
        """
        if self.subject is None:
            message = "the job is not a run of a subject: it has no state"
            raise TypeError(message)
        return self.subject.state

    @property
    def cancelled(self) -> bool:
        """Whether the handler should stop: the job was cancelled or timed out, or its lease is
        lost.
        """
        return self._why is not None

    @property
    def seconds_left(self) -> float | None:
        """Seconds until the hard timeout, not below 0; None without one."""
        return None if self.deadline is None else max(0.0, self.deadline - time.monotonic())

    @of_a_handler
    def progress(self, done: float, note: str = "") -> None:
        """Report the progress of the handler.

        ``forebay jobs show`` and ``JobHandle.progress`` show it.

        The call is cheap: the newest report of each job is written at most once a second, outside
        any transaction.

        Args:
            done: from 0 to 1.
            note: text for display, cut after 200 characters.

        Raises:
            OutcomeRefused: ``done`` is not within 0 to 1, or a value has a wrong type.
        """
        if not 0 <= done <= 1:
            raise OutcomeRefused("done", f"is {done}, not within 0 to 1")
        if self._report is not None:
            self._report(float(done), str(note)[:200])

    def raise_if_cancelled(self) -> None:
        """Raise an error if the handler should stop.

        Raises:
            JobCancelled: the job was cancelled, or the worker lost it.
            SoftTimeout: the soft timeout has passed.
        """
        if self._why is not None:
            raise self._why

    def wait_cancelled(self, seconds: float | None = None) -> bool:
        """Wait until the handler should stop, or for the given seconds.

        Only handlers in threads may call it.
        """
        with _waiting:
            if self._stop is None:
                self._stop = threading.Event()
                if self._why is not None:
                    self._stop.set()
        return self._stop.wait(seconds)

    # --- steps ---

    def _forget_steps(self) -> None:
        """Let go of what the steps of the attempt refer to; called by the worker at its end."""
        self._verbs = None

    def _steps(self, name: object) -> Any:
        if self._verbs is None:
            if self._verbs_of is None:
                raise StepRefused(
                    name if isinstance(name, str) else shown(name),
                    "needs a worker: this context is made by hand",
                    hint="In a test, run the flow with forebay.testing.run_until_idle(app).",
                )
            self._verbs = self._verbs_of()
        return self._verbs

    @overload
    def step(
        self, name: str, function: Callable[..., Coroutine[Any, Any, T]], /, *args: Any,
        key: str | int | None = ..., retry: RetryRule | Mapping[str, Any] | None = ...,
        also: Sequence[str] = ..., **named: Any,
    ) -> Coroutine[Any, Any, T]: ...  # fmt: skip

    @overload
    def step(
        self, name: str, function: Callable[..., Any], /, *args: Any,
        key: str | int | None = ..., retry: RetryRule | Mapping[str, Any] | None = ...,
        also: Sequence[str] = ..., **named: Any,
    ) -> Any: ...  # fmt: skip

    def step(
        self,
        name: str,
        function: Callable[..., Any],
        /,
        *args: Any,
        key: str | int | None = None,
        retry: RetryRule | Mapping[str, Any] | None = None,
        also: Sequence[str] = (),
        **named: Any,
    ) -> Any:
        """Call a function, and record its result: later attempts of the job get that result.

        Await it in a coroutine handler; a plain handler gets the result directly. The function runs
        at least once: again, if the process dies before the result is recorded, or if something
        beside it ends the attempt. A step that will be tried again waits for those beside it, at
        most a minute. So give the other side a key that stays the same, such as
        ``f"{ctx.job.job_id}-charge"``.

        If the function raises, the attempt ends, gives its slot back, and runs again after a delay.
        Attempts are counted anew from each recorded step.

        Args:
            name: of the step, 1 to 200 characters; once in an attempt.
            function: what to call. A coroutine handler may give a coroutine function, or a plain
                one, which runs in a thread.
            *args: its arguments.
            key: tells several steps with one name apart, as in a loop.
            retry: how it is retried; default: as its kind is.
            also: earlier names of the step: their results count. No other step has one of them.
            **named: its arguments by name.

        Returns:
            the result, in the type that the function declares. It has passed through JSON.

        Raises:
            StepFailed: the function has failed in all its attempts.
            StepChanged: the recorded result has another type than the function declares now.
            StepTooLarge: the result has more than a megabyte, or the flow too many steps.
            StepRefused: a name twice, or an argument that cannot be used.
        """
        asked = Step(name, function, args, named, key, retry, also)
        return self._steps(name).step(asked, in_transaction=False)

    def once(
        self,
        name: str,
        function: Callable[..., Any],
        /,
        *args: Any,
        key: str | int | None = None,
        retry: RetryRule | Mapping[str, Any] | None = None,
        also: Sequence[str] = (),
        **named: Any,
    ) -> Any:
        """Call ``function(conn, ...)`` in a transaction that also records its result.

        What it writes in this database, its result, and the proof that this worker still has the
        job are one commit: its effects are there exactly once. The connection is one of psycopg,
        asynchronous for a coroutine function. Do not commit it.

        For arguments, result and errors see ``step``.
        """
        asked = Step(name, function, args, named, key, retry, also)
        return self._steps(name).step(asked, in_transaction=True)

    def sleep(
        self,
        name: str,
        delay: float | timedelta | None = None,
        *,
        until: datetime | None = None,
        key: str | int | None = None,
    ) -> Any:
        """Continue the job later, without a slot meanwhile; the handler runs again from its start.

        Await it in a coroutine handler.

        Args:
            name: of the step.
            delay: seconds or a timedelta, counted from the first attempt that comes here; later
                attempts do not look at it. A negative one is over at once.
            until: an aware datetime instead; one in the past is now.
            key: tells several steps with one name apart.

        Raises:
            StepRefused: a name twice, or a time that cannot be used.
        """
        return self._steps(name).sleep(name, delay, until, key)

    def wait(
        self,
        name: str,
        *,
        key: str | int | None = None,
        timeout: float | timedelta | None = None,
        as_type: Any = Any,
        step_key: str | int | None = None,
    ) -> Any:
        """Wait for ``forebay.signal(conn, name, key, payload)``; return the payload.

        It gives the slot back meanwhile. Await it in a coroutine handler. The signal may come
        before the wait.

        Args:
            name: of the signal, and of the step.
            key: the key of the signal; default: the id of the job, which is another one after a
                redrive.
            timeout: seconds or a timedelta, counted from the first attempt that comes here; later
                attempts do not look at it. A negative one is 0. None: it waits without limit.
            as_type: the type of the payload.
            step_key: tells several waits with one name in a job apart.

        Raises:
            WaitTimeout: no signal came in time.
            WaitTaken: another job waits for this name and key.
            StepChanged: the payload is of another type.
            StepRefused: a name twice, or a value that cannot be used.
        """
        return self._steps(name).wait(name, key, timeout, as_type, step_key)

    def gather(
        self,
        name: str,
        calls: Iterable[JobCall],
        *,
        on_dead: Literal["raise", "collect"] = "raise",
        key: str | int | None = None,
    ) -> Any:
        """Enqueue jobs, and wait until all have ended, without a slot; return their results.

        Await it in a coroutine handler. The jobs are enqueued in one commit, once. A job of a queue
        with several groups has ended when the first of them has ended it.

        Args:
            name: of the step.
            calls: ``handler.calls(items)``, or an iterable of ``handler.call(...)``, of any kinds;
                at most 100,000. A job may not have a unique key. The attempt that has the results
                reads the kinds of the calls again, and nothing else of them.
            on_dead: "raise": if a job died or was cancelled, raise an error after all have ended;
                "collect": its place in the list has a ``JobDied``.
            key: tells several steps with one name apart.

        Returns:
            the results in the order of the calls, in the types that their handlers declare.

        Raises:
            ChildrenDied: jobs died or were cancelled.
            StepRefused: a name twice, or a call that is refused.
        """
        return self._steps(name).gather(name, calls, on_dead, key)

    def each(
        self,
        name: str,
        items: Iterable[ItemT] | AsyncIterable[ItemT],
        *,
        key: Callable[[ItemT], str | int],
    ) -> Any:
        """Iterate over the items that are not done, with a checkpoint after each.

        ``async for`` in a coroutine handler, ``for`` in a plain one. The body runs at least once
        for each item; an item is done when the loop comes to the next one. After ``break`` the last
        one is not done.

        Args:
            name: of the loop.
            items: may change between attempts: items are known by their keys.
            key: gives the key of an item, text or a whole number, unique among the items.
        """
        return self._steps(name).each(name, items, key)

    def done(self, name: str, *, key: str | int | None = None) -> Any:
        """Whether a step is recorded: for flows that began before the code changed.

        Await it in a coroutine handler. It does not count as asking for the step.
        """
        return self._steps(name).done(name, key)

    def request_stop(self, why: HandlerError) -> None:
        """Request that the handler stops; called by the worker."""
        with _waiting:
            self._why = why
            if self._stop is not None:
                self._stop.set()


class TransactionContext(Context, Generic[ConnectionT]):
    """A context with another type of ``conn``, for handlers with ``transaction=True``.

    With ``TransactionContext[Session]``, writes through that session commit together with the
    completion of the job. The type may be ``Session``, ``Connection``, ``AsyncSession`` or
    ``AsyncConnection`` of SQLAlchemy, or a subclass, or ``BaseDatabaseWrapper`` of Django. With the
    latter, all writes of models on it are part of the transaction.

    Attributes:
        conn: the connection or session. Do not commit it.
    """

    conn: ConnectionT
