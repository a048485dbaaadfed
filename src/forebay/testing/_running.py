"""Run jobs in a test, with a real worker."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

from forebay.config import WorkerSettings
from forebay.worker import Worker

if TYPE_CHECKING:
    from collections.abc import Mapping

    from forebay.app import App
    from forebay.worker import Stats


def run_until_idle(
    app: App,
    dsn: str | None = None,
    *,
    queues: Mapping[str, int] | None = None,
    concurrency: int | None = None,
) -> Stats:
    """Run committed jobs with a new worker until none is ready or running.

    Jobs that these jobs enqueue run too. Deferred jobs that are not due stay, and so do failed jobs
    that wait for their retry.

    Args:
        app: the application.
        dsn: the database; None means the app's.
        queues: only these, with their weights; None means all queues of the app.
        concurrency: the most jobs at a time; None means the default.
    """
    return asyncio.run(run_until_idle_async(app, dsn, queues=queues, concurrency=concurrency))


async def run_until_idle_async(
    app: App,
    dsn: str | None = None,
    *,
    queues: Mapping[str, int] | None = None,
    concurrency: int | None = None,
) -> Stats:
    """Do as ``run_until_idle``, on a running event loop."""
    # Defaults instead of the settings of this machine: a test behaves the same everywhere.
    settings = WorkerSettings()
    if concurrency is not None:
        settings = replace(settings, concurrency=concurrency)
    worker = Worker(
        app._internals, dsn if dsn is not None else app.dsn, queues=queues, settings=settings
    )
    return await worker.run(until_idle=True)
