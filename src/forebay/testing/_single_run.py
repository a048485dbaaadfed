"""One call of a handler without a worker, for tests.

Arguments are decoded, the handler is called, and the outcome is decided by the functions that a
worker uses. Nothing is claimed or settled, and no timeout is enforced.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from forebay.model.job import CARRIED
from forebay.model.middleware import around_attempts
from forebay.ops.claimed import ClaimedJob
from forebay.ops.flows import CALLBACK_HEADER
from forebay.ops.protocol import Ended, ReadyLane
from forebay.worker.ground.held import Batch, HeldJob, Lease
from forebay.worker.ground.job_log import error_text
from forebay.worker.ground.stats import COUNTERS as OUTCOMES
from forebay.worker.run import endings
from forebay.worker.run.call import Call, call_plainly, run_on_loop

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Sequence

    from forebay.arguments.kinds import Kind, Kinds
    from forebay.model import Job
    from forebay.model.context import Context
    from forebay.model.middleware import Middleware

__all__ = ["OUTCOMES", "SingleRun", "error_text"]


class SingleRun:
    """One call of a handler for a job of its kind, or for several jobs of a batch handler.

    Args:
        kinds: the handlers.
        jobs: the jobs, of one kind and queue, with their arguments as decoded JSON.
        context: given to the handler if it takes one.
        middleware: what runs around the handler.

    Attributes:
        returned: whether the handler returned.
        result: what it returned; None if it did not.
        endings: how each job would end, None for done; in the order of the jobs.
        errors: what each job's attempt raised, or None.
    """

    def __init__(
        self,
        kinds: Kinds,
        jobs: Sequence[Job],
        context: Context,
        middleware: Sequence[Middleware] = (),
    ) -> None:
        lease = Lease(0, 0.0)
        batch = Batch(lease, 1, len(jobs), set(range(1, len(jobs) + 1)))
        lane = ReadyLane(0, 0, jobs[0].queue, jobs[0].priority, is_private=False, is_suspect=False)
        group = jobs[0].group
        self._helds = [
            HeldJob(_row(job, offset), batch, lane) for offset, job in enumerate(jobs, start=1)
        ]
        self._endings: dict[HeldJob, Ended | None] = {}
        self.result: Any = None
        self.returned = False
        ready: list[tuple[HeldJob, Kind, Any]] = []
        for held in self._helds:
            found = endings.decode(kinds, held, group)
            if isinstance(found, Ended):
                self._endings[held] = found
            else:
                ready.append((held, *found))
        self._call: Call | None = None
        if ready:
            # No task: nothing interrupts this call.
            task: asyncio.Task[None] = None  # type: ignore[assignment]
            helds, items = [held for held, _, _ in ready], [item for _, _, item in ready]
            kind = ready[0][1]
            self._call = Call(kind, helds, items, group, task, context)
            self._call.given = context.conn
            self._call.around = around_attempts(middleware, is_async=kind.is_async)

    def run(self) -> None:
        """Call a plain handler in this thread."""
        call = self._call
        if call is None:
            return
        try:
            self._returned(call, call_plainly(call))
        except Exception as error:
            self._raised(call, error)

    async def run_async(self) -> None:
        """Call a coroutine handler on this event loop."""
        call = self._call
        if call is None:
            return
        try:
            self._returned(call, await run_on_loop(call))
        except Exception as error:
            self._raised(call, error)

    @property
    def endings(self) -> list[Ended | None]:
        """How each job ended; see the class."""
        return [self._endings[held] for held in self._helds]

    @property
    def errors(self) -> list[BaseException | None]:
        """What each job's attempt raised; see the class."""
        return [None if held.raised is None else held.raised.error for held in self._helds]

    def _returned(self, call: Call, result: Any) -> None:
        self._endings.update(zip(call.helds, endings.endings(call, result), strict=True))
        self.result, self.returned = result, True

    def _raised(self, call: Call, error: Exception) -> None:
        self._endings.update(zip(call.helds, endings.failures(call, error), strict=True))


def _row(job: Job, offset: int) -> ClaimedJob:
    carried = {name: getattr(job, name) for name in CARRIED}
    # The results for a callback are among its arguments here: no worker reads them.
    carried["headers"] = {
        name: text for name, text in job.headers.items() if name != CALLBACK_HEADER
    } or None
    return ClaimedJob(
        seq=0,
        kind=job.kind,
        enqueued_micros=_micros(job.enqueued_at),
        args=job.args,
        job_id=job.job_id,
        expires_micros=None if job.expires_at is None else _micros(job.expires_at),
        attempt=job.attempt - 1,
        max_attempts=job.max_attempts,
        **carried,
        offset=offset,
    )


def _micros(when: datetime) -> int:
    return int((when - datetime(1970, 1, 1, tzinfo=UTC)).total_seconds() * 1_000_000)
