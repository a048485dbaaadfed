"""What a source yields: schedules, jobs, and what it refuses."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import field
from datetime import datetime
from typing import Any, Final, Protocol

from forebay._dataclass import dataclass

#: Characters of a job's name in its source, in the key of the job here.
_NAME_SHOWN: Final = 100

#: Characters of an owner, as forebay.apply_schedules() takes it.
_OWNER_MAX: Final = 200


class UnkeptError(Exception):
    """A schedule or a job cannot be kept exactly; the text says why."""


def instant_of(text: str) -> datetime:
    """Return a time of JSON from PostgreSQL.

    Raises:
        UnkeptError: Python cannot read it, such as infinity.
    """
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        raise UnkeptError(f"its time is {text}") from None


def digest_of(*parts: str | bytes | float | None) -> str:
    """Return a digest of what a job or a place is known by: 16 characters."""
    return hashlib.blake2b(repr(parts).encode(), digest_size=8).hexdigest()


def source_id_of(place: str, name: object, digest: str) -> str:
    """Return what a job of a source is known by: a name that may be chosen does not suffice."""
    return f"{place}:{str(name)[:_NAME_SHOWN]}:{digest}"


def owner_of(command: str, source: str | None, place: str) -> str:
    """Return the owner of the schedules of a source: its name, if it has one, else its place."""
    if source is not None:
        return f"import {command} {source}"
    owner = f"import {command} {place}"
    if owner.isprintable() and len(owner) <= _OWNER_MAX:
        return owner
    return f"import {command} {digest_of(place)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What a task is called with, in the words of its library.

    Attributes:
        task: the name of the task.
        positional: arguments by position.
        named: arguments by name.
        parameters: the names of the task's parameters, in order; None: unknown here.
        queue: None: that of the kind.
        priority: in our order, lower first; None: that of the kind.
        headers: of the job.
    """

    task: str
    positional: tuple[Any, ...] = ()
    named: Mapping[str, Any] = field(default_factory=dict)
    parameters: tuple[str, ...] | None = None
    queue: str | None = None
    priority: int | None = None
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundSchedule:
    """A schedule that runs its work again and again.

    Attributes:
        name: in the source.
        work: what it runs.
        cron: a cron expression; None: ``every`` is given.
        every: seconds between two instants; None: ``cron`` is given.
        tz: the time zone of ``cron``.
        starts_at: no instant before it; None: the import.
        expires_in: seconds after which a job that has not started is not started; None: never.
        catch_up: seconds; an instant that was missed longer ago is not caught up.
    """

    name: str
    work: Work
    cron: str | None = None
    every: float | None = None
    tz: str = "UTC"
    starts_at: datetime | None = None
    expires_in: float | None = None
    catch_up: float = 366 * 86_400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundJob:
    """A job that waits.

    Attributes:
        name: for people.
        source_id: the same at each reading, and of no other job of any source: an id that a
            person may choose, or a counter that may begin again, has a digest of what never
            changes of the job beside it.
        work: what it runs.
        run_at: the earliest start; None: now.
        expires_at: from then on it is not started; None: never.
        max_attempts: None: that of the kind.
        ordering_key: None: no order.
    """

    name: str
    source_id: str
    work: Work
    run_at: datetime | None = None
    expires_at: datetime | None = None
    max_attempts: int | None = None
    ordering_key: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """What is not written, by its name in the source, and why."""

    name: str
    reason: str


class Source(Protocol):
    """Where schedules and jobs are read.

    Attributes:
        label: the command and the place, without secrets; schedules are declared by it.
        farewell: how they are ended in the source, once they are here.
    """

    label: str
    farewell: str

    def read(self) -> Iterator[FoundSchedule | FoundJob | Refused]:
        """Yield all that the source has; it can be read again.

        Raises:
            ConfigError: the source cannot be read.
        """
