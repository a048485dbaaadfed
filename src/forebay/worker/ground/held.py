"""What a worker process holds: leases, their batches, and the jobs in them.

A batch is identified by (lease, claim_no). The process counts claim numbers in memory and never
reuses one. A process that lost its database connection during a claim takes a new lease, because it
cannot know what the old one holds. A lease is trusted until ``sent_at + lease_seconds - margin``,
counted from when the last acknowledged heartbeat was *sent*: a slow answer must not extend the
trust.

Invariant "single holder": docs/design/engine.md.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from dataclasses import field, replace
from typing import TYPE_CHECKING, Any, Final

import msgspec

from forebay._dataclass import dataclass
from forebay.model.job import Job
from forebay.ops.claimed import decoded_args
from forebay.ops.protocol import Ended, Flush
from forebay.policy.retry import RetryPolicy

if TYPE_CHECKING:
    from collections.abc import Iterator

    from forebay.arguments.kinds import Kind
    from forebay.model.attempts import AttemptEnded
    from forebay.ops.claimed import ClaimedJob
    from forebay.ops.flows import ChildEnd
    from forebay.ops.protocol import ReadyLane


@dataclass(slots=True, eq=False)
class Lease:
    """A lease of this process. ``retired``: no more claims. ``lost``: settle nothing more.

    A confirmed heartbeat makes it trusted for ``trusted_seconds`` more.
    """

    lease_id: int
    trusted_until: float
    trusted_seconds: float = 0.0
    retired: bool = False
    lost: bool = False
    batches: dict[int, Batch] = field(default_factory=dict)
    _claim_nos: Iterator[int] = field(default_factory=lambda: itertools.count(1))
    newest: int = 0

    def next_claim_no(self) -> int:
        """Return the number of the next batch."""
        self.newest = next(self._claim_nos)
        return self.newest

    def next_claim_nos(self, count: int) -> list[int]:
        """Return the numbers of the batches of one call, in order.

        The numbers of those that give no jobs stay unused.
        """
        return [self.next_claim_no() for _ in range(count)]

    @property
    def floor(self) -> int:
        """The oldest open batch; the newest number if none is open."""
        return min(self.batches, default=self.newest)


class Announcement:
    """The end of an attempt, until the database has it: its settlement's middlewares are
    entered.
    """

    __slots__ = ("around", "ended")

    def __init__(self, ended: AttemptEnded, around: list[Iterator[None]]) -> None:
        self.ended = ended
        self.around = around


@dataclass(slots=True, eq=False)
class Batch:
    """The jobs of one claim, and which of them are settled."""

    lease: Lease
    claim_no: int
    size: int
    open_offsets: set[int]
    flush_nos: Iterator[int] = field(default_factory=lambda: itertools.count(1))
    untouched: bool = True
    done: list[int] = field(default_factory=list)
    millis: list[int] = field(default_factory=list)
    ended: list[Ended] = field(default_factory=list)
    #: Counters to record with the settlement.
    counters: list[dict[str, Any]] = field(default_factory=list)
    #: The jobs that are done, or end so, and are children of a flow, by offset.
    children: dict[int, ChildEnd] = field(default_factory=dict)
    #: The offsets of these jobs by their ids, until the batch ends.
    child_offsets: dict[int, int] = field(default_factory=dict)
    #: Whether its settlement may make other jobs ready: it has ordering keys, or its queue has
    #: limits.
    frees_others: bool = False
    lane: ReadyLane | None = None
    #: When the answer to its claim came.
    claimed_at: float = field(default_factory=time.monotonic)
    #: Ended attempts whose listeners wait for the settlement, by offset.
    announced: dict[int, Announcement] = field(default_factory=dict)
    #: For jobs of ordering keys that will run again: the newest claim when that was settled, None
    #: until then.
    _continued: dict[int, int | None] = field(default_factory=dict)
    _waiting: list[asyncio.Future[None]] = field(default_factory=list)

    async def settled(self, offset: int) -> None:
        """Wait until the job at an offset is settled or its lease is lost."""
        while offset in self.open_offsets and not self.lease.lost:
            waiting = asyncio.get_running_loop().create_future()
            self._waiting.append(waiting)
            await waiting

    @property
    def is_awaited(self) -> bool:
        """Whether something waits for the settlement of its jobs: other jobs, listeners, or a part
        of this process.
        """
        return self.frees_others or bool(self.announced) or bool(self._waiting)

    def continues(self, offset: int) -> None:
        """Record that the job at an offset will run again: later jobs of its ordering key were
        claimed too early.
        """
        self._continued[offset] = None if offset in self.open_offsets else self.lease.newest

    def was_before(self, offset: int, claim_no: int) -> bool:
        """Whether a claim may have been made before the database knew that the job at an offset
        will run again.
        """
        newest = self._continued[offset]
        return newest is None or claim_no <= newest

    def take_flush(self, ended_most: int) -> Flush | None:
        """Return a flush of the jobs that ended since the last flush; None if there are none.

        It has at most ``ended_most`` other outcomes than done; the others stay for the next one.
        """
        if not self.done and not self.ended:
            return None
        whole = self.untouched and len(self.done) == self.size
        flush = Flush(
            claim_no=self.claim_no,
            flush_no=next(self.flush_nos),
            done=None if whole else self.done,
            millis=_in_order(self.done, self.millis) if whole else self.millis,
            ended=self.ended[:ended_most],
        )
        if self.counters:
            flush.counters, self.counters = self.counters, []
        if self.children:
            taken = [*self.done, *(ended.offset for ended in flush.ended)]
            flush.children = [self.children.pop(at) for at in taken if at in self.children]
        self.untouched = False
        self.done, self.millis, self.ended = [], [], self.ended[ended_most:]
        return flush

    def note_child(self, offset: int, child: ChildEnd) -> None:
        """Record what the parent of a job that is done learns of its end."""
        self.children[offset] = child
        self.child_offsets[child.job_id] = offset

    def divided(self, flush: Flush) -> list[Flush]:
        """Return a flush that the database refused as several: what is done, and each other
        outcome alone.

        The refused one was recorded under no circumstances, so its name may be used for a part.
        """
        children: dict[int | None, list[ChildEnd]] = {}
        ended = {each.offset for each in flush.ended}
        for child in [] if flush.children is msgspec.UNSET else flush.children:
            offset = self.child_offsets.get(child.job_id)
            children.setdefault(offset if offset in ended else None, []).append(child)
        parts = []
        if flush.done != []:
            parts.append(replace(flush, ended=[], children=children.get(None, msgspec.UNSET)))
        parts += [
            Flush(
                claim_no=self.claim_no,
                flush_no=next(self.flush_nos),
                done=[],
                ended=[each],
                children=children.get(each.offset, msgspec.UNSET),
            )
            for each in flush.ended
        ]
        if parts[0].done == []:
            parts[0].counters = flush.counters
        return parts

    def take_announced(self, offsets: list[int] | None) -> list[Announcement]:
        """Return the announcements of these offsets, or all, and forget them."""
        wanted = list(self.announced) if offsets is None else offsets
        return [self.announced.pop(offset) for offset in wanted if offset in self.announced]

    def close(self, offsets: list[int] | None) -> None:
        """Record that these offsets, or all, are settled; an empty batch leaves its lease."""
        if offsets is None:
            self.open_offsets.clear()
        else:
            self.open_offsets.difference_update(offsets)
        for offset in self._continued.keys() - self.open_offsets:
            if self._continued[offset] is None:
                self._continued[offset] = self.lease.newest
        if not self.open_offsets:
            self.lease.batches.pop(self.claim_no, None)
        waiting, self._waiting = self._waiting, []
        for future in waiting:
            if not future.done():
                future.set_result(None)


def _in_order(offsets: list[int], millis: list[int]) -> list[int]:
    if offsets == list(range(1, len(offsets) + 1)):
        return millis
    return [m for _, m in sorted(zip(offsets, millis, strict=True))]


class Raised:
    """An exception of a call, for the log. All jobs of a batch share it.

    The first record shows its traceback.
    """

    __slots__ = ("error", "shown_for")

    def __init__(self, error: BaseException) -> None:
        self.error = error
        self.shown_for: int | None = None


class HeldJob(msgspec.Struct, eq=False):
    """A claimed job: waiting in this process, running, or ended.

    ``ended`` is set once, by the first decision how the job ended; later decisions are ignored.
    ``interrupted`` is the reason why the handler was asked to stop. ``follows`` is the previous job
    of the same ordering key and lease, until this job ends. ``raised`` is the exception with which
    it ended, until that is logged. ``child`` is what its parent learns of its end, if it is the
    child of a flow.
    """

    row: ClaimedJob
    batch: Batch
    lane: ReadyLane
    ended: bool = False
    interrupted: str | None = None
    started_at: float = 0.0
    alone: bool = False
    control: Any = None
    follows: HeldJob | None = None
    raised: Raised | None = None
    child: Any = None

    @property
    def lease(self) -> Lease:
        return self.batch.lease

    def begin(self) -> None:
        self.started_at = time.monotonic()

    def measure(self, ended: Ended) -> None:
        """Write how long the handler ran into the end of its attempt; not where it was interrupted
        to be released, or never ran.
        """
        if self.started_at and ended.outcome not in UNMEASURED:
            ended.millis = self.millis(time.monotonic())

    def millis(self, now: float) -> int:
        return min(int((now - self.started_at) * 1000), 2_147_483_647)


#: Outcomes of a job that comes back as if it had not been claimed: its time is no duration.
UNMEASURED: Final = frozenset({"released", "unknown"})

#: For the attempts of a job that has neither a handler nor its own limit.
_NO_KIND: Final = RetryPolicy()


def job_of(held: HeldJob, kind: Kind | None, group: str) -> Job:
    """Return the job as a handler sees it, or as its listeners do without a handler.

    It has no arguments if they are not decoded, as for a handler in a child process.
    """
    row = held.row
    return Job(
        job_id=row.job_id,
        kind=row.kind,
        queue=held.lane.queue,
        priority=held.lane.priority,
        args={} if row.is_text else decoded_args(row.args),
        attempt=row.attempts_used + 1,
        max_attempts=row.max_attempts or (_NO_KIND if kind is None else kind.retry).max_attempts,
        enqueued_at=row.enqueued_at,
        expires_at=row.expires_at,
        tag=row.tag,
        correlation_id=row.correlation_id,
        headers=row.headers or {},
        ordering_key=row.ordering_key,
        group=group,
    )
