"""Schedules, their instants and their history."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Literal

from forebay._dataclass import dataclass
from forebay.errors import InvalidJob, shown
from forebay.model import checks
from forebay.model.options import KEPT_OPTION_NAMES

Overlap = Literal["allow", "skip", "queue", "cancel", "replace"]
Missed = Literal["skip", "latest", "all"]

OVERLAPS: Final = ("allow", "skip", "queue", "cancel", "replace")
MISSED: Final = ("skip", "latest", "all")

EVERY_SECONDS_MAX: Final = 366 * 86_400
JITTER_SECONDS_MAX: Final = 86_400
MISSED_MAX: Final = 10_000
#: The options of a schedule's jobs.
OPTIONS: Final = (*(name for name in KEPT_OPTION_NAMES if name != "ordering_key"), "expires_in")

_NAME_HEADER: Final = "forebay-schedule"
_FOR_HEADER: Final = "forebay-scheduled-for"
_OCCURRENCE_HEADER: Final = "forebay-occurrence"
_LATE_HEADER: Final = "forebay-late-by"


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """The definition of a schedule. ``Client.create_schedule`` and ``app.cron`` describe its parts.

    Attributes:
        name: the name of the schedule.
        kind: the kind of its jobs.
        cron: a cron expression; None: ``every`` is given.
        every: seconds between two instants, counted from ``starts_at``; None: ``cron`` is given.
        tz: the time zone of ``cron``.
        args: the arguments of its jobs.
        queue: the queue of its jobs; None: that of the kind.
        priority: of its jobs.
        overlap: what happens when the job before has not ended.
        missed: what happens to instants that no scheduler decided within a minute.
        jitter: seconds up to which a job starts later than its instant.
        catch_up: missed instants older than these seconds are not enqueued.
        missed_max: with ``missed="all"``, maximum number of jobs.
        starts_at: no instant before it; None: the creation.
        options: options of its jobs by name: tag, correlation_id, headers, max_attempts, limit_key,
            expires_in.
        pause_on_failure: a dead job pauses the schedule before its next instant.

    Raises:
        InvalidJob: a value has the wrong type or is out of range.
    """

    name: str
    kind: str
    cron: str | None = None
    every: float | timedelta | None = None
    tz: str = "UTC"
    args: Mapping[str, Any] = field(default_factory=dict)
    queue: str | None = None
    priority: int = checks.PRIORITY_DEFAULT
    overlap: Overlap = "skip"
    missed: Missed = "latest"
    jitter: float | timedelta = 0.0
    catch_up: float | timedelta = 86_400.0
    missed_max: int = 100
    starts_at: datetime | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    pause_on_failure: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.options, Mapping):
            raise InvalidJob("options", f"must be a mapping, not {shown(self.options)}")
        for name in ("name", "kind", "queue"):
            value = getattr(self, name)
            if value is not None or name != "queue":
                object.__setattr__(self, name, checks.checked_name(value, name))
        checks.checked_integer(
            self.priority, "priority", least=checks.PRIORITY_MIN, most=checks.PRIORITY_MAX
        )
        if (self.cron is None) == (self.every is None):
            raise InvalidJob("cron", "or every must be given, and only one of them")
        if self.every is not None:
            every = checks.checked_seconds(self.every, "every", most=EVERY_SECONDS_MAX)
            if every < 1 or every % 1:
                raise InvalidJob("every", f"is not a whole number of seconds: {every:g}")
            object.__setattr__(self, "every", every)
        for name, most in (("jitter", JITTER_SECONDS_MAX), ("catch_up", EVERY_SECONDS_MAX)):
            object.__setattr__(
                self, name, checks.checked_seconds(getattr(self, name), name, most=most)
            )
        for name, choices in (("overlap", OVERLAPS), ("missed", MISSED)):
            value = getattr(self, name)
            if value not in choices:
                raise InvalidJob(name, f"is {shown(value)}, not one of {', '.join(choices)}")
        checks.checked_integer(self.missed_max, "missed_max", least=1, most=MISSED_MAX)
        if self.starts_at is not None:
            checks.checked_instant(self.starts_at, "starts_at")
        for name in self.options:
            if name not in OPTIONS:
                raise InvalidJob(
                    f"option {shown(name)}",
                    "is unknown",
                    hint=f"Known options: {', '.join(OPTIONS)}.",
                )
        options = dict(self.options)
        if options.get("expires_in") is not None:
            options["expires_in"] = checks.checked_seconds(options["expires_in"], "expires_in")
        object.__setattr__(
            self, "options", {name: value for name, value in options.items() if value is not None}
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleStatus:
    """A schedule in the database.

    Attributes:
        name: see ``Schedule``, also for the attributes up to ``pause_on_failure``; times in
            seconds.
        starts_at: no instant before it; intervals count from it.
        declared_by: the application that declares it; None: it was made by hand.
        vanished_at: since then its application does not declare it any more; None: it does. It
            still runs.
        paused_at: None: it is not paused.
        pause_note: why it is paused; None: no note.
        problem: why schedulers cannot use it; None: they can.
        created_at: when it was created.
        revision: rises with each change, pause and resume.
        decided_to: all instants up to this one are decided.
        decisions: how many there were.
        last_for: the newest instant that was decided, also by hand; None: none was, or it is past
            the history.
        last_job: its job; None: it has none.
        last_status: see ``Occurrence``.
        server_time: the time of the database when it was read.
    """

    name: str
    kind: str
    args: dict[str, Any]
    queue: str | None
    priority: int
    options: dict[str, Any]
    cron: str | None
    every: float | None
    tz: str
    jitter: float
    overlap: Overlap
    missed: Missed
    catch_up: float
    missed_max: int
    pause_on_failure: bool
    starts_at: datetime
    declared_by: str | None
    vanished_at: datetime | None
    paused_at: datetime | None
    pause_note: str | None
    problem: str | None
    created_at: datetime
    revision: int
    decided_to: datetime
    decisions: int
    last_for: datetime | None
    last_job: int | None
    last_status: str | None
    server_time: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Occurrence:
    """The decision about an instant of a schedule.

    Attributes:
        scheduled_for: the instant.
        occurrence: its number among the decisions of the schedule, from 1.
        status: ``enqueued``; ``skipped``, because of an earlier job; ``missed``; ``manual``;
            ``backfilled``.
        instants: with ``missed``, this instant and missed ones before it; else 1.
        job_id: None: no job was enqueued.
        reason: why no job was enqueued; None: one was.
        decided_at: when it was decided.
    """

    scheduled_for: datetime
    occurrence: int
    status: Literal["enqueued", "skipped", "missed", "manual", "backfilled"]
    instants: int
    job_id: int | None
    reason: str | None
    decided_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedInstant:
    """An instant of a schedule.

    Attributes:
        scheduled_for: the instant.
        starts_at: the earliest start of its job: the instant and its jitter.
        status: what was decided, see ``Occurrence``; None: nothing, or it is past the history.
        job_id: its job; None: it has none.
    """

    scheduled_for: datetime
    starts_at: datetime
    status: str | None
    job_id: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleBackfill:
    """A backfill of a schedule, counted or done.

    Attributes:
        jobs: how many jobs it enqueues, or has enqueued.
        token: identifies them.
        is_done: whether they are enqueued.
    """

    jobs: int
    token: str
    is_done: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleDifference:
    """How a declared schedule differs, or differed, from the database.

    Attributes:
        name: the name of the schedule.
        action: ``create`` and ``change`` are done; ``kept``: changed by hand since it was declared
            so; ``conflict``: made by hand or declared by another application, and not touched;
            ``vanished``: no longer declared, it still runs.
        detail: more about a conflict; None else.
    """

    name: str
    action: Literal["create", "change", "kept", "conflict", "vanished"]
    detail: str | None

    @property
    def is_pending(self) -> bool:
        """Whether applying the declaration changes something.

        >>> ScheduleDifference(name="a", action="kept", detail=None).is_pending
        False
        """
        return self.action in ("create", "change")


@dataclass(frozen=True, slots=True, kw_only=True)
class Scheduled:
    """The instant of a schedule that a job is for, as ``ctx.scheduled``.

    Attributes:
        name: of the schedule.
        scheduled_for: the instant, in UTC.
        occurrence: its number among the decisions of the schedule, from 1.
        late_by: from the instant to the enqueue of the job, to the millisecond. A redriven job has
            that of the first one.
    """

    name: str
    scheduled_for: datetime
    occurrence: int
    late_by: timedelta

    @classmethod
    def of(cls, headers: Mapping[str, str]) -> Scheduled | None:
        """Return what the headers of a job tell; None: no schedule enqueued it.

        >>> headers = {
        ...     "forebay-schedule": "a",
        ...     "forebay-scheduled-for": "2026-01-01T09:00:00+00:00",
        ...     "forebay-occurrence": "3",
        ...     "forebay-late-by": "1.000",
        ... }
        >>> Scheduled.of(headers).late_by
        datetime.timedelta(seconds=1)
        """
        try:
            instant = datetime.fromisoformat(headers[_FOR_HEADER]).astimezone(UTC)
            return cls(
                name=headers[_NAME_HEADER],
                scheduled_for=instant,
                occurrence=int(headers[_OCCURRENCE_HEADER]),
                late_by=timedelta(seconds=float(headers[_LATE_HEADER])),
            )
        except (KeyError, ValueError, OverflowError):
            return None
