# Generated from src/forebay/client/_async/queues.py by tools/async_to_sync.py. Do not edit.
"""The part of the synchronous client for queues and settings."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Any

from forebay.client._sync.base import ClientBase
from forebay.db.drivers import SyncConnection
from forebay.model.declared import Queue, QueueDifference
from forebay.model.groups import ClosedGroup, GroupOverview
from forebay.model.limits import UNSET, Limits, QueueLimits, Unset
from forebay.model.settings import DatabaseSetting, QueueSetting
from forebay.ops import declared, queues
from forebay.ops.queues import SettingValue


class Queues(ClientBase):
    """Manage queues, their consumer groups and limits, and the settings of the database."""

    def open_group(
        self,
        queue: str,
        name: str = "default",
        *,
        start: queues.Start | None = None,
        conn: SyncConnection | None = None,
    ) -> int:
        """Open a consumer group of a queue; return its id. The call is safe to repeat.

        Args:
            queue: the queue.
            name: the name of the group.
            start: ``"beginning"`` for every job still in the log, ``"now"`` for future jobs only.
                Default: the beginning for a queue's first group, now for any other.
            conn: the connection whose transaction to use.
        """
        return self._run(conn, queues.open_group(queue, name, start))

    def queue_of(self, kind: str, *, conn: SyncConnection | None = None) -> str | None:
        """Return the queue of a kind, as the worker that started last declares it.

        The result is None if no worker has declared the kind.

        An enqueue by name without a queue goes there, or to the queue ``default``.

        Args:
            kind: the kind.
            conn: the connection to use.
        """
        return self._run(conn, queues.queue_of(kind))

    def groups(
        self, queue: str | None = None, *, conn: SyncConnection | None = None
    ) -> list[GroupOverview]:
        """Return the consumer groups: what each has unread, runs, and keeps in the log.

        The call reads every waiting job.

        Args:
            queue: only this queue.
            conn: the connection to use.
        """
        return self._run(conn, queues.groups(queue))

    def close_group(
        self,
        queue: str,
        name: str = "default",
        *,
        force: bool = False,
        dry_run: bool = False,
        conn: SyncConnection | None = None,
    ) -> ClosedGroup:
        """Close a consumer group; return what that gives up and releases.

        From the commit on the group gets no jobs. Running jobs finish; jobs that wait for the group
        are cancelled for it. The workers' maintenance does the rest in steps, and then the group is
        gone. Its dead letters stay. If it is the queue's only group, jobs that are enqueued later
        wait for the next group that is opened.

        Args:
            queue: the queue.
            name: the name of the group.
            force: close it although workers serve it. They get no more jobs of it.
            dry_run: change nothing.
            conn: the connection whose transaction to use.

        Raises:
            GroupNotFound: the queue does not have this group.
            GroupInUse: workers serve the group; nothing was changed.
        """
        return self._run(conn, queues.close_group(queue, name, force=force, dry_run=dry_run))

    def pause_queue(
        self,
        queue: str,
        *,
        group: str | None = None,
        until: datetime | None = None,
        for_: float | timedelta | None = None,
        conn: SyncConnection | None = None,
    ) -> int:
        """Stop claiming jobs of a queue; return the number of groups that changed.

        Running jobs finish; enqueueing continues. A group has one pause: a call replaces the one
        that lasts. A pause with an end ends by the database's clock, without a further call.

        Args:
            queue: the queue.
            group: only this consumer group.
            until: when the pause ends, with a time zone. Default: with ``resume_queue``.
            for_: how long it lasts, in seconds or as a timedelta; either this or ``until``.
            conn: the connection whose transaction to use.

        Raises:
            GroupNotFound: the queue does not have this group.
            InvalidJob: the end is in the past, or more than ten years away.
        """
        operation = queues.pause_queue(queue, group, until=until, for_=for_)
        return self._run(conn, operation)

    def resume_queue(
        self, queue: str, *, group: str | None = None, conn: SyncConnection | None = None
    ) -> int:
        """Claim jobs of a paused queue again; return the number of groups that changed.

        Raises:
            GroupNotFound: the queue or group does not exist.
        """
        return self._run(conn, queues.resume_queue(queue, group))

    def shard_queue(self, queue: str, lanes: int, *, conn: SyncConnection | None = None) -> int:
        """Trade ordering for parallel claims: split a queue into shards.

        Return the previous number of shards.

        New jobs of each priority are distributed over the shards. Use it for many worker processes
        that claim few jobs at a time; a process that claims for many slots gains nothing.

        Args:
            queue: the queue.
            lanes: number of shards, 1 to 64, about the number of processes that claim concurrently.
                1 restores the order for jobs enqueued from then on.
            conn: the connection whose transaction to use.

        Raises:
            InvalidJob: a bad name or number.
        """
        return self._run(conn, queues.shard_queue(queue, lanes))

    def set_max_attempts(
        self, queue: str, attempts: int | None, *, conn: SyncConnection | None = None
    ) -> int | None:
        """Set the maximum number of attempts of a queue's jobs.

        Return the previous number, or None.

        A job's own maximum comes first, then that of its queue, then that of its kind. Failures
        that are settled after the commit are retried or final by the new number, also of waiting
        and running jobs. Dead letters stay.

        Args:
            queue: the queue.
            attempts: 1 to 10,000; None: the kinds decide again.
            conn: the connection whose transaction to use.

        Raises:
            InvalidJob: a bad name or number.
        """
        return self._run(conn, queues.set_max_attempts(queue, attempts))

    def max_attempts(self, *, conn: SyncConnection | None = None) -> dict[str, int]:
        """Return the maximum attempts by queue, of the queues that have one set.

        Args:
            conn: the connection to use.
        """
        return self._run(conn, queues.max_attempts())

    def set_notices(self, queue: str, enabled: bool, *, conn: SyncConnection | None = None) -> bool:
        """Switch on or off that a queue sends notices of changes; return whether it did before.

        A notice is sent on the channel ``forebay_events`` with the commit of what ends a job or a
        subject, lets it run again, or changes a setting of the queue. It has names, ids of jobs and
        words of Forebay. Every role that can connect to the database can listen.

        Args:
            queue: the queue.
            enabled: whether it sends notices.
            conn: the connection whose transaction to use.

        Raises:
            InvalidJob: a bad name or value.
        """
        return self._run(conn, queues.set_notices(queue, enabled))

    def limit_queue(
        self,
        queue: str,
        *,
        max_waiting: int | Unset | None = UNSET,
        rate: float | Unset | None = UNSET,
        burst: int | Unset | None = UNSET,
        concurrency: int | Unset | None = UNSET,
        key_rate: float | Unset | None = UNSET,
        key_burst: int | Unset | None = UNSET,
        key_concurrency: int | Unset | None = UNSET,
        max_waiting_group: str | Unset | None = UNSET,
        conn: SyncConnection | None = None,
    ) -> Limits | None:
        """Set limits of a queue; return the previous limits, or None.

        Only the given limits change: a number sets a limit, None removes it. ``rate=None`` also
        removes ``burst``, ``key_rate=None`` also ``key_burst``, and ``max_waiting=None`` also
        ``max_waiting_group``. All limits except ``max_waiting`` apply across all workers, to each
        group of the queue, from the next claim on.

        Args:
            queue: the queue.
            max_waiting: maximum number of waiting jobs, at least 1: ready, scheduled and retrying
                ones. Enqueueing more raises ``QueueFull``.
            rate: maximum number of starts per second: 0.000001 to 1,000,000.
            burst: maximum number of starts at once after a pause. Default: one second's, at least
                1.
            concurrency: maximum number of running jobs, 1 to 1,000,000.
            key_rate: as ``rate``, for the jobs of each limit key.
            key_burst: as ``burst``, for the jobs of each limit key.
            key_concurrency: as ``concurrency``, for the jobs of each limit key.
            max_waiting_group: the consumer group that ``max_waiting`` counts. Default: ``default``.
            conn: the connection whose transaction to use.

        Raises:
            InvalidJob: the name or a number is refused; nothing was changed.
        """
        changes = {
            "max_waiting": max_waiting,
            "rate": rate,
            "burst": burst,
            "concurrency": concurrency,
            "key_rate": key_rate,
            "key_burst": key_burst,
            "key_concurrency": key_concurrency,
            "max_waiting_group": max_waiting_group,
        }
        return self._run(conn, queues.limit_queue(queue, changes))

    def limits(
        self, queue: str | None = None, *, conn: SyncConnection | None = None
    ) -> list[QueueLimits]:
        """Return the limits and running jobs, by group, of all queues with limits or limit keys.

        Args:
            queue: only this queue.
            conn: the connection to use.
        """
        return self._run(conn, queues.limits(queue))

    def apply_queues(
        self,
        app: str,
        queues: Iterable[Queue],
        *,
        overwrite: bool = False,
        dry_run: bool = False,
        conn: SyncConnection | None = None,
    ) -> list[QueueDifference]:
        """Make the settings of queues what an application declares.

        ``App.apply`` calls this for its queues.

        Args:
            app: the name of the application: settings that it applied and no longer declares are
                removed.
            queues: all queues that it declares.
            overwrite: take the declared value also where the database's would be kept.
            dry_run: change nothing.
            conn: the connection whose transaction to use.

        Returns:
            The differences that there were, with what was done about each.

        Raises:
            GroupInUse: a declared group is being closed.
        """
        operation = declared.apply_queues(app, queues, overwrite=overwrite, dry_run=dry_run)
        return self._run(conn, operation)

    def configure(
        self,
        name: str,
        value: SettingValue,
        *,
        dry_run: bool = False,
        conn: SyncConnection | None = None,
    ) -> Any:
        """Change a setting of the whole database; return its previous value, None for none.

        What an endpoint, a queue, a kind or a process has set itself comes first. A running worker
        knows the change with its next heartbeat, a deliverer within a second.

        Args:
            name: the setting; ``settings()`` lists all.
            value: a number, a text, a truth value, for retries also a list or a dict; None gives
                the built-in value back.
            dry_run: only check the value.
            conn: the connection whose transaction to use.

        Raises:
            InvalidJob: the setting does not exist, or the value is out of range; the message has
                the range and its unit.
        """
        return self._run(conn, queues.configure(name, value, dry_run=dry_run))

    def settings(self, *, conn: SyncConnection | None = None) -> list[DatabaseSetting]:
        """Return the settings of the database, with what each may be and who has set it.

        Args:
            conn: the connection to use.
        """
        return self._run(conn, queues.settings())

    def queue_settings(
        self, queue: str, *, conn: SyncConnection | None = None
    ) -> list[QueueSetting]:
        """Return all settings that hold for a queue: limits, pauses, retries, retention, groups,
        keys, thresholds and kinds, with where each comes from and who has set it.

        Args:
            queue: the queue.
            conn: the connection to use.
        """
        return self._run(conn, queues.queue_settings(queue))
