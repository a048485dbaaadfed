"""What is known of a mirror: what waits, what was done, and when that is an alert."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime

from forebay.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class Thresholds:
    """When the state of a mirror is an alert.

    Attributes:
        completed_least: fewer completed jobs than this within ``completed_within`` are too few. Heartbeats count.
        completed_within: in seconds.
        waiting_most: more due jobs than this, for ``waiting_for``, are too many.
        waiting_for: in seconds.
        unproved_for: a job that has failed and is not proved so many seconds after it was due may never be.
        bulk_tags: jobs with these tags, or tags that go on with a full stop behind one, are left out of all this.
        bulk_priority: as are jobs with this priority or a higher number.
    """

    completed_least: int = 1
    completed_within: float = 600.0
    waiting_most: int = 10_000
    waiting_for: float = 600.0
    unproved_for: float = 3600.0
    bulk_tags: tuple[str, ...] = ("audit", "backfill")
    bulk_priority: int = 1000

    def __post_init__(self) -> None:
        for name in ("completed_least", "waiting_most", "waiting_for", "unproved_for"):
            if not getattr(self, name) >= 0:
                raise ConfigError(f"thresholds: {name}", f"is {getattr(self, name)}, below 0")
        if not self.completed_within > 0:
            raise ConfigError(
                "thresholds: completed_within", f"is {self.completed_within:g} s, not above 0"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Alert:
    """Something is wrong with a mirror.

    Attributes:
        code: ``A1`` too few jobs are completed, ``A2`` too many wait, ``A3`` some can never succeed.
        problem: in words.
        hint: what to do, or where to look.
        since: since when, where that is known.
    """

    code: str
    problem: str
    hint: str
    since: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingJobs:
    """The waiting jobs of one tag and priority.

    Attributes:
        is_bulk: they are left out of alerts.
        due: how many are due; also those that were tried and are postponed.
        later: how many are in their grace, or are to be done later.
        tried: how many of all have failed at least once.
        oldest_due_at: since when the oldest of the due ones is.
    """

    tag: str | None
    priority: int
    is_bulk: bool
    due: int
    later: int
    tried: int
    oldest_due_at: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class StuckJob:
    """A job that has failed and is not proved yet.

    Attributes:
        attempts: how many have failed.
    """

    job_id: int
    tag: str | None
    attempts: int
    due_at: datetime
    error: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class OutcomeCount:
    """How often something happened, by the tag and the priority of the jobs it was done for.

    Attributes:
        priority: None for what is done for no job.
        lately: within the time that rates are told of.
        total: ever since.
    """

    outcome: str
    tag: str | None
    priority: int | None
    lately: int
    total: int


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenBreaker:
    """A process that does not try, since the last tries failed. ``place`` is ``pass`` or ``direct``."""

    who: str
    place: str
    open_until: datetime
    why: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditRecord:
    """What an audit found; see ``forebay.mirror.Drift``. ``repaired`` jobs were enqueued for it."""

    audit_id: int
    mirror: str
    ended_at: datetime
    seconds: float
    compared: str
    items: int
    copies: int
    rows: int
    ranges: int
    differed: int
    suspects: int
    missing: int
    stale: int
    orphaned: int
    ahead: int
    repaired: int

    @property
    def total(self) -> int:
        """How many items and copies were wrong."""
        return self.missing + self.stale + self.orphaned + self.ahead


@dataclass(frozen=True, slots=True, kw_only=True)
class MirrorFacts:
    """What the database knows of a mirror. Jobs that alerts leave out are in the numbers that say so only.

    Attributes:
        at: when it was asked, by the database's clock.
        due: jobs that are due and not proved.
        due_all: the same, with those that alerts leave out.
        waiting: all jobs that are not proved.
        claimed: how many of them workers have, with a handler that is not known to run.
        running: how many of them are being worked on.
        tried: how many of them have failed at least once.
        oldest_due_at: since when the oldest of the due ones is; None when there is none.
        above_since: since when the job that is one too many is due; None when there is none.
        stuck: the oldest of those that have failed, at most five.
        by: what waits, by tag and priority.
        counts: what was done, by outcome, tag and priority.
        completed: jobs completed lately.
        completed_at: when a job was completed last.
        expired: dead letters of jobs that were not proved in time, and not redriven.
        dead: other dead letters.
        paused_at: since when the queue is paused.
        breakers: those that are open.
        samples: when and how many jobs were due, oldest first.
        audits: the newest ones, newest first.
    """

    at: datetime
    due: int
    due_all: int
    waiting: int
    claimed: int
    running: int
    tried: int
    oldest_due_at: datetime | None
    above_since: datetime | None
    stuck: list[StuckJob] = field(default_factory=list)
    by: list[WaitingJobs] = field(default_factory=list)
    counts: list[OutcomeCount] = field(default_factory=list)
    completed: int = 0
    completed_at: datetime | None = None
    expired: int = 0
    dead: int = 0
    paused_at: datetime | None = None
    breakers: list[OpenBreaker] = field(default_factory=list)
    samples: list[tuple[datetime, int]] = field(default_factory=list)
    audits: list[AuditRecord] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class MirrorStatus:
    """How a mirror is.

    Attributes:
        name: of the mirror.
        queue: of its jobs.
        thresholds: what alerts were measured by.
        alerts: what is wrong; empty when all is well.
        facts: what that was found from.
    """

    name: str
    queue: str
    thresholds: Thresholds
    alerts: list[Alert]
    facts: MirrorFacts

    @property
    def is_fine(self) -> bool:
        """Whether there is no alert."""
        return not self.alerts
