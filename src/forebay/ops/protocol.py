"""The worker's side of the SQL protocol: one function here for each ``forebay.*_v1``.

What each call promises, locks and raises stands in the header of its SQL function.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec

from forebay.ops.operation import Operation, ResultRows, nothing, scalar, scalar_or_none
from forebay.sql import latest_version

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

CHANNEL = "forebay_wakeup"

OutcomeName = Literal[
    "retried", "lost", "snoozed", "unknown", "released", "cancelled", "dead", "done"
]
FlushStatus = Literal["settled", "repeated", "unknown_batch", "refused"]


@dataclass(frozen=True, slots=True)
class ReadyLane:
    """A lane that has something to claim for a group.

    ``is_limited``: its queue has limits or limit keys, and a claim may give fewer jobs than are there.
    """

    group_id: int
    lane: int
    queue: str
    priority: int
    is_private: bool
    is_suspect: bool
    is_limited: bool = False


class ClaimedJob(msgspec.Struct, array_like=True):
    """One row that a claim handed out, as ``forebay._job_json()`` and ``forebay._keyed_json()`` write it.

    Attributes:
        enqueued_micros, expires_micros: microseconds since 1970; an expiry of None is 30 days after.
        args: the arguments as decoded JSON.
        attempt, pauses: None is none.
        offset: its place in the batch, from 1.
    """

    seq: int
    kind: str
    enqueued_micros: int
    args: Any
    job_id: int = 0
    expires_micros: int | None = None
    attempt: int | None = None
    max_attempts: int | None = None
    pauses: int | None = None
    tag: str | None = None
    correlation_id: str | None = None
    headers: dict[str, str] | None = None
    ordering_key: str | None = None
    offset: int = 0

    @property
    def attempts_used(self) -> int:
        """Attempts before this claim."""
        return self.attempt or 0

    @property
    def enqueued_at(self) -> datetime:
        """When its transaction enqueued it."""
        return _instant(self.enqueued_micros)

    @property
    def expires_at(self) -> datetime:
        """From when on it is not started any more."""
        if self.expires_micros is None:
            return _instant(self.enqueued_micros + _EXPIRES_AFTER_MICROS)
        return _instant(self.expires_micros)


_EXPIRES_AFTER_MICROS: Final = timedelta(days=30) // timedelta(microseconds=1)


# Jobs of one transaction have the same instant.
@lru_cache(maxsize=1000)
def _instant(micros: int) -> datetime:
    return datetime.fromtimestamp(micros / 1_000_000, UTC)


_CLAIMED: Final = msgspec.json.Decoder(list[ClaimedJob])


@dataclass(slots=True)
class Kept:
    """What a handler returned, to be kept for some seconds; or why it cannot be."""

    seconds: float
    value: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    problem: str | msgspec.UnsetType = msgspec.UNSET


@dataclass(slots=True)
class Ended:
    """How one job of a batch ended, other than just done.

    Attributes:
        offset: its place in the batch, from 1.
        outcome: see ``forebay.settle_v1``.
        after: seconds until it goes on; None or 0 at once.
        reason: of a dead letter: exhausted, permanent or worker lost.
        error: type, message, traceback and max_attempts, kept in the job's history.
        kept: with the outcome done: what the handler returned.
    """

    offset: int
    outcome: OutcomeName
    after: float | None = None
    reason: str | None = None
    error: dict[str, Any] | None = None
    kept: Kept | msgspec.UnsetType = msgspec.UNSET


@dataclass(slots=True)
class Flush:
    """One settlement of a batch. ``done`` None means the whole batch; ``tallies``: what is counted with it."""

    claim_no: int
    flush_no: int
    done: list[int] | None = None
    millis: list[int] | None = None
    ended: list[Ended] = field(default_factory=list)
    tallies: list[dict[str, Any]] | msgspec.UnsetType = msgspec.UNSET


@dataclass(frozen=True, slots=True)
class ProgressReport:
    """How far a running job is, 0 to 1, and a note for people."""

    job_id: int
    group_id: int
    done: float
    note: str


@dataclass(frozen=True, slots=True)
class HeartbeatAnswer:
    """What a heartbeat is answered with; how many leases are open in all only where no job runs."""

    open_leases: frozenset[int]
    cancelled_jobs: frozenset[int]
    leaderless: frozenset[int] = frozenset()
    lease_count: int | None = None


@dataclass(frozen=True, slots=True)
class RevokedLease:
    """A lease that was lost, and how many jobs were sent back."""

    lease_id: int
    worker: str
    jobs: int
    silent_seconds: float


def open_group(queue: str, name: str) -> Operation[int]:
    """Open a group of a queue; its id."""
    return Operation(
        "select forebay.open_group(%(queue)s, %(name)s)", scalar, {"queue": queue, "name": name}
    )


def open_lease(worker: str, *, lease_seconds: float, suspect_seconds: float) -> Operation[int]:
    """Open a lease, and say for which schema this code was made; its id."""
    return Operation(
        "select forebay.open_lease_v1(%(worker)s, %(lease)s, %(suspect)s, %(version)s)",
        scalar,
        {
            "worker": worker,
            "lease": float(lease_seconds),
            "suspect": float(suspect_seconds),
            "version": latest_version(),
        },
    )


def close_lease(lease_id: int) -> Operation[int | None]:
    """Close a lease; how many jobs it still held, None when it was closed already."""
    return Operation("select forebay.close_lease_v1(%(lease)s)", scalar, {"lease": lease_id})


def beat(
    lease_ids: Collection[int], job_ids: Collection[int], duties: Collection[int] = ()
) -> Operation[HeartbeatAnswer]:
    """Keep leases alive; which of some duties are leaderless."""
    return Operation(
        "select open_leases, cancelled_jobs, leaderless, lease_count"
        " from forebay.heartbeat_v1(%(leases)s, %(jobs)s, %(duties)s)",
        _heartbeat,
        {"leases": list(lease_ids), "jobs": list(job_ids), "duties": list(duties)},
    )


def lead(leader_id: int, duties: Collection[int], seconds: float) -> Operation[list[int]]:
    """Take leaderless duties and renew held ones; which are held."""
    return Operation(
        "select forebay.lead_v1(%(leader_id)s, %(duties)s, %(seconds)s)",
        scalar,
        {"leader_id": leader_id, "duties": list(duties), "seconds": float(seconds)},
    )


def resign(leader_id: int, duties: Collection[int]) -> Operation[None]:
    """Leave duties, and tell those who listen."""
    return Operation(
        "select forebay.resign_v1(%(leader_id)s, %(duties)s)",
        nothing,
        {"leader_id": leader_id, "duties": list(duties)},
    )


def ready(
    group_ids: Sequence[int], *, sleep_millis: int | None = None
) -> Operation[list[ReadyLane]]:
    """The lanes of some groups that have something to claim."""
    return Operation(
        "select group_id, lane, queue, priority, is_private, is_suspect, is_limited"
        " from forebay.ready_v1(%(groups)s, %(sleep)s)",
        lambda rows: [ReadyLane(*row) for row in rows],
        {"groups": list(group_ids), "sleep": sleep_millis},
    )


def claim(
    *, lease_id: int, claim_no: int, floor: int, group_id: int, lane: int, limit: int
) -> Operation[list[ClaimedJob]]:
    """Take jobs of one lane."""
    return Operation(
        "select forebay.claim_v1("
        "%(lease)s, %(claim_no)s, %(floor)s, %(group)s, %(lane)s, %(limit)s)",
        lambda rows: claimed_jobs(rows[0][0]),
        {
            "lease": lease_id,
            "claim_no": claim_no,
            "floor": floor,
            "group": group_id,
            "lane": lane,
            "limit": limit,
        },
    )


def claimed_jobs(text: str | None) -> list[ClaimedJob]:
    """Decode what a claim returned: a JSON array for each job, without brackets around them all."""
    if text is None:
        return []
    try:
        jobs = _CLAIMED.decode(f"[{text}]")
    except msgspec.ValidationError:
        # A number beyond the range of floats; the standard decoder makes it infinite.
        jobs = msgspec.convert(json.loads(f"[{text}]"), list[ClaimedJob])
    for offset, job in enumerate(jobs, 1):
        job.offset = offset
        job.job_id = job.job_id or job.seq
    return jobs


def settle(lease_id: int, flushes: Sequence[Flush]) -> Operation[list[FlushStatus]]:
    """Settle jobs; one status for each flush, in order."""
    return Operation(
        "select status from forebay.settle_v1(%(lease)s, %(flushes)s::jsonb)",
        lambda rows: [row[0] for row in rows],
        {"lease": lease_id, "flushes": msgspec.json.encode(flushes).decode()},
    )


def start_suspect(lease_id: int, claim_no: int) -> Operation[None]:
    """Record that a suspect is about to start."""
    return Operation(
        "select forebay.start_suspect_v1(%(lease)s, %(claim_no)s)",
        nothing,
        {"lease": lease_id, "claim_no": claim_no},
    )


def missing_batches(lease_id: int, claim_nos: Collection[int]) -> Operation[list[int]]:
    """Which of these batches the database does not know."""
    return Operation(
        "select forebay.missing_batches_v1(%(lease)s, %(claim_nos)s)",
        scalar,
        {"lease": lease_id, "claim_nos": list(claim_nos)},
    )


def revoke_lost() -> Operation[RevokedLease | None]:
    """Revoke at most one lost lease."""
    return Operation(
        "select lease_id, worker, jobs, silent_seconds from forebay.revoke_lost_v1()",
        lambda rows: RevokedLease(*rows[0]) if rows else None,
    )


def promote(limit: int = 5000) -> Operation[int]:
    """Append due jobs to the log; how many."""
    return Operation("select forebay.promote_v1(%(limit)s)", scalar, {"limit": limit})


def extend() -> Operation[int]:
    """Make segments ahead; how many."""
    return Operation("select forebay.extend_v1()", scalar)


def seal() -> Operation[int]:
    """Seal full segments; how many."""
    return Operation("select forebay.seal_v1()", scalar)


def sweep(since: datetime | None) -> Operation[int]:
    """Expire jobs that nobody claims; how many."""
    return Operation("select forebay.sweep_v1(%(since)s)", scalar, {"since": since})


def retain() -> Operation[int | None]:
    """Empty one segment that may go; its number, or None."""
    return Operation("select forebay.retain_v1()", scalar_or_none)


def summarize() -> Operation[int]:
    """Bring the block index on numbers up to date; how many page ranges were added."""
    return Operation("select forebay.summarize_v1()", scalar)


def count() -> Operation[list[tuple[str, str, int]]]:
    """Count what waits; the queues, groups and numbers where a million or more do."""
    return Operation(
        "select queue, group_name, waiting from forebay.count_v1()",
        lambda rows: [(str(queue), str(group), int(waiting)) for queue, group, waiting in rows],
    )


def trim() -> Operation[int]:
    """Delete what lies behind the cursors; how many rows."""
    return Operation("select forebay.trim_v1()", scalar)


def record_progress(lease_id: int, items: Sequence[ProgressReport]) -> Operation[int]:
    """Note how far some running jobs are; how many were noted."""
    return Operation(
        "select forebay.record_progress_v1(%(lease)s, %(items)s::jsonb)",
        scalar,
        {"lease": lease_id, "items": msgspec.json.encode(items).decode()},
    )


def now() -> Operation[datetime]:
    """The database's clock."""
    return Operation("select clock_timestamp()", scalar)


def _heartbeat(rows: ResultRows) -> HeartbeatAnswer:
    ((open_leases, cancelled_jobs, leaderless, lease_count),) = rows
    return HeartbeatAnswer(
        frozenset(open_leases), frozenset(cancelled_jobs), frozenset(leaderless), lease_count
    )
