"""When the state of a mirror is an alert: pure rules on facts from the database.

There are three rules. Each way to fall behind triggers the rule that names it:

| problem | A1 | A2 | A3 |
|---|---|---|---|
| no jobs are enqueued | fires | | |
| no jobs are completed | fires | | |
| both stop together, so that the queue keeps its length | fires | | |
| more jobs are enqueued than completed | | fires | |
| some jobs can never succeed | | | fires |

Shown by: tests/unit/test_alerts.py, tests/mirror/test_status.py.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Final

from forebay.model.alerts import Alert
from forebay.model.text import counted
from forebay.policy.retry import human_duration

if TYPE_CHECKING:
    from datetime import datetime

    from forebay.model.mirrors import MirrorFacts, Thresholds

#: Samples are taken once a minute. Two samples further apart than this do not cover the time
#: between them.
GAP_MAX: Final = timedelta(minutes=3)


def alerts_of(name: str, queue: str, facts: MirrorFacts, thresholds: Thresholds) -> list[Alert]:
    """Return what is wrong with a mirror.

    Args:
        name: the mirror's name.
        queue: the queue of its jobs.
        facts: the facts from the database.
        thresholds: what counts as too few, too many and too long.
    """
    found = (
        _too_few_completed(name, queue, facts, thresholds),
        _too_many_wait(name, facts, thresholds),
        _expired(name, queue, facts),
        _may_never_succeed(name, facts, thresholds),
    )
    return [alert for alert in found if alert is not None]


def above_since(facts: MirrorFacts, thresholds: Thresholds) -> datetime | None:
    """Return since when, without a break, more jobs are due than the threshold.

    The result is None if the number is below it now.

    Two sources show this: the due times of the jobs that wait now, and the samples, if all of them
    are above the threshold and no two are further apart than ``GAP_MAX``.
    """
    if facts.due <= thresholds.waiting_most:
        return None
    since = facts.at
    for at, due in reversed(facts.samples):
        if at > facts.at:
            continue
        if due <= thresholds.waiting_most or since - at > GAP_MAX:
            break
        since = at
    return since if facts.above_since is None else min(since, facts.above_since)


def too_few_completed_text(completed: int, least: int, within: float, silent: float | None) -> str:
    """Return the problem of A1.

    ``silent`` is the number of seconds since the last completed job, None if there was none.
    """
    if completed:
        return (
            f"{counted(completed, 'job')} {'was' if completed == 1 else 'were'} completed within "
            f"{human_duration(within)}, fewer than "
            f"{least:,}"
        )
    if silent is None:
        return "no job has been completed yet"
    return f"no job has been completed for {human_duration(silent)}"


def too_many_wait_text(due: int, most: int) -> str:
    """Return the problem of A2."""
    return f"{counted(due, 'job')} {'is' if due == 1 else 'are'} due; more than {most:,}"


def _too_few_completed(
    name: str, queue: str, facts: MirrorFacts, thresholds: Thresholds
) -> Alert | None:
    if facts.completed >= thresholds.completed_least:
        return None
    silent = None if facts.completed_at is None else (facts.at - facts.completed_at).total_seconds()
    problem = too_few_completed_text(
        facts.completed, thresholds.completed_least, thresholds.completed_within, silent
    )
    return Alert(
        code="A1",
        problem=problem,
        hint=_why_so_few(name, queue, facts),
        since=facts.completed_at,
        subject=name,
    )


def _why_so_few(name: str, queue: str, facts: MirrorFacts) -> str:
    refused = next((breaker for breaker in facts.breakers if breaker.place == "pass"), None)
    if facts.paused_at is not None:
        return f"Queue {queue} is paused: forebay queues resume {queue}."
    if refused is not None:
        return f"A store is unreachable: {refused.why or 'no reason was given'}."
    if facts.due:
        are_due = f"{counted(facts.due, 'job')} {'is' if facts.due == 1 else 'are'} due"
        return f"{are_due}: does a worker serve queue {queue}?"
    return (
        "No job is due: check that jobs are enqueued. If the source may be unchanged for "
        "that long, run"
        f" forebay mirror heartbeat MODULE:APP {name} regularly: it proves that jobs still "
        f"complete."
    )


def _too_many_wait(name: str, facts: MirrorFacts, thresholds: Thresholds) -> Alert | None:
    since = above_since(facts, thresholds)
    if since is None or (facts.at - since).total_seconds() < thresholds.waiting_for:
        return None
    length = human_duration((facts.at - since).total_seconds())
    return Alert(
        code="A2",
        problem=f"{too_many_wait_text(facts.due, thresholds.waiting_most)} for {length}",
        subject=name,
        hint=(
            "More jobs are enqueued than completed: see forebay queues list; add workers or "
            "use a faster target."
        ),
        since=since,
    )


def _expired(name: str, queue: str, facts: MirrorFacts) -> Alert | None:
    if not (facts.expired or facts.dead):
        return None
    parts = []
    if facts.expired:
        parts.append(f"{counted(facts.expired, 'job')} expired before they were proved")
    if facts.dead:
        parts.append(f"{counted(facts.dead, 'job')} became dead letters")
    return Alert(
        code="A3",
        problem=", ".join(parts),
        subject=name,
        hint=f"Run forebay dead list --queue {queue} to see why; redrive or purge them.",
    )


def _may_never_succeed(name: str, facts: MirrorFacts, thresholds: Thresholds) -> Alert | None:
    if not facts.stuck:
        return None
    oldest = facts.stuck[0]
    age = (facts.at - oldest.due_at).total_seconds()
    if age < thresholds.unproved_for:
        return None
    error = f": {oldest.error}" if oldest.error else ""
    times = "once" if oldest.attempts == 1 else f"{oldest.attempts} times"
    return Alert(
        code="A3",
        problem=(
            f"job {oldest.job_id} failed {times} and is unproved {human_duration(age)} after "
            f"it was due{error}"
        ),
        hint=f"Run forebay jobs show {oldest.job_id} to see all its errors.",
        since=oldest.due_at,
        subject=name,
    )
