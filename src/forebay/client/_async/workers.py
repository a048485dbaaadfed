"""The part of the asynchronous client for workers."""

from __future__ import annotations

from datetime import datetime

from forebay.client._async.base import AsyncClientBase
from forebay.db.drivers import AsyncConnection
from forebay.model.workers import EndedWorker, StopPlan, WorkerOverview
from forebay.ops import workers


class AsyncWorkers(AsyncClientBase):
    """Read and change the workers that run."""

    async def workers(
        self, *, jobs: int = 5, conn: AsyncConnection | None = None
    ) -> list[WorkerOverview]:
        """Return the workers with an open lease: who they are, since when, and what they run.

        A worker that was killed stays in the list until its lease is revoked, after
        ``suspect_seconds``.

        Args:
            jobs: maximum number of running jobs listed for each worker, 0 to 100.
            conn: the connection to use.

        Raises:
            InvalidJob: ``jobs`` is out of range.
        """
        return await self._run(conn, workers.workers(jobs))

    async def ended_workers(
        self,
        *,
        since: datetime | None = None,
        limit: int = 50,
        conn: AsyncConnection | None = None,
    ) -> list[EndedWorker]:
        """Return the workers that ended, the newest first: how, and what became of their jobs.

        Args:
            since: the time from which on; None: within a day, which is how long they are surely
                kept.
            limit: maximum number of workers, 1 to 1,000.
            conn: the connection to use.

        Raises:
            InvalidJob: ``limit`` is out of range, or ``since`` has no time zone.
        """
        return await self._run(conn, workers.ended_workers(since, limit))

    async def set_concurrency(
        self,
        concurrency: int | None,
        *,
        worker: str | None = None,
        conn: AsyncConnection | None = None,
    ) -> int:
        """Set how many jobs workers run at once; return how many workers that changes.

        They follow with their next heartbeat after the commit. Running jobs finish. It holds until
        a worker ends: one that starts again has the concurrency that it is started with.

        Args:
            concurrency: 1 to 10,000; None as the worker was started.
            worker: the name of a worker, or its beginning up to a colon: a host, or host:pid. None:
                all workers.
            conn: the connection whose transaction to use.

        Raises:
            InvalidJob: ``concurrency`` is out of range.
        """
        return await self._run(conn, workers.set_concurrency(concurrency, worker))

    async def plan_stop(
        self,
        *,
        worker: str | None = None,
        app_version: str | None = None,
        conn: AsyncConnection | None = None,
    ) -> StopPlan:
        """Return which workers ``stop_workers`` would ask, and its token; ask none of them.

        Args:
            worker: as there.
            app_version: as there.
            conn: the connection to use.
        """
        return await self._run(conn, workers.plan_stop(worker, app_version))

    async def stop_workers(
        self,
        *,
        worker: str | None = None,
        app_version: str | None = None,
        token: str | None = None,
        conn: AsyncConnection | None = None,
    ) -> int:
        """Ask workers to stop; return how many were asked.

        With its next heartbeat after the commit a worker stops as at SIGTERM: it claims no more,
        its running jobs have its grace time, and the rest goes back without using an attempt. What
        started the process may start it again, as systemd and Kubernetes do. A worker that was
        asked before is not counted again. Workers in other languages are not asked.

        Args:
            worker: the name of a worker, or its beginning up to a colon: a host, or host:pid. None:
                all workers.
            app_version: only workers of this version of the application.
            token: of ``plan_stop``: ask exactly those workers.
            conn: the connection whose transaction to use.

        Raises:
            JobsChanged: other workers match by now than those of the token; none was asked.
        """
        return await self._run(conn, workers.stop_workers(worker, app_version, token))
