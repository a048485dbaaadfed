"""A context to call a handler with, without a worker and without a database."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from forebay._dataclass import dataclass
from forebay.app import Handler
from forebay.errors import ConfigError, JobCancelled, SoftTimeout
from forebay.model import Job
from forebay.model.checks import PRIORITY_DEFAULT, hint_for
from forebay.model.context import TransactionContext
from forebay.model.doors import declaring_door
from forebay.model.job import CARRIED
from forebay.model.subjects import HEADER

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from forebay.app import Internals


@dataclass(frozen=True, slots=True)
class Reported:
    """One report of ``ctx.progress``."""

    done: float
    note: str


class RecordingContext(TransactionContext[Any]):
    """A context for a test: it records the progress that a handler reports, and can be cancelled.

    It fits handlers with a ``Context`` and with any ``TransactionContext``.

    Attributes:
        reports: the reports of ``progress``, oldest first, each with ``done`` and ``note``.
    """

    def __init__(
        self,
        *,
        job: Job,
        jobs: Sequence[Job] | None = None,
        conn: Any = None,
        deadline: float | None = None,
        resources: Mapping[str, Any] | None = None,
    ) -> None:
        self.reports: list[Reported] = []
        super().__init__(
            job=job,
            jobs=jobs,
            conn=conn,
            deadline=deadline,
            resources=resources,
            report=lambda done, note: self.reports.append(Reported(done, note)),
        )

    @declaring_door
    def cancel(self, reason: str | None = None) -> None:
        """Request that the handler stops, as when its job is cancelled."""
        self.request_stop(JobCancelled(self.job.job_id, reason=reason))

    @declaring_door
    def time_out(self, seconds: float = 1.0) -> None:
        """Request that the handler stops, as at its soft timeout."""
        self.request_stop(SoftTimeout(seconds))


@declaring_door
def context(
    of: Handler[..., ..., Any] | str = "test",
    *,
    conn: Any = None,
    resources: Mapping[str, Any] | None = None,
    deadline: float | None = None,
    subject: str = "test",
    state: Mapping[str, Any] | None = None,
    **facts: Any,
) -> RecordingContext:
    """Return a context to call a handler with: ``send_welcome(context(send_welcome), 42)``.

    Args:
        of: the handler, from which queue, priority, tag and the other options of the job come; or
            the name of a kind.
        conn: what ``ctx.conn`` is, for a handler with ``transaction=True``.
        resources: what ``ctx.resources`` has.
        deadline: time of the hard timeout, by ``time.monotonic()``.
        subject: with a handler of subjects, the name of the subject.
        state: with a handler of subjects, what ``ctx.state`` has.
        facts: fields of ``Job`` that matter to the test: ``attempt=3``, ``headers={"tenant":
            "acme"}``, ``args={...}``.

    Raises:
        ConfigError: ``Job`` has no such field.

    >>> ctx = context("price", attempt=2)
    >>> ctx.progress(0.5, "half"); ctx.attempt, ctx.reports
    (2, [Reported(done=0.5, note='half')])
    """
    return RecordingContext(
        job=job_for(of, subject=subject, state=state, **facts),
        conn=conn,
        resources=resources,
        deadline=deadline,
    )


def internals_of(handler: Handler[..., ..., Any]) -> Internals:
    """Return the internal state of a handler's app."""
    return handler._app._internals  # noqa: SLF001


def job_for(
    of: Handler[..., ..., Any] | str,
    *,
    subject: str = "test",
    state: Mapping[str, Any] | None = None,
    **facts: Any,
) -> Job:
    """Return a job of a handler, as its first attempt would see it, with some facts changed.

    For a handler of subjects the job is a run of a subject.
    """
    known: dict[str, Any] = {"queue": "default", "priority": PRIORITY_DEFAULT, "max_attempts": 20}
    kind = of
    if isinstance(of, Handler):
        kind, options = of.kind.name, of.options
        retry = internals_of(of).kinds.get(kind).retry
        known["max_attempts"] = options.max_attempts or retry.max_attempts
        names = ("queue", "priority", "expires_at", *CARRIED)
        known |= {name: value for name in names if (value := getattr(options, name)) is not None}
        known["headers"] = dict(options.headers or {})
        if of.kind.subject is not None:
            known["headers"][HEADER] = _subject_header(of.kind.subject.version, subject, state)
    always: dict[str, Any] = {
        "job_id": 1,
        "kind": kind,
        "args": {},
        "attempt": 1,
        "enqueued_at": datetime.now(UTC),
    }
    for name in facts:
        if name not in Job.__struct_fields__:
            raise ConfigError(
                name, "is not a field of Job", hint=hint_for(name, Job.__struct_fields__)
            )
    return Job(**{**always, **known, **facts})


def _subject_header(version: int, subject: str, state: Mapping[str, Any] | None) -> str:
    return json.dumps(
        {
            "subject": subject,
            "iterations": 0,
            "version": version,
            "state": None if state is None else dict(state),
            "due_at": datetime.now(UTC).isoformat(),
            "last_at": None,
        }
    )
