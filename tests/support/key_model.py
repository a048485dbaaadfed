"""What is promised of keys, as a small model in plain Python: no SQL, no queue, only jobs and
what may happen to them.

The model learns each step after the database made it, and asserts that the step was allowed. Time
is counted twice: in seconds, by the clock of the database, and in steps (``tick``), which say what
was committed before what was enqueued.
"""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

#: Whether jobs may have an ordering key and a limit key.
BOTH_KEYS = True

GROUPS = ("first", "second")

WAITING, HELD, DEFERRED = "waiting", "claimed", "deferred"
#: Where a job ends.
ENDS = ("done", "dead", "cancelled", "expired")
#: After these outcomes a job runs again.
AGAIN = ("retried", "later", "snoozed", "released", "unknown", "lost")

#: A sort of key ("ordering" or "limit") and the key.
Key = tuple[str, str]


@dataclass
class Job:
    """A job as it was enqueued."""

    job_id: int
    kind: str
    priority: int
    ordering: str | None
    limit: str | None
    expires_at: float
    max_attempts: int
    parts: dict[str, "Part"] = field(default_factory=dict)


@dataclass(eq=False)
class Part:
    """A job for one group.

    has_place: its place among the jobs of its ordering key is promised, by drawn and visible, the
    ticks at which it was enqueued and committed, and by its number among those that were committed
    together. awaits_place: it gets one when it is due. returning: it ran, or was first of its key,
    and will run again: its key waits for it.
    """

    job: Job
    group: str
    place: str
    run_at: float
    attempt: int = 0
    drawn: int = 0
    visible: int = 0
    number: int = 0
    has_place: bool = False
    awaits_place: bool = False
    cancelled: bool = False
    suspect: bool = False
    returning: bool = False
    settling: bool = False
    lease: "Lease | None" = None

    def __repr__(self) -> str:
        job = self.job
        return (
            f"<{job.job_id} {self.group} p{job.priority} "
            f"{job.ordering or '-'}/{job.limit or '-'} {self.place}"
            f" attempt {self.attempt} drawn {self.drawn} visible {self.visible}>"
        )

    @property
    def keys(self) -> list[Key]:
        job = self.job
        named = (("ordering", job.ordering), ("limit", job.limit))
        return [(sort, key) for sort, key in named if key is not None]

    def is_over(self, now: float) -> bool:
        """Whether it has ended, or will not start again whatever happens."""
        if self.place in ENDS:
            return True
        return self.place != HELD and (self.cancelled or self.job.expires_at <= now)

    def comes_before(self, other: "Part") -> bool:
        """Whether it has to end before the other one, a job of its ordering key and group, may
        start.
        """
        if self.job.priority != other.job.priority or not (self.has_place and other.has_place):
            return False
        if self.visible == other.visible:
            return self.number < other.number
        return self.visible < other.drawn


@dataclass(eq=False)
class Batch:
    """What one claim handed to a lease: the unsettled jobs by offset. size: how many it had."""

    claim_no: int
    open: dict[int, Part]
    size: int
    alone: bool = False
    started: bool = False
    known: bool = True
    flush: int = 0


@dataclass(eq=False)
class Lease:
    """A lease, its open batches, and by ordering key its jobs in the order in which they have to
    run.

    stopped: jobs that may no longer start, since an earlier one of their key will run again; they
    have to be released.
    """

    group: str
    batches: list[Batch] = field(default_factory=list)
    lines: dict[str, list[Part]] = field(default_factory=dict)
    stopped: set[Part] = field(default_factory=set)

    def runnable(self) -> list[tuple[Batch, int, Part]]:
        """Jobs that a handler may have now."""
        return [
            (batch, offset, part)
            for batch in self.batches
            for offset, part in batch.open.items()
            if batch.known and not part.settling and self.is_first(part)
        ]

    def is_first(self, part: Part) -> bool:
        """Whether a handler may have the job: none of its ordering key comes before it."""
        key = part.job.ordering
        return key is None or (self.lines[key][0] is part and part not in self.stopped)

    def stop_behind(self, part: Part) -> None:
        """The part will run again: what comes after it in its line may not start."""
        line = self.lines[part.job.ordering]
        self.stopped.update(line[line.index(part) + 1 :])


@dataclass
class Letter:
    """A dead letter that a settlement or a revocation wrote."""

    part: Part
    dead_id: int
    holds: bool
    redriven: Part | None = None


@dataclass
class Limits:
    """The limits of the queue, with the names of forebay.limit_queue()."""

    concurrency: int | None = None
    key_concurrency: int | None = None
    rate: tuple[float, int] | None = None
    key_rate: tuple[float, int] | None = None


@dataclass(frozen=True)
class KeyLimits:
    """The limits that a limit key has itself. empty_until: no job starts before, and one then."""

    concurrency: int | None = None
    rate: tuple[float, int] | None = None
    empty_until: float | None = None


class KeyModel:
    """All jobs of a queue, and what is promised of them."""

    def __init__(self) -> None:
        self.now = 0.0
        self.tick = 0
        self.jobs: dict[int, Job] = {}
        self.leases: list[Lease] = []
        self.letters: list[Letter] = []
        #: When pauses begin and end.
        self.pauses: dict[Key, tuple[float, float]] = {}
        self.limits = Limits()
        self.key_limits: dict[str, KeyLimits] = {}
        #: When jobs of a group, and of each limit key of it, were claimed since its rate was set.
        self.starts: dict[tuple[str, str | None], list[float]] = {}

    # -- jobs ------------------------------------------------------------------------------------

    def step(self) -> int:
        self.tick += 1
        return self.tick

    def committed(self, jobs: list[Job]) -> None:
        """The transaction of some jobs has committed."""
        tick = self.step()
        for job in jobs:
            self.jobs[job.job_id] = job
            for part in job.parts.values():
                part.visible = tick

    def promoted(self) -> None:
        """All jobs that were due have been promoted."""
        tick = self.step()
        for part in self.parts():
            if part.place == DEFERRED and part.run_at <= self.now:
                part.place = WAITING
                if part.awaits_place:
                    # Its number is drawn now. What is promoted together comes in no promised order.
                    part.drawn = part.visible = tick
                    part.number = 0
                    part.has_place = True
                    part.awaits_place = False

    def parts(self, group: str | None = None) -> list[Part]:
        return [
            part
            for job in self.jobs.values()
            for part in job.parts.values()
            if group in (None, part.group)
        ]

    def held(self, group: str) -> list[Part]:
        return [part for part in self.parts(group) if part.place == HELD]

    def is_paused(self, sort: str, key: str) -> bool:
        begins, ends = self.pauses.get((sort, key), (0, 0))
        return begins <= self.now < ends

    # -- claims ----------------------------------------------------------------------------------

    def handed_out(
        self, lease: Lease, claim_no: int, rows: list[dict[str, Any]], *, alone: bool
    ) -> Batch:
        """A claim gave these jobs to a lease: assert that it might."""
        batch = Batch(claim_no, {}, len(rows), alone)
        assert not alone or len(rows) == 1, "a suspect is handed out alone"
        for row in rows:
            assert row["job_id"] in self.jobs, f"phantom {row['job_id']}"
            part = self.jobs[row["job_id"]].parts.get(lease.group)
            assert part is not None, f"{row['job_id']} is not a job of {lease.group}"
            assert part.place == WAITING, f"{part} was handed out"
            assert not part.is_over(self.now), f"{part} was handed out after its end"
            assert row["attempt"] == part.attempt, (row, part)
            assert part.suspect == alone, part
            for sort, key in part.keys:
                assert not self.is_paused(sort, key), f"{part} of a paused key was handed out"
            if part.job.ordering is not None:
                self._may_follow(part, lease)
                lease.lines.setdefault(part.job.ordering, []).append(part)
            part.place = HELD
            part.lease = lease
            part.returning = False
            batch.open[row["batch_offset"]] = part
        lease.batches.append(batch)
        self._within_limits(lease.group, list(batch.open.values()))
        return batch

    def _may_follow(self, part: Part, lease: Lease) -> None:
        """Assert that a job of an ordering key may be handed to a lease now."""
        for letter in self.letters:
            dead = letter.part
            if letter.holds and dead.group == part.group and dead.job.ordering == part.job.ordering:
                if letter.redriven is part or (
                    letter.redriven and letter.redriven.is_over(self.now)
                ):
                    letter.holds = False
                else:
                    raise AssertionError(f"{part} was handed out, its key is held by {dead}")
        for other in self.parts(part.group):
            if other is part or other.job.ordering != part.job.ordering or other.is_over(self.now):
                continue
            if other.place == HELD:
                assert other.lease is lease, f"{part} was handed out beside {other}"
                assert other not in lease.stopped, f"{part} was handed out before {other} came back"
            else:
                assert not other.comes_before(part), f"{part} was handed out before {other}"
                assert not other.returning, f"{part} was handed out while {other} is on its way"

    def _within_limits(self, group: str, taken: list[Part]) -> None:
        """Assert that no limit was exceeded by a claim."""
        if not taken:
            return
        running = self.held(group)
        most = self.limits.concurrency
        assert most is None or len(running) <= most, f"{len(running)} run at once"
        self._started(group, None, len(taken), self.limits.rate)
        counted = Counter(part.job.limit for part in taken)
        for key, count in counted.items():
            if key is not None:
                of_key = [part for part in running if part.job.limit == key]
                most = self.concurrency_of(key)
                assert most is None or len(of_key) <= most, f"{of_key} run at once"
                self._started(group, key, count, self.rate_of(key))

    def _started(
        self, group: str, key: str | None, count: int, rate: tuple[float, int] | None
    ) -> None:
        if rate is None:
            return
        starts = self.starts.setdefault((group, key), [])
        starts += [self.now] * count
        per_second, burst = rate
        for first, began in enumerate(starts):
            most = burst + per_second * (self.now - began) + 1e-6
            assert len(starts) - first <= most, f"{starts[first:]} of {key} with {rate}"
        empty_until = self.key_limits[key].empty_until if key in self.key_limits else None
        if empty_until is not None:
            most = 1 + per_second * (self.now - empty_until) + 1e-6
            assert self.now >= empty_until, f"{key} started before {empty_until}"
            assert len(starts) <= most, f"{starts} of {key} since {empty_until}"

    def concurrency_of(self, key: str) -> int | None:
        """How many jobs of a limit key may run at once."""
        own = self.key_limits.get(key, KeyLimits()).concurrency
        return self.limits.key_concurrency if own is None else own

    def rate_of(self, key: str | None) -> tuple[float, int] | None:
        """The rate of a limit key; None: of the queue."""
        if key is None:
            return self.limits.rate
        return self.key_limits.get(key, KeyLimits()).rate or self.limits.key_rate

    def limited(self, limits: Limits) -> None:
        """The limits of the queue were set."""
        before = {key: self.rate_of(key) for _, key in self.starts}
        self.limits = limits
        self._forget_starts(before)

    def key_limited(self, key: str, limits: KeyLimits) -> None:
        """The limits of a key were set."""
        before = {key: self.rate_of(key)}
        self.key_limits[key] = limits
        self._forget_starts(before if limits.empty_until is None else {key: None})

    def _forget_starts(self, before: dict[str | None, tuple[float, int] | None]) -> None:
        for group, key in list(self.starts):
            if key in before and before[key] != self.rate_of(key):
                del self.starts[group, key]

    # -- settlements -----------------------------------------------------------------------------

    def ended(
        self,
        lease: Lease,
        batch: Batch,
        offset: int,
        outcome: str,
        *,
        after: float = 0,
        holds: bool = False,
    ) -> Part:
        """A settlement ended a job of a batch."""
        part = batch.open.pop(offset)
        key = part.job.ordering
        is_first = lease.is_first(part)
        if outcome in AGAIN and part.cancelled:
            outcome = "cancelled"
        elif key is not None and (outcome in AGAIN or holds):
            lease.stop_behind(part)
        self._leaves(lease, batch, part)
        was_suspect = part.suspect
        part.suspect = False
        if outcome in ENDS:
            part.place = outcome
            return part
        is_deferred = after > 0 and outcome != "released"
        part.place = DEFERRED if is_deferred else WAITING
        part.run_at = self.now + (after if is_deferred else 0)
        part.attempt += outcome in ("retried", "later", "lost")
        part.returning = is_first and key is not None
        part.suspect = outcome == "lost" or (outcome == "released" and was_suspect)
        return part

    def _leaves(self, lease: Lease, batch: Batch, part: Part) -> None:
        """A job is no longer with its lease."""
        part.lease = None
        part.settling = False
        lease.stopped.discard(part)
        if part.job.ordering is not None:
            lease.lines[part.job.ordering].remove(part)
        if not batch.open:
            lease.batches.remove(batch)

    def died(self, part: Part, dead_id: int, *, holds: bool) -> None:
        """A job became a dead letter."""
        part.place = "dead"
        holds = holds and part.job.ordering is not None
        self.letters.append(Letter(part, dead_id, holds))

    def lease_lost(self, lease: Lease, *, revoked: bool) -> list[Part]:
        """A lease was revoked, or closed by its worker. Return jobs that died of it."""
        dead = []
        for batch in sorted(lease.batches, key=lambda batch: batch.claim_no):
            for _, part in sorted(batch.open.items()):
                is_first = lease.is_first(part)
                part.place = WAITING
                part.lease = None
                if not is_first:
                    continue  # It cannot have been started.
                part.returning = part.job.ordering is not None
                if revoked and batch.started:
                    part.attempt += 1
                    if part.attempt >= part.job.max_attempts:
                        part.returning = part.suspect = False
                        dead.append(part)
                        continue
                    part.place = DEFERRED
                    part.run_at = self.now + 5 * 2 ** (part.attempt - 1)
                part.suspect = revoked or batch.alone
        self.leases.remove(lease)
        return dead

    # -- operators -------------------------------------------------------------------------------

    def redriven(self, letter: Letter, job_id: int) -> None:
        """A dead letter was redriven: as a new job of its group, in the place of the dead one
        while that holds its key.
        """
        dead = letter.part
        old = dead.job
        job = Job(
            job_id,
            old.kind,
            old.priority,
            old.ordering,
            old.limit,
            self.now + 30 * 86_400,
            old.max_attempts,
        )
        part = Part(job, dead.group, WAITING, self.now, has_place=letter.holds and dead.has_place)
        part.drawn, part.visible, part.number = dead.drawn, dead.visible, dead.number
        job.parts[dead.group] = part
        self.jobs[job_id] = job
        letter.redriven = part

    def holding(self) -> list[Letter]:
        """Dead letters that hold their key and can be skipped or redriven."""
        return [letter for letter in self.letters if letter.holds and letter.redriven is None]
