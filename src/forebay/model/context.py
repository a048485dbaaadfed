"""The context that a handler receives."""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

from forebay.errors import OutcomeRefused
from forebay.model.doors import of_a_handler
from forebay.model.schedules import Scheduled
from forebay.model.subjects import SubjectRun
from forebay.model.text import lasting_logger

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, MutableMapping, Sequence

    from forebay.errors import HandlerError
    from forebay.model.job import Job

ConnectionT = TypeVar("ConnectionT")

#: Held briefly at the start of a wait and of a stop request.
_waiting = threading.Lock()


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
    ) -> None:
        self.job = job
        self.jobs = jobs if jobs is not None else (job,)
        self.conn = conn
        self.deadline = deadline
        self.resources: Mapping[str, Any] = resources if resources is not None else {}
        self._report = report
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
