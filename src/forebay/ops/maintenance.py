"""Operations of maintenance, which the leader of maintenance calls: each is one step of a duty.

The header of each SQL function documents its parameters, errors and locks.
"""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from forebay._dataclass import dataclass
from forebay.ops.operation import Operation, ResultRows, nothing, number, scalar

if TYPE_CHECKING:
    from collections.abc import Collection


#: Text of the notification that a job was added that is due soon.
DUE: Final = "@due"


@dataclass(frozen=True, slots=True)
class RevokedLease:
    """A revoked lease, and how many jobs returned to the queue."""

    lease_id: int
    worker: str
    jobs: int
    silent_seconds: float


def revoke_lost(observed_seconds: float, clock: datetime) -> Operation[RevokedLease | None]:
    """Revoke at most one lost lease.

    Args:
        observed_seconds: for how long the caller has seen the server's clock run evenly.
        clock: the time of the server, read just before.
    """
    return Operation(
        "select lease_id, worker, jobs, silent_seconds"
        " from forebay.revoke_lost_v1(%(observed)s, %(clock)s)",
        lambda rows: RevokedLease(*rows[0]) if rows else None,
        {"observed": observed_seconds, "clock": clock},
    )


def promote(limit: int = 5000) -> Operation[int]:
    """Append due jobs to the log; return how many."""
    return Operation("select forebay.promote_v1(%(limit)s)", scalar, {"limit": limit})


@dataclass(frozen=True, slots=True)
class Maintained:
    """The answer to ``maintain``.

    Attributes:
        promoted: how many jobs became claimable.
        held: the duties that the caller leads now.
        server_time: the time of the server.
        sleep_millis: for how long nothing is due.
        has_lost: a lease may have to be revoked.
        has_full: a segment has to be sealed.
        activity: grows when jobs are added, taken, settled or moved, at most ten seconds later.
    """

    promoted: int
    held: list[int]
    server_time: datetime
    sleep_millis: int
    has_lost: bool
    has_full: bool
    activity: int


def maintain(
    limit: int,
    *,
    leader_id: int,
    duties: Collection[int],
    seconds: float,
    observed_seconds: float | None,
    sleep_millis: int | None,
) -> Operation[Maintained]:
    """Append due jobs to the log, keep the caller's duties, and return what else is due.

    Args:
        limit: most jobs that are promoted.
        leader_id: the id under which the caller leads.
        duties: which duties.
        seconds: how long the duties are kept unless renewed.
        observed_seconds: for how long the caller has seen the server's clock run evenly; None: not
            at all.
        sleep_millis: for how long the caller sleeps if nothing is due earlier; None: notifications
            do not reach it.
    """
    return Operation(
        "select promoted, held, server_time, sleep_millis, has_lost, has_full, activity "
        "from forebay.maintain_v1("
        "%(limit)s, %(leader_id)s, %(duties)s, %(seconds)s, %(observed)s, %(sleep)s)",
        lambda rows: Maintained(*rows[0]),
        {
            "limit": limit,
            "leader_id": leader_id,
            "duties": list(duties),
            "seconds": float(seconds),
            "observed": observed_seconds,
            "sleep": sleep_millis,
        },
    )


def extend(most: int = 64) -> Operation[int]:
    """Create at most ``most`` segments in advance; return how many."""
    return Operation("select forebay.extend_v1(%(most)s)", scalar, {"most": most})


def seal() -> Operation[int]:
    """Seal full segments; return how many."""
    return Operation("select forebay.seal_v1()", scalar)


def sweep(
    since: datetime | None, after: str | None, most: int, lanes: int
) -> Operation[tuple[int, str | None]]:
    """Expire jobs that no worker claims.

    Return how many, and where to continue, None at the end of the pass.
    """
    return Operation(
        "select expired, next from forebay.sweep_v1(%(since)s, %(after)s, %(most)s, %(lanes)s)",
        _step,
        {"since": since, "after": after, "most": most, "lanes": lanes},
    )


def retain(after: int | None) -> Operation[tuple[int | None, int | None]]:
    """Empty one segment past its retention; return its number, and where to continue."""
    return Operation(
        "select emptied, next from forebay.retain_v1(%(after)s)", _step, {"after": after}
    )


def drop_segments() -> Operation[int]:
    """Drop the table of a segment that was emptied a while ago; return how many were dropped."""
    return Operation("select forebay.drop_segments_v1()", scalar)


def forget() -> Operation[int]:
    """Do one step of forgetting lanes that are over.

    Return the number of lanes of that step, 0 if nothing is left to do.
    """
    return Operation("select forebay.forget_v1()", scalar)


def summarize(after: int | None) -> Operation[tuple[int, int | None]]:
    """Update the block range index of one segment.

    Return how many page ranges were added, and where to continue.
    """
    return Operation(
        "select added, next from forebay.summarize_v1(%(after)s)", _step, {"after": after}
    )


def archive(most: int) -> Operation[int]:
    """Summarize blocks of the log for searches; return how many."""
    return Operation("select forebay.archive_v1(%(most)s::integer)", number, {"most": most})


def renew_counters(least: int = 500, queues: list[str] | None = None) -> Operation[int]:
    """Renew the counts of waiting jobs that have much to visit; return how many were renewed.

    Args:
        least: jobs that a count has to visit.
        queues: only these; None: all.
    """
    return Operation(
        "select forebay.renew_counters_v1(%(least)s, %(queues)s::text[])",
        scalar,
        {"least": least, "queues": queues},
    )


def fold() -> Operation[int]:
    """Fold what was appended into the counters; return how many folds were appended."""
    return Operation("select forebay.fold_v1()", scalar)


def trim(part: str, after: str | None, most: int) -> Operation[tuple[int, str | None]]:
    """Delete rows of one kind that are no longer needed; return how many, and where to continue."""
    return Operation(
        "select rows, next from forebay.trim_v1(%(part)s, %(after)s, %(most)s)",
        _step,
        {"part": part, "after": after, "most": most},
    )


def record_duty(name: str, seconds: float | None, error: str | None) -> Operation[None]:
    """Record for how long a duty of maintenance fails or is behind.

    Without seconds the call records that it is well.
    """
    return Operation(
        "select forebay.record_duty_v1(%(name)s, %(seconds)s, %(error)s)",
        nothing,
        {"name": name, "seconds": seconds, "error": error},
    )


def _step(rows: ResultRows) -> Any:
    ((done, after),) = rows
    return done, after
