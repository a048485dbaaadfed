"""A handle of one job: its state, progress and result."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar, overload

from forebay.client.watching import EVERY_SECONDS, VISIBLE_SECONDS
from forebay.errors import GroupNotFound
from forebay.model.doors import Doors

if TYPE_CHECKING:
    from forebay.client import AsyncClient, Client
    from forebay.model.status import JobHistory, JobStatus, JobUpdate, Progress

T_co = TypeVar("T_co", covariant=True)
V = TypeVar("V")

#: The type is that of the handler.
_DECLARED: Final = object()


class JobHandle(Doors, Generic[T_co]):
    """One job in one consumer group. Each call has a separate connection, kept for the next call.

    ``Handler.handle`` makes one whose result has the return type of the handler; with
    ``App.handle`` the type is not known.

    A job that is not committed is not visible: wait for its result after the commit.

    Attributes:
        job_id: the id of the job.
        group: the consumer group of its queue.
    """

    def __init__(
        self,
        client: Client,
        async_client: AsyncClient,
        job_id: int,
        group: str,
        result_type: Callable[[], Any] = lambda: Any,
    ) -> None:
        self.job_id = job_id
        self.group = group
        self._client = client
        self._async_client = async_client
        self._result_type = result_type

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

    @overload
    def result(self, timeout: float | None = None) -> T_co: ...

    @overload
    def result(self, timeout: float | None = None, *, as_type: type[V]) -> V: ...

    @overload
    def result(self, timeout: float | None = None, *, as_type: object) -> Any: ...

    def result(self, timeout: float | None = None, *, as_type: object = _DECLARED) -> Any:
        """Wait until the job has ended and return what its handler returned.

        Args:
            timeout: in seconds; 0 checks once, None waits indefinitely.
            as_type: the type to convert the JSON to: a dataclass, a struct, a pydantic model,
                ``list[int]``; Any returns it unchanged. Default: the return type of the handler,
                without outcomes; Any if it is not known.

        Raises:
            JobDied: the job is a dead letter.
            NoResult: the job was cancelled or expired, its handler keeps no result, or the result
                is gone or of another type.
            ConfigError: the type has no JSON form, or the annotation of the handler cannot be
                resolved.
            ResultTimeout: the job has not ended in time.
            JobNotFound: the job does not exist.
            GroupNotFound: its queue does not have this group.
            DatabaseUnavailable: the connection failed or was lost.
        """
        wanted = self._wanted(as_type)
        return self._client.result(self.job_id, group=self.group, timeout=timeout, as_type=wanted)

    @overload
    async def aresult(self, timeout: float | None = None) -> T_co: ...  # noqa: ASYNC109

    @overload
    async def aresult(self, timeout: float | None = None, *, as_type: type[V]) -> V: ...  # noqa: ASYNC109

    @overload
    async def aresult(self, timeout: float | None = None, *, as_type: object) -> Any: ...  # noqa: ASYNC109

    async def aresult(self, timeout: float | None = None, *, as_type: object = _DECLARED) -> Any:  # noqa: ASYNC109
        """Asynchronous form of ``result``."""
        wanted = self._wanted(as_type)
        return await self._async_client.result(
            self.job_id, group=self.group, timeout=timeout, as_type=wanted
        )

    def watch(
        self,
        *,
        timeout: float | None = None,
        visible_within: float = VISIBLE_SECONDS,
        every: float = EVERY_SECONDS,
    ) -> Iterator[JobUpdate]:
        """Iterate over the changes of the job: of its state, attempt and progress.

        The first update is the present state; the last one is final. Changes that follow one
        another within a look are one update. All who watch jobs of a database in this process share
        one connection and one statement in ``every`` seconds. While the database is away the
        iterator waits.

        Args:
            timeout: in seconds, for the whole iteration; None watches indefinitely.
            visible_within: how long to wait for a job that is not visible, since the transaction
                that enqueued it has not committed; in seconds.
            every: seconds between two looks, 0.1 to 60. The least of all who watch counts.

        Raises:
            JobNotFound: the job does not exist, or exists no longer.
            GroupNotFound: its queue does not have this group.
            ResultTimeout: the job has not ended in time.
            TooManyWatched: this process watches 1,000 jobs already.
            PermissionDenied: the role may not execute ``forebay.watch_jobs``.
        """
        return self._client.watch(
            self.job_id,
            group=self.group,
            timeout=timeout,
            visible_within=visible_within,
            every=every,
        )

    def awatch(
        self,
        *,
        timeout: float | None = None,
        visible_within: float = VISIBLE_SECONDS,
        every: float = EVERY_SECONDS,
    ) -> AsyncIterator[JobUpdate]:
        """Asynchronous form of ``watch``: ``async for update in handle.awatch()``."""
        return self._async_client.watch(
            self.job_id,
            group=self.group,
            timeout=timeout,
            visible_within=visible_within,
            every=every,
        )

    def _wanted(self, as_type: object) -> object:
        return self._result_type() if as_type is _DECLARED else as_type

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
