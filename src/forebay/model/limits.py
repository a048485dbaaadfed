"""The limits of a queue: maximum numbers of waiting jobs, starts per second and running jobs."""

from __future__ import annotations

from datetime import datetime
from enum import Enum
from typing import Final

from forebay._dataclass import dataclass


class Unset(Enum):
    """The type of ``UNSET``, which leaves a limit unchanged; None removes it."""

    UNSET = "unset"

    def __repr__(self) -> str:
        return "UNSET"


UNSET: Final = Unset.UNSET


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Maximum numbers of waiting jobs, starts per second and running jobs of a queue.

    None means that there is no limit.

    Attributes:
        max_waiting: waiting jobs: ready, scheduled or retrying ones; further jobs are refused.
        max_waiting_group: the consumer group whose waiting jobs count; None for ``default``.
        rate: starts per second; may be below 1.
        burst: starts at once after a pause; None for those of one second, at least 1.
        concurrency: running jobs.
        key_rate: as ``rate``, for the jobs of each limit key.
        key_burst: as ``burst``, for the jobs of each limit key.
        key_concurrency: as ``concurrency``, for the jobs of each limit key.
    """

    max_waiting: int | None = None
    rate: float | None = None
    burst: int | None = None
    concurrency: int | None = None
    key_rate: float | None = None
    key_burst: int | None = None
    key_concurrency: int | None = None
    max_waiting_group: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyLimits:
    """Limits of one limit key, instead of those that its queue has for each key; None: as the
    queue.

    Attributes:
        rate: starts per second; may be below 1. It replaces ``key_rate`` and ``key_burst`` of the
            queue.
        burst: starts at once after a pause; None for those of one second, at least 1.
        concurrency: running jobs. It replaces ``key_concurrency`` of the queue.
    """

    rate: float | None = None
    burst: int | None = None
    concurrency: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueLimits:
    """The limits of a queue and their current use by one of its groups.

    Attributes:
        running: jobs that workers have claimed.
        keys_waiting: number of limit keys with waiting jobs, an upper bound.
        next_start_at: when the rate of the queue allows the next start; None for now.
    """

    queue: str
    group: str
    limits: Limits
    running: int
    keys_waiting: int
    next_start_at: datetime | None
