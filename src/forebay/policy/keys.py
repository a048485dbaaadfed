"""Why the next job of a key does not run, in words."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Final

from forebay.model.keys import KeyInfo
from forebay.policy.retry import human_duration

#: How many running jobs of a limit key are named.
_NAMED_MAX: Final = 3


def key_answer(info: KeyInfo, now: datetime) -> str:
    """Return why the next job of a key does not run, and whether a pause is planned.

    The times in it are local.

    Args:
        info: the key.
        now: the present time: the day of another time is named if it is not today.
    """
    if info.pause_at is None:
        return _reason(info, now)
    planned = f"from {_time(info.pause_at, now)}{_until(info.resume_at, now)}"
    return f"{_reason(info, now)}; a pause is planned {planned}"


def _reason(info: KeyInfo, now: datetime) -> str:
    match info.reason:
        case "group_closing":
            return "the consumer group is being closed"
        case "group_paused":
            return "the consumer group is paused"
        case "paused":
            return f"{_limit_key(info)}paused{_until(info.until, now)}"
        case "held":
            return f"dead letter {info.held_by} of {_jobs(info)} holds it"
        case "retry":
            again = "is ready to run again"
            if info.until is not None:
                again = f"runs again at {_time(info.until, now)}"
            return f"behind {_jobs(info)}, which {again}"
        case "running":
            return f"behind {_jobs(info)}"
        case "concurrency":
            return f"{_limit_key(info)}at its concurrency limit: {_jobs(info)}"
        case "rate":
            return f"{_limit_key(info)}at its rate{_until(info.until, now)}"
        case "breaker":
            of = "" if info.waits_for is None else f" of its limit key {info.waits_for}"
            return f"breaker{of} open, {next_probe(info.until, now)}"
        case "queue_concurrency":
            return f"the queue {info.queue} is at its concurrency limit"
        case "queue_rate":
            return f"the queue {info.queue} is at its rate{_until(info.until, now)}"
        case "due":
            return "due: a claim takes its next job"
        case "free":
            return "free: nothing holds it back"


def next_probe(probe_at: datetime | None, now: datetime) -> str:
    """Return when an open breaker lets the next job pass.

    Args:
        probe_at: the earliest time; None: a probe runs.
        now: the present time.

    >>> from datetime import UTC, timedelta
    >>> now = datetime(2026, 1, 1, tzinfo=UTC)
    >>> next_probe(now + timedelta(seconds=12), now), next_probe(now, now), next_probe(None, now)
    ('next probe in 12 s', 'next probe now', 'a probe runs')
    """
    if probe_at is None:
        return "a probe runs"
    seconds = (probe_at - now).total_seconds()
    return "next probe now" if seconds <= 0 else f"next probe in {human_duration(seconds)}"


def _limit_key(info: KeyInfo) -> str:
    return "" if info.waits_for is None else f"its limit key {info.waits_for} is "


def _until(instant: datetime | None, now: datetime) -> str:
    return "" if instant is None else f" until {_time(instant, now)}"


def _time(instant: datetime, now: datetime) -> str:
    local = instant.astimezone()
    is_today = local.date() == now.astimezone().date()
    return local.strftime("%H:%M:%S" if is_today else "%Y-%m-%d %H:%M:%S")


def _jobs(info: KeyInfo) -> str:
    """Return the blocking jobs with their workers: ``jobs 17, 18 of w3, job 19 of w4``."""
    if not info.blocking_jobs:
        return "a job that has just ended"
    named = list(zip(info.blocking_jobs, info.blocking_workers, strict=True))[:_NAMED_MAX]
    by_worker: dict[str | None, list[int]] = {}
    for job_id, worker in named:
        by_worker.setdefault(worker, []).append(job_id)
    parts = [_of_worker(jobs, worker) for worker, jobs in by_worker.items()]
    more = info.running - len(named)
    if info.sort == "limit" and more > 0:
        parts.append(f"{more} more")
    return ", ".join(parts)


def _of_worker(jobs: Sequence[int], worker: str | None) -> str:
    noun = "job" if len(jobs) == 1 else "jobs"
    of = "" if worker is None else f" of {worker}"
    return f"{noun} {', '.join(map(str, jobs))}{of}"
