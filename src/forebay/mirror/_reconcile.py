"""One pass over some jobs: read both stores, repair, read back, and decide how each job ends.

Invariants "ended only after a read" and "one item, one write": docs/design/reconcile.md.
Shown by: tests/mirror.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, OrderedDict, deque
from typing import TYPE_CHECKING, Any, Final

from forebay.errors import DatabaseUnavailable, InvalidJob, TargetUnavailable
from forebay.mirror._breaker import SharedBreaker
from forebay.mirror._decide import Verdict, decide, is_proved
from forebay.mirror._model import (
    Document,
    Gone,
    checked_entries,
    checked_errors,
    checked_id,
    checked_seen,
    with_digest,
)
from forebay.mirror._pass import Item, Pass, Undecided
from forebay.mirror._turns import UNLIMITED, NoTurn, Turns
from forebay.model import Dead, Retry, Snooze
from forebay.model.outcome import Endings

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from forebay.mirror._loop_thread import Calls
    from forebay.mirror._model import Id, Seen, Source, Target
    from forebay.mirror._pass import Ending, Origin
    from forebay.model import Job

#: Errors that say nothing about an item, only that a store is unavailable now. Timeouts are among
#: them.
UNAVAILABLE: Final = (TargetUnavailable, DatabaseUnavailable, OSError)

#: Calls of one pass that search for the failing items, when a bulk call fails as a whole.
CALLS_MAX: Final = 64

#: The most entries remembered of writes that cannot be read yet, and of forced ones; the oldest is
#: forgotten first. A forgotten entry costs one more write, nothing else.
REMEMBERED_MAX: Final = 100_000

#: While a store is unavailable, at least one pass per this time tries it.
_TRY_SECONDS_MAX: Final = 30.0

#: Jobs that one process postpones while a store is unavailable return at this rate at most. So a
#: try costs the same whether thousands or millions wait, and when the store is back they return
#: about as fast as they can be processed.
POSTPONED_PER_SECOND: Final = 2500.0

#: The longest time a job is postponed.
_POSTPONE_SECONDS_MAX: Final = 3600.0


class Counts:
    """Counters of events by name; any thread may add to them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()

    def add(self, name: str, count: int = 1) -> None:
        """Count an event."""
        with self._lock:
            self._counts[name] += count

    def all(self) -> dict[str, int]:
        """Return the counts so far."""
        with self._lock:
            return dict(self._counts)


class LRUCache:
    """Recent writes of this process, which are not repeated before they can be read."""

    def __init__(self) -> None:
        self._known: OrderedDict[Any, Any] = OrderedDict()

    def remember(self, key: Any, value: Any) -> None:
        """Keep a value."""
        self._known.pop(key, None)
        self._known[key] = value
        if len(self._known) > REMEMBERED_MAX:
            self._known.popitem(last=False)

    def recall(self, key: Any) -> Any:
        """Return the value of a key; None when it is unknown."""
        return self._known.get(key)

    def forget(self, key: Any) -> None:
        """Drop a key."""
        self._known.pop(key, None)


class Reconciler:
    """Passes over jobs; all of them run on one loop.

    Args:
        name: the name for its counters.
        source: the first store.
        target: the second store.
        calls: runs the methods of both.
        counts: counters of this process.
        is_right: the compare rule.
        hashes: documents go to the target with their digests.
        lag_seconds: the time until accepted writes can be read.
        call_seconds: how long one call may take.
        turns: of the backlog.
    """

    def __init__(
        self,
        name: str,
        source: Source,
        target: Target,
        *,
        calls: Calls,
        counts: Counts,
        is_right: Callable[[Document, Seen], bool],
        hashes: bool,
        lag_seconds: float,
        call_seconds: float,
        turns: Turns,
    ) -> None:
        self._name = name
        self._source = source
        self._target = target
        self._calls = calls
        self._counts = counts
        self._is_right = is_right
        self._hashes = hashes
        self._lag = lag_seconds
        self._seconds = call_seconds
        self.breaker = SharedBreaker(seconds_max=_TRY_SECONDS_MAX)
        self._turns = turns
        self._is_reported_open = False
        #: When the last postponed job returns, on the clock of ``time.monotonic``.
        self._back_at = 0.0
        #: By item: the accepted version, and when it can be read.
        self._accepted = LRUCache()
        #: Forced jobs whose write was accepted.
        self._forced = LRUCache()

    async def run(self, jobs: Sequence[Job]) -> Endings:
        """Return how each job ends (None when its item was read and is right), and the counters."""
        endings: list[Ending] = [None] * len(jobs)
        work = Pass(jobs, self._turns)
        counters: Counter[tuple[str, Origin]] = Counter()
        for place, job in enumerate(jobs):
            if job.args.get("heartbeat") is True:
                work.heartbeats.append(place)
                continue
            try:
                name = checked_id(job.args.get("id"))
            except InvalidJob as error:
                endings[place] = Dead(error.message)
                counters["refused", _origin(job)] += 1
                continue
            item = work.items.setdefault(name, Item(name))
            item.places.append(place)
            item.origins.append(_origin(job))
            if _is_forced(job) and self._forced.recall(_name(job)) is None:
                item.force = True
        if work.items or work.heartbeats:
            if await self._turns.share() < 1:
                await self._pass_in_turns(work)
            else:
                await self._pass(work)
        for place in work.heartbeats:
            if work.heartbeat_error is not None:
                endings[place] = work.heartbeat_error
                counters["rejected", _origin(jobs[place])] += 1
            elif work.trouble is None and not work.is_skipped:
                counters["completed.heartbeat", _origin(jobs[place])] += 1
            else:
                wait = max(self.breaker.wait_seconds, 1.0)
                endings[place] = Snooze(wait, reason="a store is unavailable")
                counters["postponed", _origin(jobs[place])] += 1
        for item in work.items.values():
            assert not isinstance(item.ending, Undecided)
            for place in item.places:
                endings[place] = item.ending
            if item.ending is None:
                self._forget(item, jobs)
            counters.update(item.counters)
        if work.trouble is not None:
            counters[_trouble(work.trouble), (None, None)] += 1
        for (outcome, _), count in counters.items():
            self._counts.add(outcome, count)
        return Endings(endings, counters=self._counters_of(counters, work))

    def _counters_of(
        self, counters: Counter[tuple[str, Origin]], work: Pass
    ) -> dict[str, Any] | None:
        counts = [[outcome, *origin, count] for (outcome, origin), count in counters.items()]
        found: dict[str, Any] = {"mirror": self._name, "counts": counts}
        if work.trouble is not None and self.breaker.wait_seconds > 0:
            self._is_reported_open = True
            found["breaker"] = {
                "place": "pass",
                "open_seconds": self.breaker.wait_seconds,
                "why": problem_of(work.trouble),
            }
        elif self._is_reported_open and work.trouble is None and not work.is_skipped:
            self._is_reported_open = False
            found["breaker"] = {"place": "pass", "open_seconds": None, "why": None}
        return found if len(found) > 2 or counts else None

    async def _pass_in_turns(self, work: Pass) -> None:
        """Work on some items at a time, with a rest after them: reads and proofs cost as much as
        writes.
        """
        rest = deque(work.items.items())
        heartbeats = work.heartbeats
        # Half of the time that the handler has.
        until = time.monotonic() + 5 * self._seconds + 30
        while rest or heartbeats:
            try:
                wait = max(0.0, until - time.monotonic())
                async with self._turns.turn(max(1, len(rest)), wait) as size:
                    some = dict(rest.popleft() for _ in range(min(size, len(rest))))
                    part = Pass(work.jobs, UNLIMITED, some, heartbeats)
                    await self._pass(part)
            except NoTurn:
                work.is_skipped = True
                for _, item in rest:
                    self._fail(item, _LeftOver())
                return
            heartbeats = []
            work.trouble = part.trouble or work.trouble
            work.is_skipped |= part.is_skipped
            work.heartbeat_error = part.heartbeat_error or work.heartbeat_error

    async def _pass(self, work: Pass) -> None:
        if self.breaker.allows():
            await self._look(work)
            accepted = await self._repair(work)
            if self._lag == 0:
                await self._read_back(work, accepted)
            if work.heartbeats and work.trouble is None:
                await self._heartbeat(work)
            if work.trouble is None:
                self.breaker.succeeded()
                self._back_at = 0.0
            else:
                self.breaker.failed()
        else:
            work.is_skipped = True
        if work.trouble is not None or work.is_skipped:
            self._turns.restart()
        # A request without an answer may have been applied: the next pass will find out.
        why = (
            problem_of(work.trouble)
            if work.trouble
            else "the target or the source cannot be reached"
        )
        wait = max(self.breaker.wait_seconds, 1.0)
        for item in _open(work):
            self._postpone(item, wait, why)

    async def _heartbeat(self, work: Pass) -> None:
        """Prove that both stores are available by reading their first entry."""
        try:
            await self._call(self._target.scan, None, None, 1)
            await self._call(self._source.scan, None, 1)
        except UNAVAILABLE as error:
            work.trouble = error
        except Exception as error:  # a scan of the user that fails says nothing about any item
            work.heartbeat_error = error

    # --- looking ---

    async def _look(self, work: Pass) -> None:
        """Read the target and then the source, and decide."""
        seen = await self._read_target(work, [item for item in _open(work) if not item.force])
        await self._read_source(work)
        if work.trouble is not None:
            return
        for item in _open(work):
            assert item.entry is not None
            item.seen = seen.get(item.id)
            try:
                verdict = decide(item.entry, item.seen, self._is_right, force=item.force)
            except Exception as error:  # the compare rule may be a function of the user
                self._fail(item, error)
                continue
            if verdict is Verdict.AHEAD:
                assert item.seen is not None
                item.count("ahead")
                item.ending = Retry(
                    reason=(
                        f"the target has version {item.seen.version}, the source "
                        f"{item.entry.version}"
                    )
                )
            elif verdict in _ENDS:
                item.count_jobs(f"completed.{verdict}")
                item.ending = None
            else:
                item.verdict = verdict
                self._wait_for_lag(item)

    async def _read_target(self, work: Pass, items: list[Item]) -> dict[Id, Seen]:
        seen: dict[Id, Seen] = {}

        async def read(ids: Sequence[Id]) -> None:
            seen.update(checked_seen(await self._call(self._target.read, ids)))

        failures = await self._failures_apart(work, read, [item.id for item in items])
        self._fail_all(work, failures)
        return seen

    async def _read_source(self, work: Pass) -> None:
        async def read(ids: Sequence[Id]) -> None:
            entries = checked_entries(ids, await self._call(self._source.read, ids))
            for name, entry in entries.items():
                hashed = self._hashes and isinstance(entry, Document)
                work.items[name].entry = with_digest(entry) if hashed else entry  # type: ignore[arg-type]

        failures = await self._failures_apart(work, read, [item.id for item in _open(work)])
        self._fail_all(work, failures)

    def _wait_for_lag(self, item: Item) -> None:
        """Postpone an item that was just accepted and cannot be read yet."""
        accepted = self._accepted.recall(item.id)
        if item.force or accepted is None or accepted[0] != _version(item.entry):
            return
        wait = accepted[1] - time.monotonic()
        if wait > 0:
            item.count("not_yet")
            item.ending = Snooze(wait, reason="accepted by the target, not readable yet")

    # --- repairing ---

    async def _repair(self, work: Pass) -> list[Item]:
        """Write and delete; return the items that the target accepted."""
        accepted: list[Item] = []
        for cls, function in ((Document, self._target.write), (Gone, self._target.delete)):
            part = [i for i in _open(work) if i.verdict is not None and isinstance(i.entry, cls)]
            sent, failures = await self._apply(work, function, [item.entry for item in part])
            self._fail_all(work, failures)
            # Of the others the state is unknown.
            accepted += [item for item in part if item.is_open and item.id in sent]
        for item in accepted:
            item.count(f"mirrored.{item.verdict}")
            for place in item.places:
                if _is_forced(work.jobs[place]):
                    self._forced.remember(_name(work.jobs[place]), True)
            if self._lag > 0:
                self._await_lag(item)
        return accepted

    def _await_lag(self, item: Item) -> None:
        before = self._accepted.recall(item.id)
        version = _version(item.entry)
        self._accepted.remember(item.id, (version, time.monotonic() + self._lag))
        if before is not None and before[0] == version and not item.force:
            item.count("unproved")
            item.ending = Retry(reason=_unproved(item))
        else:
            item.ending = Snooze(self._lag, reason="written, not readable yet")

    async def _read_back(self, work: Pass, items: list[Item]) -> None:
        """Read the accepted items; an item that is right has ended."""
        seen = await self._read_target(work, items)
        if work.trouble is not None:
            return
        for item in items:
            if not item.is_open:
                continue
            assert item.entry is not None
            assert item.verdict is not None
            if is_proved(item.entry, seen.get(item.id), self._is_right):
                item.count_jobs(f"completed.{_COMPLETED[item.verdict]}")
                item.ending = None
            else:
                item.count("unproved")
                item.ending = Retry(reason=_unproved(item))

    async def _apply(
        self, work: Pass, function: Callable[..., Any], entries: Sequence[Any]
    ) -> tuple[set[Id], dict[Id, Exception]]:
        """Write or delete, in turns.

        Return the ids that were sent and answered, and the failures.
        """
        failures: dict[Id, Exception] = {}
        sent: set[Id] = set()

        async def send(part: Sequence[Any]) -> None:
            failures.update(checked_errors(await self._call(function, part)))
            sent.update(_id(entry) for entry in part)

        errors = await self._failures_apart(work, send, entries, work.writes)
        return sent, failures | errors

    async def _failures_apart(
        self,
        work: Pass,
        send: Callable[[Sequence[Any]], Awaitable[None]],
        entries: Sequence[Any],
        turns: Turns = UNLIMITED,
    ) -> dict[Id, Exception]:
        """Make a bulk call; if it fails as a whole, repeat it in halves to find the failing items.

        When that takes too many calls, the rest is postponed. When a store is unavailable, that
        becomes the pass's trouble, and no further call is made.

        Args:
            work: the pass.
            send: makes a call.
            entries: what it is for.
            turns: decides when the next call may be made, and for how many entries.
        """
        failures: dict[Id, Exception] = {}
        waiting = deque([entries] if entries else [])
        #: Calls from the first on that failed as a whole, and the end of the search.
        calls, until = 0, 0.0
        while waiting and work.trouble is None:
            part = waiting.popleft()
            if calls >= CALLS_MAX or (calls > 0 and time.monotonic() > until):
                failures.update((_id(entry), _LeftOver()) for entry in part)
                continue
            calls += calls > 0
            try:
                async with turns.turn(len(part), self._seconds) as size:
                    if size < len(part):
                        waiting.appendleft(part[size:])
                        part = part[:size]
                    await send(part)
            except NoTurn:
                failures.update((_id(entry), _LeftOver()) for entry in part)
            except UNAVAILABLE as error:
                work.trouble = error
            except Exception as error:
                if calls == 0:
                    calls, until = 1, time.monotonic() + 2 * self._seconds
                if len(part) == 1:
                    failures[_id(part[0])] = error
                else:
                    middle = len(part) // 2
                    waiting.extendleft((part[middle:], part[:middle]))
        return failures

    async def _call(self, function: Callable[..., Any], *args: Any) -> Any:
        return await self._calls.call(function, *args, seconds=self._seconds)

    # --- endings ---

    def _fail_all(self, work: Pass, failures: Mapping[Id, Exception]) -> None:
        for name, error in failures.items():
            item = work.items.get(name)
            if item is not None and item.is_open:
                self._fail(item, error)

    def _fail(self, item: Item, error: Exception) -> None:
        if isinstance(error, _LeftOver):
            self._postpone(
                item, 1.0, "other items fail or are written first; this one was not tried"
            )
        else:
            item.count("rejected")
            item.ending = error

    def _postpone(self, item: Item, seconds: float, why: str) -> None:
        item.count("postponed")
        now = time.monotonic()
        self._back_at = max(self._back_at + 1 / POSTPONED_PER_SECOND, now + seconds)
        item.ending = Snooze(min(self._back_at - now, _POSTPONE_SECONDS_MAX), reason=why)

    def _forget(self, item: Item, jobs: Sequence[Job]) -> None:
        self._accepted.forget(item.id)
        for place in item.places:
            if _is_forced(jobs[place]):
                self._forced.forget(_name(jobs[place]))


class _LeftOver(Exception):  # noqa: N818 - not an error of the item
    """An item was not tried."""


_ENDS: Final = frozenset({Verdict.EQUAL, Verdict.GONE})

#: The counter of an item that was repaired and proved.
_COMPLETED: Final = {
    Verdict.FORCED: Verdict.FORCED,
    Verdict.DELETE: Verdict.GONE,
    Verdict.MISSING: Verdict.EQUAL,
    Verdict.DIFFERENT: Verdict.EQUAL,
}


def _open(work: Pass) -> list[Item]:
    return [item for item in work.items.values() if item.is_open]


def _origin(job: Job) -> Origin:
    return job.tag, job.priority


def _trouble(error: Exception) -> str:
    return "timeout" if isinstance(error, TimeoutError) else "unavailable"


def _is_forced(job: Job) -> bool:
    return job.args.get("force") is True


def _name(job: Job) -> tuple[Any, ...]:
    # A job number alone may be reused, after a crash that lost commits.
    return (job.job_id, job.enqueued_at)


def _id(entry: Any) -> Any:
    return entry.id if isinstance(entry, Document | Gone) else entry


def _version(entry: Document | Gone | None) -> tuple[str, int | None]:
    assert entry is not None
    return type(entry).__name__, entry.version


def _unproved(item: Item) -> str:
    if isinstance(item.entry, Document):
        return f"the target accepted version {item.entry.version}, but does not show it"
    return "the target accepted the deletion, and still has the item"


def problem_of(error: BaseException) -> str:
    """Return the message of an error; its type if it has none."""
    return str(error) or type(error).__name__
