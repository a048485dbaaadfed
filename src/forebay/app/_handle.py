"""A handle on one job: where it stands, how far it is, what it returned."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from forebay.errors import GroupNotFound

if TYPE_CHECKING:
    from forebay.client import AsyncClient, Client
    from forebay.model.status import JobHistory, JobStatus, Progress


class JobHandle:
    """One job of one group, looked at on connections of its own. Made by ``App.handle``.

    A job that is not committed yet does not exist: wait for it after the commit.

    Attributes:
        job_id: its id.
        group: the reader of its queue.
    """

    def __init__(self, client: Client, async_client: AsyncClient, job_id: int, group: str) -> None:
        self.job_id = job_id
        self.group = group
        self._client = client
        self._async_client = async_client

    def __repr__(self) -> str:
        return f"<handle of job {self.job_id}>"

    def status(self) -> JobStatus:
        """Return where the job stands.

        Raises:
            JobNotFound: there is no such job; it may be past retention, or not committed.
            GroupNotFound: its queue has no such group.
        """
        return self._mine(self._client.job(self.job_id))

    async def astatus(self) -> JobStatus:
        """Do as ``status``, asynchronously."""
        return self._mine(await self._async_client.job(self.job_id))

    def progress(self) -> Progress | None:
        """Return what its handler said last about how far it is; None when it said nothing."""
        return self._progress(self._client.job_history(self.job_id))

    async def aprogress(self) -> Progress | None:
        """Do as ``progress``, asynchronously."""
        return self._progress(await self._async_client.job_history(self.job_id))

    def result(self, timeout: float | None = None, *, as_type: Any = Any) -> Any:
        """Wait until the job has ended and return what its handler returned.

        Args:
            timeout: in seconds; 0 looks once, None waits for ever.
            as_type: what to make of the JSON: a dataclass, a struct, ``list[int]``; Any leaves it as it is.

        Raises:
            JobDied: it is a dead letter.
            NoResult: it was cancelled, it expired, its handler keeps no result, or that is gone or of another type.
            ResultTimeout: it has not ended in time.
            JobNotFound: there is no such job.
            GroupNotFound: its queue has no such group.
            DatabaseUnavailable: no connection, or it was lost.
        """
        return self._client.result(self.job_id, group=self.group, timeout=timeout, as_type=as_type)

    async def aresult(self, timeout: float | None = None, *, as_type: Any = Any) -> Any:  # noqa: ASYNC109
        """Do as ``result``, asynchronously."""
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
