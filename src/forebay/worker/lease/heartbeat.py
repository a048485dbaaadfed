"""Heartbeats, in a separate thread with its event loop and connection.

Heartbeats continue while a handler blocks the worker's loop or uses all its connections. If the
loop does not move for a whole lease, the worker stops sending heartbeats, so that other workers
take over its jobs.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import threading
import time
from typing import TYPE_CHECKING, Final, NamedTuple

from forebay.db.session import Session
from forebay.errors import DatabaseUnavailable
from forebay.in_threads import in_thread
from forebay.model.text import logger
from forebay.ops import protocol
from forebay.worker.lease.identity import resident_kb

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from forebay.ops.protocol import HeartbeatAnswer
    from forebay.worker.ground.common import Common

log = logger("forebay.worker")

#: Average time between two heartbeats of all idle workers of one database together, once they are
#: many.
_SECONDS_PER_LEASE: Final = 0.35

#: Average pause after a heartbeat that did not reach the database.
_RETRY_SECONDS: Final = 0.3


class Held(NamedTuple):
    """What this process holds.

    Attributes:
        leases: ids of its leases.
        jobs: ids of its running jobs; the heartbeat reports to the database that they run.
        duties: duties that it would take.
        is_busy: whether it has any job, started or not.
        trusted_seconds: how long after a confirmed heartbeat all leases can be trusted.
    """

    leases: Sequence[int]
    jobs: Sequence[int]
    duties: Sequence[int]
    is_busy: bool
    trusted_seconds: float


class Heartbeat:
    """Sends heartbeats for all leases of the process.

    Args:
        common: the database, the pauses between heartbeats, and whether the database can be used.
        held: called in the worker's loop; returns what the process holds.
        on_answer: called in the worker's loop with each answer, the leases of the heartbeat, when
            it was sent and when it was answered.
    """

    def __init__(
        self,
        common: Common,
        held: Callable[[], Held],
        on_answer: Callable[[HeartbeatAnswer, Sequence[int], float, float], None],
    ) -> None:
        settings = common.settings
        self._session = Session(
            common.dsn,
            name=common.application_name,
            connect_seconds=3.0,
            call_seconds=3.0,
            lock_timeout="2s",
            pooler=settings.pooler,
        )
        self._settings = settings
        self._heartbeat_seconds = settings.heartbeat_seconds
        self._extra_seconds = 0.0
        self._is_in_long_pause = False
        self._hurried = False
        self._held = held
        self._on_answer = on_answer
        self._outage = common.signals.outage
        self._loop = asyncio.get_running_loop()
        trusted = settings.lease_seconds - settings.lease_margin_seconds
        self._snapshot = Held([], [], [], is_busy=False, trusted_seconds=trusted)
        self._seen_at = time.monotonic()
        self._stopping = threading.Event()
        self._awake: tuple[asyncio.AbstractEventLoop, asyncio.Event] | None = None
        self._thread = threading.Thread(target=self._main, name="forebay-heartbeat", daemon=True)

    def start(self) -> None:
        """Start sending heartbeats."""
        self._take_snapshot()
        self._thread.start()

    def stop(self) -> None:
        """Stop sending heartbeats; do not wait for a heartbeat that is under way."""
        self._stopping.set()
        self._wake()

    def hurry(self) -> None:
        """Announce a job: send a heartbeat now if the pause is a long one, else keep the pause
        short.
        """
        self._hurried = True
        if self._is_in_long_pause:
            self._wake()

    def _wake(self) -> None:
        if self._awake is not None:
            loop, event = self._awake
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(event.set)

    async def join(self, seconds: float) -> None:
        """Wait for the end of the thread, at most this long.

        A thread that hangs ends with the process.
        """
        if self._thread.is_alive():  # a worker that got no lease never started it
            await in_thread(self._thread.join, seconds)

    def _main(self) -> None:
        asyncio.run(self._run())

    async def _run(self) -> None:
        session = self._session
        wake = asyncio.Event()
        self._awake = asyncio.get_running_loop(), wake
        was_down = stalled = False
        while not self._stopping.is_set():
            self._hurried = False
            try:
                self._loop.call_soon_threadsafe(self._take_snapshot)
            except RuntimeError:
                return  # The worker's loop is closed.
            silent = time.monotonic() - self._seen_at
            # After this time the leases cannot be trusted any more.
            if silent > self._snapshot.trusted_seconds:
                if not stalled:
                    log.error(
                        (
                            "the event loop is blocked for %.0f s; heartbeats stop, the lease "
                            "is given up"
                        ),
                        silent,
                    )
                stalled = True
            elif self._snapshot.leases:
                stalled = False
                sent_at = time.monotonic()
                held = self._snapshot
                try:
                    answer = await session.run(
                        protocol.heartbeat(held.leases, held.jobs, held.duties, resident_kb())
                    )
                    self._loop.call_soon_threadsafe(
                        self._on_answer, answer, held.leases, sent_at, time.monotonic()
                    )
                    self._extra_seconds = self._extra_pause(answer.lease_count)
                    was_down = False
                except DatabaseUnavailable as error:
                    was_down = True
                    with contextlib.suppress(RuntimeError):
                        self._loop.call_soon_threadsafe(self._outage.failed, "heartbeat", error)
                except RuntimeError:
                    return
                except Exception as error:
                    # The cause may be a lock on the table. The next heartbeat may succeed.
                    log.warning("no heartbeat: %s", error)
            pause = self._heartbeat_seconds if self._snapshot.is_busy else self._idle_seconds()
            if was_down:
                pause = min(pause, _RETRY_SECONDS * (0.5 + random.random()))
            await _wait(wake, pause)
            if self._extra_seconds and not (self._snapshot.is_busy or was_down or stalled):
                self._is_in_long_pause = True
                if not self._hurried:
                    await _wait(wake, self._extra_seconds)
                self._is_in_long_pause = False
            wake.clear()
        await session.close()

    def _extra_pause(self, lease_count: int | None) -> float:
        """Return the addition to the pause among this many workers, with jitter."""
        if lease_count is None:
            return 0.0
        longest = self._snapshot.trusted_seconds / 3
        pause = min(lease_count * _SECONDS_PER_LEASE, longest) * (0.75 + 0.5 * random.random())
        return max(0.0, pause - self._idle_seconds())

    def _idle_seconds(self) -> float:
        """Return the pause while no job runs and there are few workers: at most three times the
        usual one.
        """
        usual = self._heartbeat_seconds
        most = min(self._settings.suspect_seconds, self._snapshot.trusted_seconds) / 2
        return max(usual, min(3 * usual, most))

    def _take_snapshot(self) -> None:
        self._seen_at = time.monotonic()
        self._snapshot = self._held()


async def _wait(event: asyncio.Event, seconds: float) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()
