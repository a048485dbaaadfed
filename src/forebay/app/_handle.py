"""A handle of one job: its state, progress and result."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from forebay.errors import GroupNotFound

if TYPE_CHECKING:
    from forebay.client import AsyncClient, Client
    from forebay.model.status import JobHistory, JobStatus, Progress


class JobHandle:
    """One job in one consumer group. Made by ``App.handle``. Each call opens its own connection.

    A job that is not committed is not visible: wait for its result after the commit.

    Attributes:
        job_id: the id of the job.
        group: the consumer group of its queue.
    """

    def __init__(self, client: Client, async_client: AsyncClient, job_id: int, group: str) -> None:
        self.job_id = job_id
        self.group = group
        self._client = client
        self._async_client = async_client

    def __repr__(self) -> str:
        return f"<handle of job {self.job_id}>"

    def status(self) -> JobStatus:
        """Return the status of the job.

        Raises:
            JobNotFound: the job does not exist: it is past retention, or not committed.
            GroupNotFound: its queue does not have this group.
        """
        return self._mine(self._client.job(self.job_id))

    async def astatus(self) -> JobStatus:
        """Asynchronous form of ``status``."""
        return self._mine(await self._async_client.job(self.job_id))

    def progress(self) -> Progress | None:
        """Return the last progress that the handler reported; None if it reported none."""
        return self._progress(self._client.job_history(self.job_id))

    async def aprogress(self) -> Progress | None:
        """Asynchronous form of ``progress``."""
        return self._progress(await self._async_client.job_history(self.job_id))

    def result(self, timeout: float | None = None, *, as_type: Any = Any) -> Any:
        """Wait until the job has ended and return what its handler returned.

        Args:
            timeout: in seconds; 0 checks once, None waits indefinitely.
            as_type: the type to convert the JSON to: a dataclass, a struct, ``list[int]``; Any returns it unchanged.

        Raises:
            JobDied: the job is a dead letter.
            NoResult: the job was cancelled or expired, its handler keeps no result, or the result is gone or of another type.
            ResultTimeout: the job has not ended in time.
            JobNotFound: the job does not exist.
            GroupNotFound: its queue does not have this group.
            DatabaseUnavailable: the connection failed or was lost.
        """
        return self._client.result(self.job_id, group=self.group, timeout=timeout, as_type=as_type)

    async def aresult(self, timeout: float | None = None, *, as_type: Any = Any) -> Any:  # noqa: ASYNC109
        """Asynchronous form of ``result``."""
        return await self._async_client.result(
            self.job_id, group=self.group, timeout=timeout, as_type=as_type
        )

    def _mine(self, found: list[JobStatus]) -> JobStatus:
        for status in found:
            if status.group == self.group:
                return status
        raise GroupNotFound(queue=found[0].queue, group=self.group)

    def _progress(self, found: list[JobHistory]) -> Progress | None:
        for history in found:
            if history.group == self.group:
                return history.progress
        return None
