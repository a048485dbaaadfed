# Generated from src/forebay/client/_async/jobs.py by tools/async_to_sync.py. Do not edit.
"""The part of the synchronous client for jobs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeVar, overload

from forebay.client._address import address_of
from forebay.client._sync.base import ClientBase
from forebay.client.watching import EVERY_SECONDS, VISIBLE_SECONDS, watch
from forebay.db.drivers import SyncConnection
from forebay.db.own import await_own
from forebay.errors import ResultTimeout
from forebay.model import JobState
from forebay.model.change import JobFilter
from forebay.model.explanation import Explanation
from forebay.model.flows import FlowState, RewindPlan
from forebay.model.status import CancelAnswer, Depth, JobHistory, JobStatus, JobUpdate
from forebay.ops import flows, jobs, results
from forebay.watch import explain

T = TypeVar("T")


class Jobs(ClientBase):
    """Inspect jobs, wait for their results, and cancel them."""

    def job(self, job_id: int, *, conn: SyncConnection | None = None) -> list[JobStatus]:
        """Return the status of a job, one entry for each consumer group of its queue.

        ``attempt`` is the one that runs, or runs next, from 1; of a job that has ended, the last
        that ran, 0 if none did. ``max_attempts`` is the job's own number, else what the worker
        reported when an attempt failed; None while neither is known.

        Raises:
            JobNotFound: the job does not exist: it is past retention, or not committed.
        """
        return self._run(conn, jobs.job(job_id))

    def explain(self, job_id: int, *, conn: SyncConnection | None = None) -> list[Explanation]:
        """Return why a job does not run, one entry for each consumer group of its queue.

        An entry has a ``cause`` for programs, an ``answer`` in one sentence, a ``hint`` with the
        next step, and the ``steps`` that led there.

        A job that is not visible gets one entry with the cause ``"unknown"``. The call counts at
        most 10,001 of the jobs that come first. It needs the rights of an operator or reader.
        ``forebay doctor --job`` also looks for trouble of the database.
        """
        return self._run(conn, explain.explain_job(job_id))

    def job_history(self, job_id: int, *, conn: SyncConnection | None = None) -> list[JobHistory]:
        """Return the failed attempts, progress and kept result of a job, one entry for each
        group with any of them.
        """
        return self._run(conn, results.history(job_id))

    def flow(
        self, job_id: int, *, values: bool = False, conn: SyncConnection | None = None
    ) -> list[FlowState]:
        """Return the steps that a job has recorded and what it waits for, one entry for each group
        with any.

        Args:
            job_id: the job.
            values: also what the steps returned, at most 16 megabytes.
            conn: the connection to use.
        """
        return self._run(conn, flows.flow(job_id, values=values))

    @overload
    def result(
        self,
        job_id: int,
        *,
        group: str = "default",
        timeout: float | None = None,
        as_type: type[T],
    ) -> T: ...

    @overload
    def result(
        self,
        job_id: int,
        *,
        group: str = "default",
        timeout: float | None = None,
        as_type: object = Any,
    ) -> Any: ...

    def result(
        self,
        job_id: int,
        *,
        group: str = "default",
        timeout: float | None = None,
        as_type: object = Any,
    ) -> Any:
        """Wait until a job has ended and return what its handler returned.

        See ``JobHandle.result``.

        The call opens its own connection, since a result is visible only after its commit.
        """
        answer = self._run(None, results.result(job_id, group, wait_seconds=0.0))
        if not answer.is_final and timeout != 0:
            self._dsn = address_of(self._dsn)
            answer = await_own(
                self._dsn,
                lambda seconds: results.result(job_id, group, wait_seconds=seconds),
                lambda answer: answer.is_final,
                channel=results.CHANNEL,
                key=str(job_id),
                seconds=timeout,
            )
        if not answer.is_final:
            raise ResultTimeout(job_id, state=answer.state, seconds=timeout or 0.0)
        return answer.read(as_type)

    def watch(
        self,
        job_id: int,
        *,
        group: str = "default",
        timeout: float | None = None,
        visible_within: float = VISIBLE_SECONDS,
        every: float = EVERY_SECONDS,
    ) -> Iterator[JobUpdate]:
        """Iterate over the changes of a job until it has ended.

        See ``JobHandle.watch``.
        """
        self._dsn = address_of(self._dsn)
        return watch(
            self._dsn,
            job_id,
            group,
            timeout=timeout,
            visible_within=visible_within,
            every=every,
        )

    def jobs(
        self,
        *,
        queue: str | None = None,
        kind: str | None = None,
        state: JobState | str | None = None,
        limit: int = 50,
        before: int | None = None,
        which: JobFilter | None = None,
        conn: SyncConnection | None = None,
    ) -> list[JobStatus]:
        """Return the newest jobs, newest first; a retry counts as new.

        The search is bounded: for a rare state, older jobs may not be found.

        Args:
            queue: only this queue.
            kind: only this kind.
            state: only this state.
            limit: maximum number of entries, 1 to 1000; the entries of one job stay together.
            before: the ``place`` of the last entry of the previous page.
            which: only jobs that match this filter, ended ones too: tag, correlation id, keys,
                times. Without ids and state.
            conn: the connection to use.
        """
        return self._run(
            conn,
            jobs.jobs(queue=queue, kind=kind, state=state, limit=limit, before=before, which=which),
        )

    def depth(self, queue: str | None = None, *, conn: SyncConnection | None = None) -> list[Depth]:
        """Return the numbers of waiting and running jobs by queue, priority and group.

        It continues from counts that workers renew every two seconds. Where no worker has run yet,
        it reads every waiting job.
        """
        return self._run(conn, jobs.depth(queue))

    def cancel(
        self,
        job_id: int,
        *,
        group: str | None = None,
        now: bool = False,
        conn: SyncConnection | None = None,
    ) -> CancelAnswer:
        """Cancel a job, and return what that means for it.

        - ``"cancelled"``: the job waits, or was cancelled before. It will not start. A claim at the
          same moment may still start it; then its handler is requested to stop.
        - ``"requested"``: a worker has the job. A running handler is requested to stop; a job that
          finishes before stays done. A flow that waits continues: its step raises
          ``JobCancelled``, and its handler may compensate with further steps.
        - ``"already ended"``: the job is done, expired or dead.
        - ``"unknown"``: no such job: never enqueued, not committed, or past retention.

        Args:
            job_id: the job.
            group: only in this consumer group of its queue. Default: all groups.
            now: a flow that waits ends without running again.
            conn: the connection whose transaction to use.

        Raises:
            GroupNotFound: the queue does not have this group.
        """
        return self._run(conn, jobs.cancel(job_id, group, now=now))

    def signal(
        self, conn: SyncConnection | None, name: str, key: str | int, payload: Any = None
    ) -> bool:
        """Send a signal: the flow that waits for this name and key continues after the commit.

        It may begin to wait later: a signal is kept until a flow takes it, at most 30 days.

        Args:
            conn: the connection whose transaction to use; None: a separate transaction.
            name: what the flow waits for, as in ``ctx.wait(name)``.
            key: which flow: the key of its wait, or, without one, the id of its job.
            payload: what the wait returns; a JSON value.

        Returns:
            True for the first signal of the pair; False if another one waits to be taken: then this
            one was not kept.

        Raises:
            InvalidJob: a value cannot be used; nothing was sent.
            PayloadTooLarge: the payload has more bytes than ``args_bytes_max``.
        """
        return self._run(conn, flows.signal(name, key, payload))

    def rewind(
        self, job_id: int, step: str, *, key: str | None = None, group: str | None = None
    ) -> int:
        """Let a flow continue again from one of its steps; return the id of the job that continues.

        The steps before stay, that step and all later ones are forgotten. A flow that waits or will
        be tried again continues at once, with the same id; of a dead one a new job is made. Jobs
        that a forgotten step had enqueued run on.

        Args:
            job_id: the job.
            step: name of the step.
            key: the key of the step; None: it has only a name.
            group: the consumer group. Default: the only one in which it waits or is dead.

        Raises:
            JobNotFound: the job does not exist.
            InvalidJob: it has not recorded this step, or it neither waits nor is dead.
        """
        return self._run(None, flows.rewind(job_id, step, key, group))

    def plan_rewind(
        self, job_id: int, step: str, *, key: str | None = None, group: str | None = None
    ) -> RewindPlan:
        """Return what ``rewind`` would do; change nothing."""
        return self._run(None, flows.plan_rewind(job_id, step, key, group))
