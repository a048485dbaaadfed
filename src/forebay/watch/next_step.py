"""What happens next to a job, and when: one sentence."""

from __future__ import annotations

from forebay.model import JobState
from forebay.model.explanation import Explanation
from forebay.model.flows import FlowState
from forebay.model.status import JobStatus
from forebay.model.text import attempt_of


def next_step(
    job: JobStatus, explanation: Explanation | None, flow: FlowState | None = None
) -> str:
    """Return what happens next to a job in one group."""
    match job.state:
        case JobState.DONE:
            return "nothing: it has ended, and its row stays until retention empties its segment"
        case JobState.CANCELLED:
            return "nothing: it was cancelled; to run it, enqueue or replay it"
        case JobState.DEAD | JobState.EXPIRED if job.redriven_as is not None:
            return f"nothing here: it continues as job {job.redriven_as}"
        case JobState.DEAD if flow is not None and flow.died_of is not None:
            return flow.died_of.advice
        case JobState.DEAD | JobState.EXPIRED:
            return f"nothing until it is redriven: forebay dead redrive --job {job.job_id}"
        case JobState.RUNNING | JobState.CLAIMED:
            start = "its handler ends" if job.state is JobState.RUNNING else "its handler starts"
            if job.cancel_requested:
                return f"{start}; it is requested to stop, and does not run again"
            return f"{start}; after a failure, {_after_failure(job)}"
        case _:
            pass
    attempt = f"attempt {attempt_of(job.attempt, job.max_attempts)}"
    if job.cancel_requested:
        return "the next claim skips it as cancelled"
    if explanation is not None and explanation.cause == "flow":
        if flow is not None and flow.first_dead is not None:
            return "its gather raises ChildrenDied when that is over, unless it collects"
        return "its handler continues when that is over"
    expires = f"; it expires at {_time(job)}" if job.expires_at is not None else ""
    if job.run_at is not None:
        at = job.run_at.astimezone().isoformat(sep=" ", timespec="seconds")
        return f"{attempt} is ready at {at}{expires}"
    if explanation is not None and explanation.cause in ("soon", "jobs before", "busy"):
        return f"a worker starts {attempt}{expires}"
    return f"{attempt} starts when nothing holds it back{expires}"


def _after_failure(job: JobStatus) -> str:
    if job.max_attempts is None:
        return "the retry policy of its kind decides"
    if job.attempt >= job.max_attempts:
        return "it is dead: this is its last attempt"
    return f"attempt {attempt_of(job.attempt + 1, job.max_attempts)} follows"


def _time(job: JobStatus) -> str:
    assert job.expires_at is not None
    return job.expires_at.astimezone().isoformat(sep=" ", timespec="seconds")
