# Generated from src/forebay/client/_async/keys.py by tools/async_to_sync.py. Do not edit.
"""The part of the synchronous client for ordering keys and limit keys."""

from __future__ import annotations

from datetime import datetime, timedelta

from forebay.client._sync.base import ClientBase
from forebay.db.drivers import SyncConnection
from forebay.model.keys import KeyInfo
from forebay.model.limits import KeyLimits
from forebay.ops import keys, queues


class Keys(ClientBase):
    """Pause, limit and show single keys of queues, and close their breakers."""

    def pause_key(
        self,
        queue: str,
        *,
        ordering_key: str | None = None,
        limit_key: str | None = None,
        for_: float | timedelta | None = None,
        at: datetime | None = None,
        conn: SyncConnection | None = None,
    ) -> bool:
        """Stop claiming jobs of one key of a queue, in all groups.

        Return whether something changed.

        Claimed jobs finish; enqueueing continues. Jobs that wait keep their places and use no
        attempt; other keys of the queue run. A key has one pause: a call replaces the pause that
        lasts or is planned. To plan a pause of a paused key therefore resumes it now.

        Args:
            queue: the queue.
            ordering_key: the ordering key; either this or ``limit_key``.
            limit_key: the limit key.
            for_: how long the pause lasts: seconds or a timedelta. Default: until ``resume_key``.
            at: when the pause begins, with a time zone. Default: now.
            conn: the connection whose transaction to use.

        Raises:
            InvalidJob: both keys are given, or neither; or a bad name, key or time.
        """
        operation = queues.pause_key(
            queue, ordering_key=ordering_key, limit_key=limit_key, for_=for_, at=at
        )
        return self._run(conn, operation)

    def resume_key(
        self,
        queue: str,
        *,
        ordering_key: str | None = None,
        limit_key: str | None = None,
        conn: SyncConnection | None = None,
    ) -> bool:
        """Claim jobs of a paused key again, or remove a planned pause.

        Return whether there was one.

        Args:
            queue: the queue.
            ordering_key: the ordering key; either this or ``limit_key``.
            limit_key: the limit key.
            conn: the connection whose transaction to use.

        Raises:
            InvalidJob: both keys are given, or neither.
        """
        operation = queues.resume_key(queue, ordering_key=ordering_key, limit_key=limit_key)
        return self._run(conn, operation)

    def limit_key(
        self,
        queue: str,
        limit_key: str,
        *,
        rate: float | None = None,
        burst: int | None = None,
        concurrency: int | None = None,
        remove: bool = False,
        conn: SyncConnection | None = None,
    ) -> KeyLimits | None:
        """Set limits of one limit key of a queue, in all groups.

        Return the previous ones of the key, or None.

        They replace the limits that the queue has for each key: ``rate`` replaces ``key_rate`` and
        ``key_burst``, and ``concurrency`` replaces ``key_concurrency``. The queue needs no limits
        itself. Only the given limits change; ``remove`` first removes all that the key has itself.
        They apply from the next claim on, also to jobs that wait; running jobs count.

        Args:
            queue: the queue.
            limit_key: the key.
            rate: maximum number of starts per second: 0.000001 to 1,000,000.
            burst: maximum number of starts at once after a pause, 1 to 1,000,000. Default: those of
                one second, at least 1.
            concurrency: maximum number of running jobs, 1 to 1,000,000.
            remove: remove the limits of the key before the given ones are set.
            conn: the connection whose transaction to use.

        Raises:
            InvalidJob: a name, key or number is refused, or none is given; nothing was changed.
        """
        operation = keys.limit_key(
            queue, limit_key, rate=rate, burst=burst, concurrency=concurrency, remove=remove
        )
        return self._run(conn, operation)

    def reset_key(self, queue: str, limit_key: str, *, conn: SyncConnection | None = None) -> bool:
        """Close the breaker of a limit key and count its failures from 0.

        Return whether the breaker was open. The jobs of the key run at once. ``pause_key`` stops
        them by hand.

        Args:
            queue: the queue.
            limit_key: the key.
            conn: the connection whose transaction to use.

        Raises:
            InvalidJob: a name or key is refused, or the key is an endpoint: ``reset_endpoint``.
        """
        return self._run(conn, keys.reset_key(queue, limit_key))

    def keys(
        self, queue: str | None = None, *, limit: int = 100, conn: SyncConnection | None = None
    ) -> list[KeyInfo]:
        """Return the ordering keys and limit keys that jobs wait for, and why they do not run.

        The key with the most waiting jobs is first. The call visits every key.

        Args:
            queue: only this queue.
            limit: maximum number of keys, 1 to 1000.
            conn: the connection to use.

        Raises:
            InvalidJob: ``limit`` is out of range.
        """
        return self._run(conn, keys.keys(queue, limit))

    def key(
        self,
        queue: str,
        *,
        ordering_key: str | None = None,
        limit_key: str | None = None,
        conn: SyncConnection | None = None,
    ) -> list[KeyInfo]:
        """Return one key, for each consumer group of its queue: what waits and runs, and why the
        next job does not run.

        Args:
            queue: the queue.
            ordering_key: the ordering key; either this or ``limit_key``.
            limit_key: the limit key.
            conn: the connection to use.

        Raises:
            InvalidJob: both keys are given, or neither.
        """
        return self._run(conn, keys.key(queue, ordering_key=ordering_key, limit_key=limit_key))
