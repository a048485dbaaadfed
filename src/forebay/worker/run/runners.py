"""All that runs jobs in a worker."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from forebay.worker.run.children import Children
from forebay.worker.run.executor import Executor
from forebay.worker.run.suspects import Suspects

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Mapping

    from forebay.db.session import Session
    from forebay.worker.ground.common import Common
    from forebay.worker.run.messages import Start
    from forebay.worker.run.reporter import Outcomes


class Runners:
    """The executor, the suspects, and the child processes of both.

    Owns the child processes. After a crash these end themselves.

    Args:
        common: the settings, the handlers and the signal that a slot became free.
        session: the connection for claims, on which the starts of suspects are recorded.
        outcomes: receives the outcome of each job, and progress.
        resources: shared objects for the contexts of handlers.
        start: what a child process needs to start; None if none can import the app.
    """

    def __init__(
        self,
        common: Common,
        session: Session,
        outcomes: Outcomes,
        resources: Mapping[str, Any],
        start: Start | None,
    ) -> None:
        settings = common.settings
        self._start = start
        # Separate from the processes of the executor, so that neither waits for the other.
        self._children, self._processes = (
            Children(
                start, settings, outcomes.progress, kept=kept, followed=lambda: common.followed
            )
            for kept in (0, settings.processes or 0)
        )
        self.executor = Executor(
            common, outcomes, resources, common.signals.wake.set, self._processes
        )
        self.suspects = Suspects(session, self._children, self.executor, outcomes, common.group)
        #: What keeps child processes ready, until cancelled; None if none are kept.
        self.keep_ready: Callable[[], Awaitable[None]] | None = (
            None if settings.processes is None else self._processes.keep_ready
        )

    @property
    def is_idle(self) -> bool:
        """Whether no job runs or waits for a slot."""
        return self.executor.is_idle and self.suspects.is_idle

    def set_pooled(self, is_pooled: bool) -> None:
        """Record whether connections go through a pooler, before the first job."""
        self.executor.transactions.is_pooled = is_pooled
        if self._start is not None:
            self._start.is_pooled = is_pooled

    def running_job_ids(self) -> list[int]:
        """Ids of the jobs whose handlers run."""
        return self.executor.running_job_ids() + self._children.running_job_ids()

    def cancel(self, job_ids: Collection[int]) -> None:
        """Ask the handlers of cancelled jobs to stop."""
        self.executor.cancel(job_ids)
        self._children.cancel(set(job_ids))

    async def close(self) -> None:
        """End the child processes, running calls and idle threads, and close the connections of
        handlers.
        """
        await self._children.close()
        await self._processes.close()
        await self.executor.close()
