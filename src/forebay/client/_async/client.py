"""The asynchronous client, composed of one class for each subject."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any, Unpack

from forebay.client._async.alerts import AsyncAlerts
from forebay.client._async.archive import AsyncArchive
from forebay.client._async.backfills import AsyncBackfills
from forebay.client._async.changes import AsyncChanges
from forebay.client._async.dead_letters import AsyncDeadLetters
from forebay.client._async.endpoints import AsyncEndpoints
from forebay.client._async.events import AsyncEvents
from forebay.client._async.exports import AsyncExports
from forebay.client._async.jobs import AsyncJobs
from forebay.client._async.keys import AsyncKeys
from forebay.client._async.publishing import AsyncPublishing
from forebay.client._async.queues import AsyncQueues
from forebay.client._async.schedules import AsyncSchedules
from forebay.client._async.stats import AsyncCounters
from forebay.client._async.subjects import AsyncSubjects
from forebay.client._async.workers import AsyncWorkers
from forebay.db.drivers import AsyncConnection, run_async
from forebay.model import JobId, JobOptionChanges
from forebay.model.backfill import BackfillProgress, Rows
from forebay.model.doors import door
from forebay.ops import enqueue


class AsyncClient(
    AsyncBackfills,
    AsyncJobs,
    AsyncChanges,
    AsyncDeadLetters,
    AsyncQueues,
    AsyncKeys,
    AsyncWorkers,
    AsyncEvents,
    AsyncEndpoints,
    AsyncPublishing,
    AsyncSchedules,
    AsyncSubjects,
    AsyncArchive,
    AsyncExports,
    AsyncAlerts,
    AsyncCounters,
):
    """Enqueue jobs by name, inspect them, and manage queues and dead letters.

    Every method can take a connection of the application. It then works in the transaction of that
    connection and never commits, rolls back or configures it. Without a connection, each call opens
    one and commits.

    Each subject except enqueueing has a base class, in a module beside this one:
        AsyncBackfills: jobs for the rows of a table or query.
        AsyncJobs: the status, history, result and cancellation of a job; lists and numbers of jobs.
        AsyncChanges: acts on many jobs at once.
        AsyncDeadLetters: dead letters.
        AsyncQueues: queues, consumer groups, limits and settings.
        AsyncKeys: ordering keys and limit keys: pauses, limits, breakers.
        AsyncWorkers: the workers that run.
        AsyncEvents: what operators did.
        AsyncEndpoints: endpoints, and messages to them.
        AsyncPublishing: published events, their types, and subscriptions.
        AsyncSchedules: schedules, their instants and their history.
        AsyncSubjects: subjects, which come due again.
        AsyncArchive: where a job is, searches, replays, moments of the past.
        AsyncExports: files of segments before these are emptied.
        AsyncAlerts: alerts and their thresholds.
        AsyncCounters: the counters of jobs.

    Args:
        dsn: the database for calls without a connection: a libpq string or URL, or a function that
            returns one on first use. Default: FOREBAY_DATABASE_URL, DATABASE_URL or PG*, looked up
            on first use.
        declared: what an app declares for the jobs of a kind; None for an unknown kind.
            ``App.client`` passes it, so that jobs enqueued by name get the queue of their kind.

    Every call may raise:
        ConfigError: neither a connection nor an address is given.
        WrongConnection: the connection is not an asynchronous connection.
        SchemaError: the database has no schema, or an old one.
        DatabaseUnavailable: the connection that the call opened failed or was lost.
    """

    async def enqueue(
        self,
        conn: AsyncConnection,
        kind: str,
        args: Mapping[str, Any] | None = None,
        **options: Unpack[JobOptionChanges],
    ) -> JobId:
        """Enqueue a job by the name of its kind, in the connection's transaction; return its id.

        The arguments must have a JSON form. They are not checked against the signature of the
        handler.

        A client of an app, ``app.client()``, takes queue and other options from the kind, unless
        they are given. For other kinds and in a plain client, a job without ``queue`` goes into the
        queue that the workers of its kind have declared in the database, else into ``default``.

        Args:
            conn: the connection, or one of its cursors.
            kind: the kind of the job.
            args: the handler's arguments by name.
            options: see ``JobOptions``.

        Raises:
            InvalidJob: an argument or option is refused.
            PayloadTooLarge: the arguments are too large.
            PayloadTooDeep: the arguments are nested too deeply.
            KeyBusy: another open transaction is taking the unique key, with ``on_busy="raise"``.
            PayloadDiffers: the idempotency key belongs to another request.
        """
        return await run_async(conn, enqueue.enqueue(self._call(kind, args, options)))

    async def enqueue_now(
        self,
        kind: str,
        args: Mapping[str, Any] | None = None,
        **options: Unpack[JobOptionChanges],
    ) -> JobId:
        """Enqueue and commit a job on a new connection; return its id.

        The job is not atomic with any other write: use ``enqueue`` for that. After
        ``DatabaseUnavailable`` the job may or may not exist.
        """
        return await self._run(None, enqueue.enqueue(self._call(kind, args, options)))


@door
async def abackfill(
    kind: str,
    rows: Rows | str,
    *,
    dsn: str | Callable[[], str] | None = None,
    args: Mapping[str, Any] | None = None,
    expires_in: float | timedelta | None = None,
    token: str | None = None,
    chunk: int | None = None,
    key: str | None = None,
    progress: Callable[[BackfillProgress], object] | None = None,
    conn: AsyncConnection | None = None,
    **options: Unpack[JobOptionChanges],
) -> int:
    """Enqueue a job for each row of a table or query; return the number.

    See ``AsyncClient.backfill``.
    """
    return await AsyncClient(dsn).backfill(
        kind,
        rows,
        args=args,
        expires_in=expires_in,
        token=token,
        chunk=chunk,
        key=key,
        progress=progress,
        conn=conn,
        **options,
    )
