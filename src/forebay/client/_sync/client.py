# Generated from src/forebay/client/_async/client.py by tools/async_to_sync.py. Do not edit.
"""The synchronous client, composed of one class for each subject."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any, Unpack

from forebay.client._sync.alerts import Alerts
from forebay.client._sync.archive import Archive
from forebay.client._sync.backfills import Backfills
from forebay.client._sync.changes import Changes
from forebay.client._sync.dead_letters import DeadLetters
from forebay.client._sync.endpoints import Endpoints
from forebay.client._sync.events import Events
from forebay.client._sync.exports import Exports
from forebay.client._sync.jobs import Jobs
from forebay.client._sync.keys import Keys
from forebay.client._sync.publishing import Publishing
from forebay.client._sync.queues import Queues
from forebay.client._sync.schedules import Schedules
from forebay.client._sync.stats import Counters
from forebay.client._sync.subjects import Subjects
from forebay.client._sync.workers import Workers
from forebay.db.drivers import SyncConnection, run
from forebay.model import JobId, JobOptionChanges
from forebay.model.backfill import BackfillProgress, Rows
from forebay.model.doors import door
from forebay.ops import enqueue


class Client(
    Backfills,
    Jobs,
    Changes,
    DeadLetters,
    Queues,
    Keys,
    Workers,
    Events,
    Endpoints,
    Publishing,
    Schedules,
    Subjects,
    Archive,
    Exports,
    Alerts,
    Counters,
):
    """Enqueue jobs by name, inspect them, and manage queues and dead letters.

    Every method can take a connection of the application. It then works in the transaction of that
    connection and never commits, rolls back or configures it. Without a connection, each call opens
    one and commits.

    Each subject except enqueueing has a base class, in a module beside this one:
        Backfills: jobs for the rows of a table or query.
        Jobs: the status, history, result and cancellation of a job; lists and numbers of jobs.
        Changes: acts on many jobs at once.
        DeadLetters: dead letters.
        Queues: queues, consumer groups, limits and settings.
        Keys: ordering keys and limit keys: pauses, limits, breakers.
        Workers: the workers that run.
        Events: what operators did.
        Endpoints: endpoints, and messages to them.
        Publishing: published events, their types, and subscriptions.
        Schedules: schedules, their instants and their history.
        Subjects: subjects, which come due again.
        Archive: where a job is, searches, replays, moments of the past.
        Exports: files of segments before these are emptied.
        Alerts: alerts and their thresholds.
        Counters: the counters of jobs.

    Args:
        dsn: the database for calls without a connection: a libpq string or URL, or a function that
            returns one on first use. Default: FOREBAY_DATABASE_URL, DATABASE_URL or PG*, looked up
            on first use.
        declared: what an app declares for the jobs of a kind; None for an unknown kind.
            ``App.client`` passes it, so that jobs enqueued by name get the queue of their kind.

    Every call may raise:
        ConfigError: neither a connection nor an address is given.
        WrongConnection: the connection is not a synchronous connection.
        SchemaError: the database has no schema, or an old one.
        DatabaseUnavailable: the connection that the call opened failed or was lost.
    """

    def enqueue(
        self,
        conn: SyncConnection,
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
        return run(conn, enqueue.enqueue(self._call(kind, args, options)))

    def enqueue_now(
        self,
        kind: str,
        args: Mapping[str, Any] | None = None,
        **options: Unpack[JobOptionChanges],
    ) -> JobId:
        """Enqueue and commit a job on a new connection; return its id.

        The job is not atomic with any other write: use ``enqueue`` for that. After
        ``DatabaseUnavailable`` the job may or may not exist.
        """
        return self._run(None, enqueue.enqueue(self._call(kind, args, options)))


@door
def backfill(
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
    conn: SyncConnection | None = None,
    **options: Unpack[JobOptionChanges],
) -> int:
    """Enqueue a job for each row of a table or query; return the number.

    See ``Client.backfill``.
    """
    return Client(dsn).backfill(
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
