"""Subjects: standing jobs that come due again, as handlers, clients and operators see them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final, Literal

from forebay._dataclass import dataclass
from forebay.errors import InvalidJob, shown
from forebay.model import checks

SUBJECT_BYTES_MAX: Final = 512
VERSION_MAX: Final = 9999

SubjectState = Literal["scheduled", "ready", "running", "completed", "dead", "killed"]
SUBJECT_STATES: Final = ("scheduled", "ready", "running", "completed", "dead", "killed")

#: The header of a run that tells its subject.
HEADER: Final = "forebay-subject"


def checked_subject(value: object, field: str = "subject") -> str:
    """Return the name of a subject: 1 to 512 bytes of UTF-8 without control characters.

    Raises:
        InvalidJob: it is not one.
    """
    name = checks.checked_text(value, field, characters_max=SUBJECT_BYTES_MAX)
    size = len(name.encode())
    if size > SUBJECT_BYTES_MAX:
        raise InvalidJob(field, f"has {size} bytes, the limit is {SUBJECT_BYTES_MAX}")
    return name


def kind_of_version(kind: str, version: int) -> str:
    """Return the kind of the runs of a subject.

    >>> kind_of_version("crawl", 0), kind_of_version("crawl", 2)
    ('crawl', 'crawl.v2')
    """
    return kind if version == 0 else f"{kind}.v{version}"


@dataclass(slots=True, kw_only=True)
class SubjectRun:
    """The subject whose run a handler is, as ``ctx.subject``.

    Attributes:
        name: of the subject.
        iterations: how many runs have ended well before this one.
        version: of its arguments.
        due_at: when this run was due.
        last_at: when the last run ended well; None: none did.
        state: what handlers keep between runs. The handler may change it in place. The change is
            saved when the run ends well or returns ``Cancel``, and not after a failed attempt, a
            ``Snooze`` or ``Dead``.
    """

    name: str
    iterations: int
    version: int
    due_at: datetime
    last_at: datetime | None
    state: dict[str, Any]

    @classmethod
    def of(cls, headers: Mapping[str, str]) -> SubjectRun | None:
        """Return what the headers of a job tell; None: it is not a run of a subject.

        >>> SubjectRun.of({}) is None
        True
        """
        try:
            found = json.loads(headers[HEADER])
            last_at = found["last_at"]
            return cls(
                name=str(found["subject"]),
                iterations=int(found["iterations"]),
                version=int(found["version"]),
                due_at=_instant(found["due_at"]),
                last_at=None if last_at is None else _instant(last_at),
                state=dict(found["state"] or {}),
            )
        except (KeyError, ValueError, TypeError, RecursionError):
            return None


@dataclass(frozen=True, slots=True, kw_only=True)
class SubjectResult:
    """What a push or an upsert did with a subject.

    Attributes:
        subject: its name.
        result: ``created``, ``updated``, ``unchanged``, or ``skipped``.
        reason: why it was skipped: it ``exists``, is ``running``, ``completed``, ``dead`` or
            ``killed``. None: it was not.
    """

    subject: str
    result: Literal["created", "updated", "unchanged", "skipped"]
    reason: str | None = None

    def __str__(self) -> str:
        return self.result if self.reason is None else f"{self.result}: {self.reason}"


@dataclass(frozen=True, slots=True, kw_only=True)
class SubjectStatus:
    """A subject in the database.

    Attributes:
        queue: of its runs.
        subject: its name, unique in the queue.
        kind: of the subject; its runs of version 2 have the kind ``KIND.v2``.
        state: ``scheduled``; ``ready``, its run waits, also for a retry; ``running``;
            ``completed``; ``dead``; ``killed``.
        due_at: when it is due, or its run was; None: it is not due again.
        last_at: when the last run ended well; None: none did.
        iterations: how many runs ended well.
        attempts: failed attempts of the present or last run.
        version: of its arguments.
        priority: of its runs.
        args: arguments of its runs.
        data: the state that handlers keep between runs; None: none.
        options: of its runs: tag, correlation_id, headers, max_attempts, limit_key, ordering_key,
            expires_at.
        job_id: its present or last run; None: none.
        reason: why it is dead or killed.
        created_at: when it was created.
        changed_at: when this state was recorded.
    """

    queue: str
    subject: str
    kind: str
    state: SubjectState
    due_at: datetime | None
    last_at: datetime | None
    iterations: int
    attempts: int
    version: int
    priority: int
    args: dict[str, Any] | None
    data: dict[str, Any] | None
    options: dict[str, Any] | None
    job_id: int | None
    reason: str | None
    created_at: datetime
    changed_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class SubjectEvent:
    """Something that happened to a subject.

    Attributes:
        at: when.
        what: ``scheduled`` (pushed, upserted or revived), ``issued``, ``again``, ``completed``,
            ``dead``, ``killed``, ``dropped``.
        due_at: when it was due after that; None: it was not.
        iterations: how many runs had ended well.
        job_id: the run; None: none.
        reason: for people; None: none.
        data: the state that handlers keep between runs.
    """

    at: datetime
    what: str
    due_at: datetime | None
    iterations: int
    job_id: int | None
    reason: str | None
    data: dict[str, Any] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceEntry:
    """Something that happened under a name, in any queue.

    Attributes:
        at: when.
        queue: where.
        subject: the subject; None: a job that is not a run of one.
        job_id: the run or job; None: none.
        kind: its kind.
        what: as of ``SubjectEvent``, or the outcome of a failed attempt.
        attempt: the number of the failed attempt; None: nothing failed.
        error: type and message, or a reason.
    """

    at: datetime
    queue: str
    subject: str | None
    job_id: int | None
    kind: str | None
    what: str
    attempt: int | None
    error: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SubjectCount:
    """How many subjects of a queue are in a state.

    Attributes:
        queue: the queue.
        state: ``scheduled``, ``ready``, ``running``, ``completed``, ``dead`` or ``killed``.
        subjects: the number.
    """

    queue: str
    state: str
    subjects: int


@dataclass(frozen=True, slots=True, kw_only=True)
class UpgradeProgress:
    """How far an upgrade of subjects is.

    Attributes:
        upgraded: subjects that this call has given the new version.
        running: subjects of the old version whose run had not ended, or that another transaction
            had, in this pass.
        passes: how many times it went through the queue, counting this one.
        is_done: whether no subject of the old version was left at the end.
    """

    upgraded: int
    running: int
    passes: int
    is_done: bool


def checked_state(value: str | None) -> str | None:
    """Return the name of a state; None stays None.

    Raises:
        InvalidJob: there is no such state.
    """
    if value is not None and value not in SUBJECT_STATES:
        raise InvalidJob("state", f"is {shown(value)}, not one of {', '.join(SUBJECT_STATES)}")
    return value


def checked_version(value: object, field: str = "version") -> int:
    """Return the version of a subject's arguments, 0 to 9999.

    Raises:
        InvalidJob: it is not one.
    """
    return checks.checked_integer(value, field, least=0, most=VERSION_MAX)


def _instant(text: str) -> datetime:
    return datetime.fromisoformat(text).astimezone(UTC)
