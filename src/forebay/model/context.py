"""What a handler is given about the job it runs."""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from forebay.errors import HandlerError
    from forebay.model.job import Job

ConnectionT = TypeVar("ConnectionT")

#: Held for a moment by who begins to wait and by who asks to stop.
_waiting = threading.Lock()


class Context:
    """A handler's view of its attempt; its first parameter, when it declares one.

    Attributes:
        job: the job; of a batch handler the first one.
        jobs: all jobs of the call, in the order of the handler's list.
        conn: with ``transaction=True`` the connection whose transaction also completes the job, otherwise
            None. psycopg's, asynchronous for a coroutine function; see ``TransactionContext`` for
            others. Do not commit it.
        deadline: when the hard timeout strikes, on ``time.monotonic()``'s clock; None without one.
        resources: what the app's resource factories built for this worker, by name.
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
        self._stop: threading.Event | None = None  # made for whoever waits for it
        self._why: HandlerError | None = None

    @property
    def logger(self) -> logging.LoggerAdapter[logging.Logger]:
        """A logger that names the job."""
        if self._logger is None:
            self._logger = logging.LoggerAdapter(
                logging.getLogger(f"forebay.job.{self.job.kind}"),
                {"job_id": self.job.job_id, "attempt": self.job.attempt},
            )
        return self._logger

    @property
    def attempt(self) -> int:
        """Number of this attempt, from 1."""
        return self.job.attempt

    @property
    def cancelled(self) -> bool:
        """Whether the handler should stop: cancelled, timed out, or its lease is lost."""
        return self._why is not None

    @property
    def seconds_left(self) -> float | None:
        """Seconds until the hard timeout, not below 0; None without one."""
        return None if self.deadline is None else max(0.0, self.deadline - time.monotonic())

    def progress(self, done: float, note: str = "") -> None:
        """Say how far the handler is; shown by ``forebay jobs show`` and ``JobHandle.progress``.

        Costs next to nothing: the newest of each job is written once a second at most, aside from any transaction.

        Args:
            done: from 0 to 1.
            note: for people, cut after 200 characters.

        Raises:
            ValueError: ``done`` is not within 0 to 1.
        """
        if not 0 <= done <= 1:
            message = f"progress must be within 0 to 1, not {done}"
            raise ValueError(message)
        if self._report is not None:
            self._report(float(done), str(note)[:200])

    def raise_if_cancelled(self) -> None:
        """Raise what ends the attempt when the handler should stop.

        Raises:
            JobCancelled: somebody cancelled the job, or the worker lost it.
            SoftTimeout: its time is up.
        """
        if self._why is not None:
            raise self._why

    def wait_cancelled(self, seconds: float | None = None) -> bool:
        """Wait until the handler should stop, at most so many seconds; in a thread only."""
        with _waiting:
            if self._stop is None:
                self._stop = threading.Event()
                if self._why is not None:
                    self._stop.set()
        return self._stop.wait(seconds)

    def request_stop(self, why: HandlerError) -> None:
        """Tell the handler to stop; called by the worker."""
        with _waiting:
            self._why = why
            if self._stop is not None:
                self._stop.set()


class TransactionContext(Context, Generic[ConnectionT]):
    """A context whose ``conn`` is of another kind, for handlers with ``transaction=True``.

    ``TransactionContext[Session]``: what is written through that session commits with the job's completion. Of
    SQLAlchemy it may be a ``Session``, ``Connection``, ``AsyncSession``, ``AsyncConnection`` or a subclass of one;
    of Django its ``BaseDatabaseWrapper``, and then all that models write there belongs to the transaction.

    Attributes:
        conn: the connection or session. Do not commit it.
    """

    conn: ConnectionT
