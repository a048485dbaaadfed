"""The state of a mirror: waiting and completed jobs, and alerts."""

from __future__ import annotations

from dataclasses import field
from datetime import datetime

from forebay._dataclass import dataclass
from forebay.errors import ConfigError
from forebay.model.alerts import Alert
from forebay.model.checks import PRIORITY_BULK
from forebay.model.doors import check_fields


@dataclass(frozen=True, slots=True, kw_only=True)
class Thresholds:
    """The thresholds of the alerts of a mirror.

    Attributes:
        completed_least: alert if fewer jobs are completed within ``completed_within``. Heartbeats
            count.
        completed_within: in seconds.
        waiting_most: alert if more jobs than this are due for ``waiting_for``.
        waiting_for: in seconds.
        unproved_for: alert if a failed job is not proved within these seconds after it was due.
        bulk_tags: jobs with these tags, or with one of them followed by a full stop, are excluded
            from alerts.
        bulk_priority: jobs with this priority or a higher number are excluded, too.
    """

    completed_least: int = 1
    completed_within: float = 600.0
    waiting_most: int = 10_000
    waiting_for: float = 600.0
    unproved_for: float = 3600.0
    bulk_tags: tuple[str, ...] = ("audit", "backfill")
    bulk_priority: int = PRIORITY_BULK

    def is_bulk(self, tag: str | None, priority: int) -> bool:
        """Whether alerts ignore jobs with this tag and priority, as ``forebay._is_bulk`` decides
        in the database.
        """
        return priority >= self.bulk_priority or any(
            tag == each or (tag is not None and tag.startswith(f"{each}."))
            for each in self.bulk_tags
        )

    def __post_init__(self) -> None:
        check_fields(self, refusal=ConfigError)
        for name in ("completed_least", "waiting_most", "waiting_for", "unproved_for"):
            if not getattr(self, name) >= 0:
                raise ConfigError(f"thresholds: {name}", f"is {getattr(self, name)}, below 0")
        if not self.completed_within > 0:
            raise ConfigError(
                "thresholds: completed_within", f"is {self.completed_within:g} s, not above 0"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingJobs:
    """The waiting jobs of one tag and priority.

    Attributes:
        is_bulk: whether they are excluded from alerts.
        due: number of due jobs, including those that were tried and postponed.
        later: number of jobs that are not due yet.
        tried: number of jobs that have failed at least once.
        oldest_due_at: when the oldest due job was due.
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
    """How often an outcome occurred, by tag and priority of the jobs.

    Attributes:
        priority: None for work without a job.
        lately: number within the period of the rates.
        total: number since the beginning.
    """

    outcome: str
    tag: str | None
    priority: int | None
    lately: int
    total: int


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenBreaker:
    """A process that makes no attempts because the last ones failed.

    ``place`` is ``pass`` or ``direct``.
    """

    who: str
    place: str
    open_until: datetime
    why: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditRecord:
    """The result of an audit; see ``forebay.mirror.Drift``.

    ``repaired`` is the number of jobs enqueued.
    """

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
        """Number of differences."""
        return self.missing + self.stale + self.orphaned + self.ahead


@dataclass(frozen=True, slots=True, kw_only=True)
class MirrorFacts:
    """The state of a mirror in the database.

    Only ``due_all``, ``waiting`` and the lists include jobs excluded from alerts.

    Attributes:
        at: time of the query, by the database's clock.
        due: jobs that are due and not proved.
        due_all: the same, including jobs excluded from alerts.
        waiting: all jobs that are not proved.
        claimed: number of them that workers have claimed, without those whose handlers run.
        running: number of them whose handlers run.
        tried: number of them that have failed at least once.
        oldest_due_at: when the oldest due job was due; None if there is none.
        above_since: since when more jobs are due than allowed; None if they are not.
        stuck: the oldest failed jobs, at most five.
        by: waiting jobs by tag and priority.
        counts: completed work by outcome, tag and priority.
        completed: jobs completed within the period of the rates.
        completed_at: when the last job was completed.
        expired: dead letters of expired jobs that were not redriven.
        dead: other dead letters.
        paused_at: when the queue was paused.
        breakers: the open breakers.
        samples: times and numbers of due jobs, oldest first.
        audits: the newest audits, newest first.
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
    """The status of a mirror.

    Attributes:
        name: name of the mirror.
        queue: queue of its jobs.
        thresholds: the thresholds of the alerts.
        alerts: the current alerts.
        facts: the data that the alerts are derived from.
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
