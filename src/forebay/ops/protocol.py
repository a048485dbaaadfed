"""The worker's side of the SQL protocol: one function for each ``forebay.*_v1``.

The header of each SQL function documents its guarantees, locks and errors.
"""

from __future__ import annotations

import json
from dataclasses import field
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import msgspec

from forebay._dataclass import dataclass
from forebay.ops.claimed import NO_RAW_KINDS, ClaimedJob, RawKinds, claimed_jobs
from forebay.ops.flows import ChildEnd, FlowEnd
from forebay.ops.operation import Operation, ResultRows, nothing, scalar
from forebay.ops.sendable import sendable_json
from forebay.sql import latest_version

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

CHANNEL = "forebay_wakeup"

OutcomeName = Literal[
    "retried", "lost", "snoozed", "unknown", "released", "cancelled", "dead", "done"
]
FlushStatus = Literal["settled", "repeated", "unknown_batch", "refused"]


@dataclass(frozen=True, slots=True)
class ReadyLane:
    """A lane with jobs that a group can claim.

    ``is_limited``: its queue has limits on starts, so a claim may return fewer jobs than wait.
    """

    group_id: int
    lane: int
    queue: str
    priority: int
    is_private: bool
    is_suspect: bool
    is_limited: bool = False


@dataclass(slots=True)
class Kept:
    """The result of a handler, kept for ``seconds``; or the reason why it cannot be kept.

    None: as long as ended jobs.
    """

    seconds: float | None
    value: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    problem: str | msgspec.UnsetType = msgspec.UNSET


@dataclass(slots=True)
class FollowUpJob:
    """The job that follows an end; see ``forebay.settle_v1``.

    Attributes:
        kind: its kind.
        returned: with the outcome done, and without ``Ended.kept``: the result of the handler.
    """

    kind: str
    queue: str | msgspec.UnsetType = msgspec.UNSET
    priority: int | msgspec.UnsetType = msgspec.UNSET
    delay: float | msgspec.UnsetType = msgspec.UNSET
    expires_in: float | msgspec.UnsetType = msgspec.UNSET
    max_attempts: int | msgspec.UnsetType = msgspec.UNSET
    tag: str | msgspec.UnsetType = msgspec.UNSET
    correlation_id: str | msgspec.UnsetType = msgspec.UNSET
    headers: dict[str, str] | msgspec.UnsetType = msgspec.UNSET
    ordering_key: str | msgspec.UnsetType = msgspec.UNSET
    limit_key: str | msgspec.UnsetType = msgspec.UNSET
    returned: Kept | msgspec.UnsetType = msgspec.UNSET


@dataclass(slots=True)
class SubjectEnd:
    """What the end of a run means for its subject; see ``forebay.settle_v1``.

    Attributes:
        then: again, complete or drop; unset for a run that was cancelled.
        after: seconds until it is due again; or ``at``, an instant, ``interval`` or ``every``.
        interval: an interval in the words of PostgreSQL.
        every: seconds of the grid whose next instant is meant.
        data: the state that the next run finds; unset: unchanged.
        args: arguments of the runs from now on; unset: unchanged.
    """

    then: Literal["again", "complete", "drop"] | msgspec.UnsetType = msgspec.UNSET
    after: float | msgspec.UnsetType = msgspec.UNSET
    at: str | msgspec.UnsetType = msgspec.UNSET
    interval: str | msgspec.UnsetType = msgspec.UNSET
    every: float | msgspec.UnsetType = msgspec.UNSET
    data: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    args: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


@dataclass(slots=True)
class Ended:
    """How one job of a batch ended, if not simply done.

    Attributes:
        offset: its place in the batch, from 1.
        outcome: see ``forebay.settle_v1``.
        after: seconds until it runs again; None or 0 means at once.
        reason: for a dead letter: exhausted, permanent or worker lost.
        error: type, message, traceback and max_attempts, kept in the job's history.
        kept: with the outcome done: the result of the handler.
        holds_key: with the outcome dead: later jobs of its ordering key wait until the dead letter
            is redriven or skipped.
        follow_up: with the outcome done or dead: the job that follows; None for none. Unset with
            the outcome dead: what the database knows of the kind.
        subject: with the outcome done or cancelled: what the run means for its subject.
        millis: how long its handler ran; unset for one that did not, or not to its end.
        key_works: for the breaker of its kind: whether the attempt shows that the limit key works,
            or has failed; unset if it says nothing, or is done.
        attempts: how many attempts count as used, this one included; unset: one more than before.
        of_step: the policy of a step has decided; the queue's maximum of attempts does not count.
        flow: with the outcome snoozed: what the flow waits for.
    """

    offset: int
    outcome: OutcomeName
    after: float | None = None
    reason: str | None = None
    error: dict[str, Any] | None = None
    kept: Kept | msgspec.UnsetType = msgspec.UNSET
    holds_key: bool | msgspec.UnsetType = msgspec.UNSET
    follow_up: FollowUpJob | msgspec.UnsetType | None = msgspec.UNSET
    subject: SubjectEnd | msgspec.UnsetType = msgspec.UNSET
    millis: int | msgspec.UnsetType = msgspec.UNSET
    key_works: bool | msgspec.UnsetType = msgspec.UNSET
    attempts: int | msgspec.UnsetType = msgspec.UNSET
    of_step: bool | msgspec.UnsetType = msgspec.UNSET
    flow: FlowEnd | msgspec.UnsetType = msgspec.UNSET


@dataclass(slots=True)
class Flush:
    """One settlement of a batch. ``done`` None means the whole batch; ``counters``: counters
    recorded with it; ``children``: those of its jobs that are done and children of a flow.
    """

    claim_no: int
    flush_no: int
    done: list[int] | None = None
    millis: list[int] | None = None
    ended: list[Ended] = field(default_factory=list)
    counters: list[dict[str, Any]] | msgspec.UnsetType = msgspec.UNSET
    children: list[ChildEnd] | msgspec.UnsetType = msgspec.UNSET


class BreakerAnswer(NamedTuple):
    """What the database says after a report of ended attempts.

    Attributes:
        failing: the queues in which a key has failed since its last success.
        opened: the queues and keys that were reported as failed, and whose breaker is open.
    """

    failing: frozenset[str]
    opened: frozenset[tuple[str, str]]


class SettledJob(NamedTuple):
    """A job that its handler's transaction settles as done, and how long the handler ran."""

    lease_id: int
    claim_no: int
    offset: int
    millis: int


@dataclass(frozen=True, slots=True)
class ProgressReport:
    """How far a running job is, 0 to 1, and a note for people."""

    job_id: int
    group_id: int
    done: float
    note: str


@dataclass(frozen=True, slots=True)
class HeartbeatAnswer:
    """The answer to a heartbeat.

    The number of all open leases is given only if no job runs, the concurrency if an operator set
    it.
    """

    open_leases: frozenset[int]
    cancelled_jobs: frozenset[int]
    leaderless: frozenset[int] = frozenset()
    lease_count: int | None = None
    server_time: datetime | None = None
    concurrency: int | None = None
    muted_causes: frozenset[str] = frozenset()
    #: Maximum attempts by queue, of those queues that have one.
    queue_attempts: Mapping[str, int] = field(default_factory=dict)
    #: The settings of the database that workers follow, of those that were set.
    settings: Mapping[str, Any] = field(default_factory=dict)
    #: Who requested the worker to stop; None: no operator.
    stop_by: str | None = None


def open_group(queue: str, name: str) -> Operation[int]:
    """Open a group of a queue; return its id."""
    return Operation(
        "select forebay.open_group(%(queue)s, %(name)s)", scalar, {"queue": queue, "name": name}
    )


def open_groups(queues: Sequence[str], name: str) -> Operation[list[int]]:
    """Open a group of the same name for each of some queues, in one transaction.

    Return their ids in the order of the queues.
    """
    return Operation(
        "select array(select forebay.open_group(u.queue, %(name)s)"
        " from unnest(%(queues)s::text[]) with ordinality u (queue, nr) order by u.nr)",
        scalar,
        {"queues": list(queues), "name": name},
    )


def record_kinds(
    worker: str,
    queues: Mapping[str, str],
    holding: Collection[str] = (),
    keys: Mapping[str, Mapping[str, Any]] | None = None,
    on_dead: Mapping[str, Mapping[str, Any]] | None = None,
) -> Operation[list[tuple[str, str, str]]]:
    """Return the call that records the queues of kinds, which arguments make their keys, and what
    follows their dead letters.

    It returns the kinds that had another one, with both queues.

    Args:
        worker: the name of the worker.
        queues: the queue of each kind.
        holding: the kinds whose dead letters hold their ordering key.
        keys: by kind, which arguments make keys; see ``DeclaredKeys.as_json``.
        on_dead: by kind, the follow-up of its dead letters; see ``FollowUp.as_json``.
    """
    return Operation(
        "select kind, queue, previous_queue from forebay.record_kinds_v1("
        "%(worker)s, %(kinds)s::text[], %(queues)s::text[], %(holding)s::text[], %(keys)s::jsonb,"
        " %(on_dead)s::jsonb)",
        lambda rows: [(str(kind), str(queue), str(before)) for kind, queue, before in rows],
        {
            "worker": worker,
            "kinds": list(queues),
            "queues": list(queues.values()),
            "holding": list(holding),
            "keys": msgspec.json.encode(keys or {}).decode(),
            "on_dead": msgspec.json.encode(on_dead or {}).decode(),
        },
    )


def unknown_kinds(kinds: Collection[str]) -> Operation[list[str]]:
    """Return those of some kinds that no worker has declared to the database."""
    return Operation(
        "select array(select u.kind from unnest(%(kinds)s::text[]) u (kind)"
        " where forebay.queue_of(u.kind) is null order by u.kind)",
        scalar,
        {"kinds": list(kinds)},
    )


def open_lease(
    worker: str,
    *,
    lease_seconds: float,
    suspect_seconds: float,
    details: Mapping[str, Any] | None = None,
) -> Operation[int]:
    """Open a lease; return its id. The call states the schema version of this code."""
    return Operation(
        (
            "select forebay.open_lease_v1(%(worker)s, %(lease)s, %(suspect)s, %(version)s, "
            "%(details)s::jsonb)"
        ),
        scalar,
        {
            "worker": worker,
            "lease": float(lease_seconds),
            "suspect": float(suspect_seconds),
            "version": latest_version(),
            "details": None if details is None else sendable_json(details).decode(),
        },
    )


def followed_settings() -> Operation[Mapping[str, Any]]:
    """Return the settings of the database that workers follow, of those that were set."""
    return Operation(
        "select forebay.followed_settings_v1()::text", lambda rows: dict(json.loads(scalar(rows)))
    )


def close_lease(lease_id: int, *, is_retired: bool = False) -> Operation[int | None]:
    """Close a lease; return how many jobs it still held, None if it was already closed.

    Args:
        lease_id: the lease.
        is_retired: the worker continues with another lease.
    """
    return Operation(
        "select forebay.close_lease_v1(%(lease)s, %(retired)s)",
        scalar,
        {"lease": lease_id, "retired": is_retired},
    )


def report_crash(host: str, pid: int, signal: int) -> Operation[int]:
    """Revoke the leases of a process that a signal ended; return how many.

    Args:
        host: its machine, as it reported it.
        pid: its process id there.
        signal: the number of the signal.
    """
    return Operation(
        "select forebay.report_crash_v1(%(host)s, %(pid)s, %(signal)s)",
        scalar,
        {"host": host, "pid": pid, "signal": signal},
    )


def heartbeat(
    lease_ids: Collection[int],
    job_ids: Collection[int],
    duties: Collection[int] = (),
    memory_kb: int | None = None,
) -> Operation[HeartbeatAnswer]:
    """Keep leases alive; also return which of some duties are leaderless."""
    return Operation(
        "select open_leases, cancelled_jobs, leaderless, lease_count, server_time, concurrency,"
        " muted_causes, queue_attempts::text, settings::text, stop_by"
        " from forebay.heartbeat_v1(%(leases)s, %(jobs)s, %(duties)s, %(memory_kb)s)",
        _heartbeat_answer,
        {
            "leases": list(lease_ids),
            "jobs": list(job_ids),
            "duties": list(duties),
            "memory_kb": memory_kb,
        },
    )


def lead(leader_id: int, duties: Collection[int], seconds: float) -> Operation[list[int]]:
    """Take leaderless duties and renew held ones; return the duties held now."""
    return Operation(
        "select forebay.lead_v1(%(leader_id)s, %(duties)s, %(seconds)s)",
        scalar,
        {"leader_id": leader_id, "duties": list(duties), "seconds": float(seconds)},
    )


def resign(leader_id: int, duties: Collection[int]) -> Operation[None]:
    """Resign from duties, and notify other workers."""
    return Operation(
        "select forebay.resign_v1(%(leader_id)s, %(duties)s)",
        nothing,
        {"leader_id": leader_id, "duties": list(duties)},
    )


def producers_notify() -> Operation[bool]:
    """Return whether enqueues notify sleeping workers, by the settings of this session.

    See ``forebay._may_notify()``.
    """
    return Operation(
        "select case when coalesce(s.wakeup, '') operator(pg_catalog.<>) ''"
        " then s.wakeup operator(pg_catalog.=) 'on'"
        " else current_setting('max_prepared_transactions') operator(pg_catalog.=) '0' end"
        " from current_setting('forebay.wakeup', true) s (wakeup)",
        scalar,
    )


def ready(
    group_ids: Sequence[int], *, sleep_millis: int | None = None
) -> Operation[list[ReadyLane]]:
    """Return the lanes of some groups with jobs to claim."""
    return Operation(
        "select group_id, lane, queue, priority, is_private, is_suspect, is_limited"
        " from forebay.ready_v1(%(groups)s, %(sleep)s)",
        lambda rows: [ReadyLane(*row) for row in rows],
        {"groups": list(group_ids), "sleep": sleep_millis},
    )


def poll(
    group_ids: Sequence[int], *, sleep_millis: int | None, leader_id: int, seconds: float
) -> Operation[tuple[list[ReadyLane], list[int] | None]]:
    """Do as ``ready``.

    If no lane is ready, also take and renew the leadership of the groups, and return those that are
    led now.
    """
    return Operation(
        "select group_id, lane, queue, priority, is_private, is_suspect, is_limited, held"
        " from forebay.poll_v1(%(groups)s, %(sleep)s, %(leader_id)s, %(seconds)s)",
        _polled,
        {
            "groups": list(group_ids),
            "sleep": sleep_millis,
            "leader_id": leader_id,
            "seconds": float(seconds),
        },
    )


def _polled(rows: ResultRows) -> tuple[list[ReadyLane], list[int] | None]:
    if rows and rows[0][1] is None:
        return [], list(rows[0][7])
    return [ReadyLane(*row[:7]) for row in rows], None


def claim(
    *,
    lease_id: int,
    claim_no: int,
    floor: int,
    group_id: int,
    lane: int,
    limit: int,
    queue: str = "",
    raw: RawKinds = NO_RAW_KINDS,
) -> Operation[list[ClaimedJob]]:
    """Claim jobs from one lane, which is of a queue. The arguments of raw kinds stay text."""
    return Operation(
        "select forebay.claim_v1("
        "%(lease)s, %(claim_no)s, %(floor)s, %(group)s, %(lane)s, %(limit)s)",
        lambda rows: claimed_jobs(rows[0][0], raw, queue=queue),
        {
            "lease": lease_id,
            "claim_no": claim_no,
            "floor": floor,
            "group": group_id,
            "lane": lane,
            "limit": limit,
        },
    )


def claim_lanes(
    *,
    lease_id: int,
    claim_no: int,
    floor: int,
    lanes: Sequence[ReadyLane],
    limits: Sequence[int],
    raw: RawKinds = NO_RAW_KINDS,
) -> Operation[dict[int, list[ClaimedJob] | None]]:
    """Claim jobs from several lanes; return those of each lane by its place in the list.

    Place N is claimed under the number ``claim_no + N``. None: another worker is claiming from the
    lane. A place that is missing has to be claimed by ``claim``. The arguments of raw kinds stay
    text.
    """
    return Operation(
        "select nr, jobs from forebay.claim_lanes_v1("
        "%(lease)s, %(claim_no)s, %(floor)s, %(groups)s, %(lanes)s, %(limits)s)",
        lambda rows: {
            nr - 1: None if text is None else claimed_jobs(text, raw, queue=lanes[nr - 1].queue)
            for nr, text in rows
        },
        {
            "lease": lease_id,
            "claim_no": claim_no,
            "floor": floor,
            "groups": [lane.group_id for lane in lanes],
            "lanes": [lane.lane for lane in lanes],
            "limits": list(limits),
        },
    )


def settle(lease_id: int, flushes: Sequence[Flush]) -> Operation[list[FlushStatus]]:
    """Settle jobs; return one status for each flush, in order."""
    return Operation(
        "select status from forebay.settle_v1(%(lease)s, %(flushes)s::jsonb)",
        lambda rows: [row[0] for row in rows],
        {"lease": lease_id, "flushes": sendable_json(flushes).decode()},
    )


def settle_job(job: SettledJob, *, clears: bool = False) -> Operation[None]:
    """Settle one job as done, as the last act of its handler's transaction.

    It fails if it settles nothing.

    Args:
        job: which one, and how long its handler ran.
        clears: whether it also clears the session, except for roles; the commit must follow in the
            same message.
    """
    # Numbers only: without parameters psycopg sends the text as it is.
    return Operation(
        (
            f"select forebay.settle_job_v1({job.lease_id:d}, {job.claim_no:d}, {job.offset:d}, "
            f"{job.millis:d}, {clears})"
        ),
        nothing,
    )


def start_suspect(lease_id: int, claim_no: int) -> Operation[None]:
    """Record that a suspect is about to start."""
    return Operation(
        "select forebay.start_suspect_v1(%(lease)s, %(claim_no)s)",
        nothing,
        {"lease": lease_id, "claim_no": claim_no},
    )


def missing_batches(lease_id: int, claim_nos: Collection[int]) -> Operation[list[int]]:
    """Return which of these batches the database does not know."""
    return Operation(
        "select forebay.missing_batches_v1(%(lease)s, %(claim_nos)s)",
        scalar,
        {"lease": lease_id, "claim_nos": list(claim_nos)},
    )


def record_progress(lease_id: int, items: Sequence[ProgressReport]) -> Operation[int]:
    """Record the progress of running jobs; return how many reports were recorded."""
    return Operation(
        "select forebay.record_progress_v1(%(lease)s, %(items)s::jsonb)",
        scalar,
        {"lease": lease_id, "items": sendable_json(items).decode()},
    )


def report_breakers(
    worker: str, queues: Sequence[str], ended: Sequence[Mapping[str, Any]]
) -> Operation[BreakerAnswer]:
    """Report how attempts ended, for breakers.

    Args:
        worker: the name of the process.
        queues: of which the answer tells.
        ended: in their order; see ``forebay.report_breakers_v1()``.
    """
    return Operation(
        "select queue, limit_key"
        " from forebay.report_breakers_v1(%(worker)s, %(queues)s, %(ended)s::jsonb)",
        lambda rows: BreakerAnswer(
            frozenset(queue for queue, key in rows if key is None),
            frozenset((queue, key) for queue, key in rows if key is not None),
        ),
        {
            "worker": worker,
            "queues": list(queues),
            "ended": sendable_json(ended).decode(),
        },
    )


def now() -> Operation[datetime]:
    """Return the time of the database."""
    return Operation("select clock_timestamp()", scalar)


def _heartbeat_answer(rows: ResultRows) -> HeartbeatAnswer:
    (row,) = rows
    (
        open_leases, cancelled_jobs, leaderless, lease_count, server_time, concurrency, muted, most,
        followed, stop_by,
    ) = row  # fmt: skip
    return HeartbeatAnswer(
        frozenset(open_leases),
        frozenset(cancelled_jobs),
        frozenset(leaderless),
        lease_count,
        server_time,
        concurrency,
        frozenset(muted or ()),
        {} if most is None else json.loads(most),
        {} if followed is None else json.loads(followed),
        stop_by,
    )
