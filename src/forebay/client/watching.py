"""Watch jobs until they end: one sampler a process asks the database for all who watch.

Invariants:

- "no watcher, no statement": the thread that asks ends with the last watcher.
- "one statement a tick": however many watch, in whichever threads and event loops, and whatever
  they watch, a database gets one call a tick: ``forebay.watch_jobs()``.
- "away is not gone": while the database is away watchers wait. Only an answer without the job says
  that it does not exist.
- "the newest counts": a watcher has room for one state, and reads it when it can; a slow one misses
  what came between, and delays no other.

A crash leaves nothing. A forked process begins without watchers: the thread is the parent's.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import json
import os
import threading
import time
from typing import TYPE_CHECKING, Final, NamedTuple

from forebay._error import is_database_error
from forebay.db.kept import address_key, run_kept
from forebay.errors import (
    DatabaseUnavailable,
    GroupNotFound,
    InvalidJob,
    JobNotFound,
    ResultTimeout,
    TooManyWatched,
)
from forebay.model import checks
from forebay.model.text import counted, logger
from forebay.ops.jobs import checked_id
from forebay.ops.watching import WATCHED_MAX, Key, watch_jobs

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Hashable, Iterator, Sequence

    from forebay.model.status import JobUpdate

#: Seconds between two looks, and their range.
EVERY_SECONDS: Final = 0.5
EVERY_SECONDS_MIN: Final = 0.1
EVERY_SECONDS_MAX: Final = 60.0

#: How long a job that is not visible is waited for: its transaction may not have committed.
VISIBLE_SECONDS: Final = 10.0

#: Looks take at most this part of the time: those at very many jobs are rarer.
_SHARE: Final = 0.2
#: The longest pause while the database is away.
_AWAY_SECONDS_MAX: Final = 10.0

_QUERY_CANCELED: Final = "57014"

_log = logger("forebay.client")


class Known(NamedTuple):
    """What is known of a watched job.

    Attributes:
        update: how far it is; None until it was seen.
        is_absent: the last answer did not have it.
        error: why it is not watched any more.
    """

    update: JobUpdate | None = None
    is_absent: bool = False
    error: Exception | None = None


class _Entry:
    """A job with watchers."""

    def __init__(self) -> None:
        self.known = Known()
        #: What wakes each watcher, and how often it wants a look.
        self.watchers: dict[Callable[[], None], float] = {}

    def report(self, known: Known) -> None:
        if known == self.known:
            return
        self.known = known
        for wake in list(self.watchers):
            with contextlib.suppress(RuntimeError):  # The loop of this watcher is closed.
                wake()


class _Sampler:
    """Asks one database, in a thread that lives while there are watchers."""

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self._changed = threading.Condition()
        self._entries: dict[Key, _Entry] = {}
        self._thread: threading.Thread | None = None
        self._pause = 0.0
        self._asked_at = -EVERY_SECONDS_MAX
        self._failures = 0

    @contextlib.contextmanager
    def watching(self, key: Key, every: float, wake: Callable[[], None]) -> Iterator[_Entry]:
        """Watch a job inside the block; ``wake`` is called, in another thread, at each change.

        Raises:
            TooManyWatched: as many jobs are watched as one statement may ask for.
        """
        with self._changed:
            entry = self._entries.get(key)
            if entry is None and len(self._entries) >= WATCHED_MAX:
                raise TooManyWatched(WATCHED_MAX)
            if self._thread is None:
                thread = threading.Thread(target=self._run, name="forebay watch", daemon=True)
                thread.start()  # It waits for this block, and fails with nothing written.
                self._thread = thread
            if entry is None:
                entry = self._entries[key] = _Entry()
            entry.watchers[wake] = every
            self._changed.notify_all()
        try:
            yield entry
        finally:
            with self._changed:
                del entry.watchers[wake]
                if not entry.watchers and self._entries.get(key) is entry:
                    del self._entries[key]
                self._changed.notify_all()

    def _run(self) -> None:
        while (keys := self._next_keys()) is not None:
            began = time.monotonic()
            try:
                found = run_kept(self._dsn, watch_jobs(keys))
            except Exception as error:
                self._failed(keys, error)
            else:
                took = time.monotonic() - began
                self._answered(keys, found, took * (1 / _SHARE - 1))

    def _next_keys(self) -> Sequence[Key] | None:
        """Wait for the next tick, and return what to ask; None: without watchers."""
        with self._changed:
            while self._entries:
                # Copies: the end of an abandoned iterator may run in this thread.
                entries = list(self._entries.items())
                keys = [key for key, entry in entries if not _has_ended(entry.known)]
                left = None
                if keys:
                    wanted = [
                        each for _, entry in entries for each in list(entry.watchers.values())
                    ]
                    every = min(wanted, default=EVERY_SECONDS)
                    left = self._asked_at + max(every, self._pause) - time.monotonic()
                    if left <= 0:
                        return keys
                self._changed.wait(left)
            self._thread = None
            return None

    def _answered(
        self, keys: Sequence[Key], found: dict[Key, JobUpdate | None], pause: float
    ) -> None:
        with self._changed:
            if self._failures:
                _log.info("the database answers again; watched: %s", counted(len(keys), "job"))
            self._asked_at, self._pause, self._failures = time.monotonic(), pause, 0
            for key in keys:
                entry = self._entries.get(key)
                if entry is None:
                    continue
                if key not in found:
                    entry.report(Known(entry.known.update, is_absent=True))
                elif (update := found[key]) is not None:
                    entry.report(Known(update))
                else:
                    del self._entries[key]
                    entry.report(Known(error=_no_group(*key)))

    def _failed(self, keys: Sequence[Key], error: Exception) -> None:
        """Wait if the database is away or too busy; tell any other error to those who watch."""
        is_away = isinstance(error, DatabaseUnavailable) or (
            is_database_error(error) and getattr(error, "sqlstate", "") == _QUERY_CANCELED
        )
        with self._changed:
            self._asked_at = time.monotonic()
            if is_away:
                if not self._failures:
                    _log.warning("%d watched jobs wait for the database: %s", len(keys), error)
                self._pause = min(EVERY_SECONDS * 2**self._failures, _AWAY_SECONDS_MAX)
                self._failures = min(self._failures + 1, 10)
            for key in keys:
                entry = self._entries.get(key)
                if entry is None:
                    continue
                if is_away:
                    entry.report(Known(entry.known.update))
                else:
                    # Who comes later asks again.
                    del self._entries[key]
                    entry.report(Known(entry.known.update, error=error))


def _no_group(job_id: int, group: str) -> GroupNotFound:
    """Return the error that ``forebay.result()`` would raise: the queue is not known here."""
    facts = json.dumps({"group": group})
    return GroupNotFound.from_sql(f"job {job_id} has no group {group!r}", detail=facts)


def _has_ended(known: Known) -> bool:
    return known.update is not None and known.update.is_final


class _Samplers:
    """The samplers of this process, by address."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Begin anew: in a copy of the process the threads are the parent's."""
        self._lock = threading.Lock()
        self._by_address: dict[Hashable, _Sampler] = {}

    def of(self, dsn: str) -> _Sampler:
        """Return the sampler of an address."""
        with self._lock:
            return self._by_address.setdefault(address_key(dsn), _Sampler(dsn))


_samplers: Final = _Samplers()
os.register_at_fork(after_in_child=_samplers.forget)


def checked_watch(group: str, *, every: float, visible_within: float) -> None:
    """Refuse what cannot be watched.

    Raises:
        InvalidJob: the name of the group or a time is not one.
    """
    checks.checked_name(group, "group")
    checks.checked_seconds(every, "every", most=EVERY_SECONDS_MAX)
    if every < EVERY_SECONDS_MIN:
        raise InvalidJob("every", f"is {every:g} s, less than {EVERY_SECONDS_MIN:g} s")
    checks.checked_seconds(visible_within, "visible_within")


class _Turns:
    """What one watcher has had, and what comes next."""

    def __init__(
        self, job_id: int, group: str, timeout: float | None, visible_within: float, every: float
    ) -> None:
        checked_watch(group, every=every, visible_within=visible_within)
        self.key = (checked_id(job_id, "job_id"), group)
        self.every = every
        self._timeout = None if timeout is None else checks.checked_seconds(timeout, "timeout")
        self._visible_within = visible_within
        self._began_at = 0.0
        self._last: JobUpdate | None = None

    def begin(self) -> None:
        """Begin to count the time."""
        self._began_at = time.monotonic()

    def next(self, known: Known) -> JobUpdate | None:
        """Return an update that the watcher has not had; None: wait.

        Raises:
            ForebayError: it is not watched any more, or the time is over.
        """
        if known.error is not None:
            raise copy.copy(known.error) from known.error  # one for each watcher
        if known.update is not None and known.update != self._last:
            self._last = known.update
            return self._last
        waited = time.monotonic() - self._began_at
        if known.is_absent and (self._last is not None or waited >= self._visible_within):
            raise JobNotFound(self.key[0])
        if self._timeout is not None and waited >= self._timeout:
            state = "unknown" if self._last is None else str(self._last.state)
            raise ResultTimeout(self.key[0], state=state, seconds=self._timeout)
        return None

    def wait_seconds(self, known: Known) -> float | None:
        """Return how long to wait for a change at most; None: without an end."""
        ends = [] if self._timeout is None else [self._timeout]
        if known.is_absent:
            ends.append(self._visible_within)
        return max(0.0, self._began_at + min(ends) - time.monotonic()) if ends else None


def watch(
    dsn: str,
    job_id: int,
    group: str,
    *,
    timeout: float | None,
    visible_within: float,
    every: float,
) -> Iterator[JobUpdate]:
    """Return an iterator over the changes of a job; see ``JobHandle.watch``."""
    return _watched(dsn, _Turns(job_id, group, timeout, visible_within, every))


def watch_async(
    dsn: str,
    job_id: int,
    group: str,
    *,
    timeout: float | None,
    visible_within: float,
    every: float,
) -> AsyncGenerator[JobUpdate, None]:
    """Do as ``watch``, asynchronously."""
    return _watched_async(dsn, _Turns(job_id, group, timeout, visible_within, every))


def _watched(dsn: str, turns: _Turns) -> Iterator[JobUpdate]:
    changed = threading.Event()
    turns.begin()
    with _samplers.of(dsn).watching(turns.key, turns.every, changed.set) as entry:
        while True:
            changed.clear()
            known = entry.known
            update = turns.next(known)
            if update is None:
                changed.wait(turns.wait_seconds(known))
                continue
            yield update
            if update.is_final:
                return


async def _watched_async(dsn: str, turns: _Turns) -> AsyncGenerator[JobUpdate, None]:
    changed = asyncio.Event()
    loop = asyncio.get_running_loop()
    turns.begin()

    def wake() -> None:
        loop.call_soon_threadsafe(changed.set)

    with _samplers.of(dsn).watching(turns.key, turns.every, wake) as entry:
        while True:
            changed.clear()
            known = entry.known
            update = turns.next(known)
            if update is None:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(turns.wait_seconds(known)):
                        await changed.wait()
                continue
            yield update
            if update.is_final:
                return
