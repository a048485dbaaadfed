"""Run jobs in a test, with a real worker."""

from __future__ import annotations

import asyncio
from dataclasses import field, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from forebay._dataclass import dataclass
from forebay.app import App, require_app
from forebay.config import (
    WorkerSettings,
    checked_group,
    parse_queue_weights,
    require_address,
)
from forebay.db.own import run_own_async
from forebay.model import JobState
from forebay.ops import declared, jobs
from forebay.ops.operation import Operation, scalar
from forebay.testing._clock import IS_INSTALLED, NOW, moved, no_clock
from forebay.testing._failed import JobFailed
from forebay.worker import Worker

if TYPE_CHECKING:
    from collections.abc import Collection
    from datetime import datetime

    from forebay.config import Queues
    from forebay.model.attempts import AttemptEnded

#: After this number of moves of the clock jobs are assumed to run forever, as one does that snoozes
#: each time.
_MOVES_MAX: Final = 1000


#: A job that is due later waits for a signal or for children, and for no time.
_FOR_EVER: Final = timedelta(days=90 * 365)


@dataclass(slots=True, kw_only=True)
class IdleRun:
    """What a worker did until it was idle.

    All numbers are of attempts, except ``expired``, which counts jobs.

    Attributes:
        done: the handler returned, and the job is done.
        retried: the attempt failed, and the job runs again later.
        dead: the attempt failed, and the job is a dead letter.
        cancelled: the job ended as cancelled.
        snoozed: the handler returned ``Snooze``; the job runs again later.
        postponed: the application has no handler for the job.
        released: given back without using an attempt.
        expired: jobs that were found expired, and are dead letters now.
        failures: the attempts that failed, oldest first: each has ``job``, ``error``, ``outcome``;
            see ``AttemptEnded``.
        moved_seconds: how far the clock was moved to run scheduled jobs.
    """

    done: int = 0
    retried: int = 0
    dead: int = 0
    cancelled: int = 0
    snoozed: int = 0
    postponed: int = 0
    released: int = 0
    expired: int = 0
    failures: list[AttemptEnded] = field(default_factory=list)
    moved_seconds: float = 0.0

    @property
    def errors(self) -> list[BaseException]:
        """The exceptions of the failed attempts, oldest first."""
        return [each.error for each in self.failures if each.error is not None]

    def record(self, attempt: AttemptEnded) -> None:
        """Count the end of an attempt."""
        setattr(self, attempt.outcome, getattr(self, attempt.outcome) + 1)
        if attempt.failed:
            self.failures.append(attempt)

    def raise_failure(self) -> None:
        """Raise the exception of the first failed attempt, if any; a note names its job.

        Raises:
            JobFailed: the first attempt failed without an exception.
        """
        if not self.failures:
            return
        first = self.failures[0]
        if first.error is None:
            raise JobFailed(f"{_name_of(first)} ended as {first.outcome}: {first.message}")
        more = f" ({len(self.failures)} attempts failed)" if len(self.failures) > 1 else ""
        first.error.add_note(f"{_name_of(first)}{more}")
        raise first.error


def run_until_idle(
    app: App,
    dsn: str | None = None,
    *,
    queues: Queues | None = None,
    concurrency: int | None = None,
    group: str = "default",
    raise_on_failure: bool = True,
    with_scheduled: bool = False,
) -> IdleRun:
    """Run committed jobs with a new worker until none is ready or running; return what happened.

    Jobs that these jobs enqueue run too. The queues that the app declares are applied first, so
    that its limits are in force, as ``forebay apply`` does: what the test changed is kept.

    Args:
        app: the application.
        dsn: the database; None means the app's.
        queues: only these: names, names with weights, or their short form; None means all queues of
            the app.
        concurrency: the most jobs at a time; None means the default.
        group: the consumer group of each queue.
        raise_on_failure: raise the exception of the first attempt that failed. With False failures
            are counted only.
        with_scheduled: run jobs that are scheduled, snoozed or wait for a retry as well, in the
            order in which they are due: whenever no job is ready, the clock of the database is
            moved to the next one. Nothing waits. A failure that is raised ends the run before the
            retry. So a flow runs to its end, if the signals that it waits for were sent before; one
            that waits without a timeout stays as it is.

    Raises:
        Exception: what the handler raised.
        JobFailed: an attempt failed without an exception.
        RuntimeError: jobs run again without end, as one does that snoozes each time.
        ConfigError: ``with_scheduled``, and the database has no test clock; see ``install_clock``.
    """
    return asyncio.run(
        run_until_idle_async(
            app,
            dsn,
            queues=queues,
            concurrency=concurrency,
            group=group,
            raise_on_failure=raise_on_failure,
            with_scheduled=with_scheduled,
        )
    )


async def run_until_idle_async(
    app: App,
    dsn: str | None = None,
    *,
    queues: Queues | None = None,
    concurrency: int | None = None,
    group: str = "default",
    raise_on_failure: bool = True,
    with_scheduled: bool = False,
) -> IdleRun:
    """Do as ``run_until_idle``, on a running event loop."""
    # Defaults instead of the settings of this machine: a test behaves the same everywhere.
    require_app(app)
    settings = WorkerSettings()
    chosen = None if queues is None else parse_queue_weights(queues)
    if concurrency is not None:
        settings = replace(settings, concurrency=concurrency)
    address = dsn if dsn is not None else app.dsn
    require_address(address)
    checked_group(group)
    if with_scheduled and not await run_own_async(address, IS_INSTALLED):
        raise no_clock()
    if app.queues:
        await run_own_async(address, declared.apply_queues(app.name, app.queues.values()))
    found = IdleRun()
    expired = await _expired(address)
    for _ in range(_MOVES_MAX):
        # Each round starts a new worker: no lease is open while the clock moves.
        worker = Worker(
            app._internals,
            address,
            queues=chosen,
            settings=settings,
            group=group,
        )
        worker.on_attempt = found.record
        await worker.run(until_idle=True)
        if not with_scheduled or (found.failures and raise_on_failure):
            break
        due = await _next_due(app, address, group, chosen or app.kinds.queues())
        if due is None:
            break
        seconds = max(0.0, (due - await run_own_async(address, NOW)).total_seconds()) + 0.001
        await run_own_async(address, moved(seconds))
        found.moved_seconds += seconds
    else:
        message = f"jobs still run after {_MOVES_MAX} moves of the clock: {found}"
        raise RuntimeError(message)
    found.expired = await _expired(address) - expired
    if raise_on_failure:
        found.raise_failure()
    return found


async def _next_due(app: App, dsn: str, group: str, queues: Collection[str]) -> datetime | None:
    """Return when the next job that waits for its time is due.

    The result is None if no job of these queues waits for its time.
    """
    times = []
    for state in (JobState.SCHEDULED, JobState.RETRYING):
        for job in await run_own_async(dsn, jobs.jobs(state=state, limit=jobs.LIST_MAX)):
            is_ours = job.queue in queues and job.group == group and job.kind in app.kinds
            if is_ours and job.run_at is not None:
                times.append(job.run_at)
    first = min(times, default=None)
    if first is not None and first - await run_own_async(dsn, NOW) > _FOR_EVER:
        return None
    return first


async def _expired(dsn: str) -> int:
    return await run_own_async(dsn, _EXPIRED)


_EXPIRED: Final = Operation(
    "select count(*) from forebay.dead_letter where reason = 'expired'", scalar
)


def _name_of(attempt: AttemptEnded) -> str:
    job = attempt.job
    return f"job {job.job_id} ({job.kind}), attempt {job.attempt} of {job.max_attempts}"
