"""What the attempts of this process found about limit keys, reported to the database.

The database adds the reports of all processes up and decides about breakers. See "Breakers" in
docs/design/limits.md.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from forebay.errors import DatabaseUnavailable, UnknownKind
from forebay.model.text import bounded_text, logger
from forebay.ops import protocol
from forebay.policy.cause import without_values
from forebay.policy.key_breaker import with_settings

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from forebay.arguments.kinds import Kinds
    from forebay.db.session import Session
    from forebay.ops.protocol import Ended
    from forebay.policy.key_breaker import Breaker
    from forebay.worker.ground.held import HeldJob

log = logger("forebay.worker")

#: How soon successes are reported.
_SECONDS: Final = 1.0

#: The shortest time between two reports, and how soon failures are reported.
_LEAST_SECONDS: Final = 0.1

#: The most attempts in one report.
_MOST: Final = 1000

#: The most that are kept while the database cannot be reached, the newest ones.
_KEPT_MOST: Final = 10_000

#: A report that the database has refused this often is dropped.
_TRIES_MOST: Final = 60

_ERROR_BYTES_MAX: Final = 300

#: For how long after the answer to a report claims may still come that were made before it; less
#: where the first probe comes sooner.
_ON_THE_WAY_SECONDS: Final = 1.0

#: Before more keys are known that failed, those that failed long ago are forgotten.
_ROWS_MOST: Final = 10_000


class _Row:
    """The failures in a row of one limit key in this process.

    Attributes:
        failures: since the last success, or the last answer that held jobs back.
        until: jobs of claims that were answered before this time are held back.
    """

    __slots__ = ("failures", "until")

    def __init__(self) -> None:
        self.failures = 0
        self.until = 0.0


class _Attempt(NamedTuple):
    """An attempt that ended; ``breaker`` and ``error`` only if it failed."""

    queue: str
    key: str
    lease_id: int
    claim_no: int
    offset: int
    claimed_at: float
    ended_at: float
    breaker: Breaker | None = None
    error: str = ""

    def as_report(self, now: float) -> dict[str, Any]:
        """Return an element of the argument of ``forebay.report_breakers_v1()``."""
        found: dict[str, Any] = {
            "lease_id": self.lease_id,
            "claim_no": self.claim_no,
            "offset": self.offset,
            "failed": self.breaker is not None,
            "ended_ago": now - self.ended_at,
            "claimed_ago": now - self.claimed_at,
        }
        if self.breaker is not None:
            found |= {
                "error": self.error,
                "threshold": self.breaker.failures,
                "cooldown": self.breaker.cooldown_seconds,
                "cooldown_max": self.breaker.cooldown_max_seconds,
            }
        return found


class BreakerReports:
    """The ends of attempts of this process that matter to breakers and are not reported yet.

    Owns them and the calls that report them. It guarantees that a failure is reported within about
    0.1 s, and a success within about a second where a key of its queue has failed lately; all
    other successes are forgotten. While the database is unavailable, the newest 10,000 are kept.

    It also guarantees that of the jobs in hand no more run than can fail in a row, until the
    database has decided: the others are released, and use no attempt.

    A crash loses what was not reported: a breaker opens later, or is closed by a later success.

    Args:
        kinds: the handlers.
        worker: the name of the process.
        settings: returns the settings of the database that were set.
    """

    def __init__(
        self,
        kinds: Kinds,
        worker: str,
        settings: Callable[[], Mapping[str, Any]] = dict,
    ) -> None:
        self._settings = settings
        self._kinds = kinds
        self._worker = worker
        #: Where a kind with a breaker had jobs. The success of any kind there closes a breaker.
        self._queues = {kind.queue for kind in kinds if kind.breaker is not None}
        #: Those in which a key has failed since its last success, as the last answer said.
        self._failing: frozenset[str] = frozenset()
        self._ended: list[_Attempt] = []
        self._tries = 0
        self._rows: dict[tuple[str, str], _Row] = {}
        self._some = asyncio.Event()
        self._hurry = asyncio.Event()

    @property
    def is_needed(self) -> bool:
        """Whether a kind declares a breaker."""
        return bool(self._queues)

    def holds_back(self, held: HeldJob) -> bool:
        """Whether a job is not to run now, because its limit key fails."""
        row = self._rows.get((held.lane.queue, held.row.limit_key or ""))
        return row is not None and held.batch.claimed_at < row.until

    def ended(self, held: HeldJob, ended: Ended | None) -> None:
        """An attempt ended; None means done."""
        works: Any = True
        if ended is not None and ended.outcome != "done":
            works, ended.key_works = ended.key_works, msgspec.UNSET
        key = held.row.limit_key
        if key is None:
            return
        queue = held.lane.queue
        if works is False:
            assert ended is not None
            self._failed(held, key, ended)
        elif works is True and queue in self._queues:
            self._rows.pop((queue, key), None)
            self._add(_attempt(held, key))
            if queue in self._failing or len(self._ended) >= _MOST:
                self._hurry.set()

    def _failed(self, held: HeldJob, key: str, ended: Ended) -> None:
        try:
            breaker = self._kinds.get(held.row.kind).breaker
        except UnknownKind:
            return
        if breaker is None:
            return
        queue = held.lane.queue
        self._queues.add(queue)
        if len(self._rows) >= _ROWS_MOST:
            self._forget_rows()
        row = self._rows.setdefault((queue, key), _Row())
        row.failures += 1
        if row.failures >= (with_settings(breaker, self._settings()).failures or 1):
            row.until = math.inf
        error = ended.error or {}
        text = f"{error.get('type', 'failed')}: {without_values(error.get('message', ''))}"
        shown = bounded_text(text.removesuffix(": "), bytes_max=_ERROR_BYTES_MAX)
        self._add(_attempt(held, key)._replace(breaker=breaker, error=shown))
        self._hurry.set()

    def _forget_rows(self) -> None:
        """Forget keys of which no job is held back."""
        now = time.monotonic()
        self._rows = {key: row for key, row in self._rows.items() if row.until > now}

    def _decided(self, attempts: Sequence[_Attempt], opened: Collection[tuple[str, str]]) -> None:
        """The database has counted these failures: what it gives out from now on may run."""
        now = time.monotonic()
        for one in attempts:
            place = one.queue, one.key
            row = self._rows.get(place)
            if one.breaker is None or row is None:
                continue
            if place in opened or row.until == math.inf:
                first = with_settings(one.breaker, self._settings()).cooldown_seconds or 0.0
                on_the_way = min(_ON_THE_WAY_SECONDS, first / 2)
                row.failures, row.until = 0, now + on_the_way

    def _add(self, attempt: _Attempt) -> None:
        self._ended.append(attempt)
        if len(self._ended) > _KEPT_MOST:
            del self._ended[: len(self._ended) // 2]
        self._some.set()

    async def run(self, session: Session) -> None:
        """Report until cancelled."""
        while True:
            await self._some.wait()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_SECONDS):
                    await self._hurry.wait()
            await self.flush(session)
            await asyncio.sleep(_LEAST_SECONDS)

    async def flush(self, session: Session) -> None:
        """Report what ended since the last report."""
        self._some.clear()
        self._hurry.clear()
        attempts, self._ended = self._ended, []
        try:
            while attempts:
                some = attempts[:_MOST]
                await self._report(session, some)
                del attempts[:_MOST]
            self._tries = 0
        except Exception as error:
            # The database is gone, or an operator's transaction holds limits of a key.
            self._tries += 1
            if not isinstance(error, DatabaseUnavailable) and self._tries >= _TRIES_MOST:
                log.exception("ends of attempts could not be reported to breakers")
                self._tries = 0
                return
            log.debug("ends of attempts are reported to breakers later: %s", error)
            self._ended = (attempts + self._ended)[-_KEPT_MOST:]
            self._some.set()
            await asyncio.sleep(_SECONDS)

    async def _report(self, session: Session, attempts: Sequence[_Attempt]) -> None:
        # The successes between failures count, whatever the last answer said.
        concerned = self._failing | {one.queue for one in attempts if one.breaker is not None}
        await self._send(session, [one for one in attempts if one.queue in concerned])
        later = [one for one in attempts if one.queue in self._failing - concerned]
        if later:
            await self._send(session, later)

    async def _send(self, session: Session, attempts: Sequence[_Attempt]) -> None:
        now = time.monotonic()
        answer = await session.run(
            protocol.report_breakers(
                self._worker, sorted(self._queues), [one.as_report(now) for one in attempts]
            )
        )
        self._failing = answer.failing
        self._decided(attempts, answer.opened)


def _attempt(held: HeldJob, key: str) -> _Attempt:
    batch = held.batch
    return _Attempt(
        held.lane.queue,
        key,
        batch.lease.lease_id,
        batch.claim_no,
        held.row.offset,
        batch.claimed_at,
        time.monotonic(),
    )
