"""The limits of a queue: how many of its jobs may wait, start per second and run at once."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from typing import Final


class Unset(Enum):
    """The type of ``UNSET``, which leaves a limit as it is; None removes it."""

    UNSET = "unset"

    def __repr__(self) -> str:
        return "UNSET"


UNSET: Final = Unset.UNSET


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How many jobs of a queue may wait, start per second and run at once; None for no limit.

    Attributes:
        max_waiting: how many jobs may wait before more are refused.
        rate: starts per second, also below 1.
        burst: how many may start at once after a rest; None for what comes in a second, at least 1.
        concurrency: how many run at once.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueLimits:
    """The limits of a queue, and what they let one of its groups do now.

    Attributes:
        running: jobs that workers hold.
        keys_waiting: of how many limit keys jobs wait, at most.
        next_start_at: when the queue's rate lets the next job start; None for at once.
    """

    queue: str
    group: str
    limits: Limits
    running: int
    keys_waiting: int
    next_start_at: datetime | None
