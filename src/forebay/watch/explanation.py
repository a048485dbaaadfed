"""Why does this job not run? One decision tree over facts.

The first question that holds the job back has the answer.

``docs/howto/troubleshooting.md`` has the same questions in the same order.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Final

from forebay._dataclass import dataclass
from forebay.model import JobState
from forebay.model.explanation import Cause, Explanation, Step
from forebay.model.status import Failure, JobStatus
from forebay.model.text import counted
from forebay.policy.keys import key_answer, next_probe
from forebay.policy.retry import human_duration
from forebay.watch.commands import app_place, worker_command
from forebay.watch.facts import Facts

#: A due job that is not ready after this time is overdue; workers look for due jobs about once a
#: second.
_OVERDUE_SECONDS: Final = 15.0

#: The number from which on jobs before this one are not counted.
_COUNTED_MAX: Final = 10_000

_ERROR_CHARACTERS_MAX: Final = 100


@dataclass(frozen=True, slots=True)
class _Found:
    """The answer to one question; with a cause it ends the search."""

    answer: str
    cause: Cause | None = None
    hint: str | None = None


@dataclass(frozen=True, slots=True)
class _Case:
    job: JobStatus
    facts: Facts
    errors: Sequence[Failure]

    @property
    def queue(self) -> str:
        name = f"queue {self.job.queue}"
        return name if self.job.group == "default" else f"{name}, group {self.job.group}"

    def key_title(self, sort: str, key: str | None) -> str:
        """Return a key in words. The limit key of a delivery is its endpoint."""
        if sort == "limit" and self.job.endpoint is not None:
            return f"endpoint {key}"
        return f"{sort} key {key}"

    def raise_limit(self, option: str) -> str:
        """Return the hint that names the command for a limit that is reached."""
        endpoint = self.job.endpoint
        if endpoint is not None and option.startswith("key-"):
            name, option = shlex.quote(endpoint), option.removeprefix("key-")
            return f"forebay endpoints alter {name} --{option} NUMBER raises the limit."
        return f"forebay queues limit {self.job.queue} --{option} NUMBER raises the limit."

    def ago(self, instant: datetime | None) -> str:
        return "never" if instant is None else f"{self.length(instant)} ago"

    def length(self, instant: datetime) -> str:
        seconds = abs((self.facts.read_at - instant).total_seconds())
        return human_duration(round(seconds) if seconds >= 10 else round(seconds, 1))

    def last_error(self) -> str:
        if not self.errors:
            return ""
        last = self.errors[-1]
        text = ": ".join(part for part in (last.type, last.message) if part).partition("\n")[0]
        if len(text) > _ERROR_CHARACTERS_MAX:
            text = text[: _ERROR_CHARACTERS_MAX - 1] + "…"
        return f": {text}" if text else ""


def explain(job: JobStatus, errors: Sequence[Failure], facts: Facts) -> Explanation:
    """Return why a job does not run in one group."""
    case = _Case(job, facts, errors)
    steps = [Step("job", f"kind {job.kind}, enqueued {case.ago(job.enqueued_at)}")]
    for question, answer in _QUESTIONS:
        found = answer(case)
        if found is None:
            continue
        steps.append(Step(question, found.answer))
        if found.cause is not None:
            return _explanation(job.job_id, job.group, found.cause, found, steps)
    found = _Found(
        f"nothing holds it back: an idle worker of {case.queue} takes it within seconds",
        hint="If it stays so, look for trouble of the database: forebay doctor",
    )
    return _explanation(job.job_id, job.group, "soon", found, steps)


def explain_absence(job_id: int, facts: Facts) -> Explanation:
    """Return why no job with an id is visible."""
    hint = None
    if job_id > facts.last_id:
        what = f"no job {job_id} was ever enqueued here: the newest number is {facts.last_id}"
        hint = "Check the database that you and the producer use: forebay config"
    elif facts.is_past_retention:
        what = (
            (
                f"job {job_id} is not kept any more: jobs of its time have ended, and "
                f"retention removed them"
            )
            if job_id
            else "no job has the id 0"
        )
    elif facts.writers:
        what = f"job {job_id} is not committed, or was rolled back"
        hint = f"A transaction that has enqueued jobs is open: {', '.join(facts.writers)}"
    else:
        what = (
            f"no job has the id {job_id}: ids have gaps, and a transaction that was rolled back"
            f" leaves one"
        )
        hint = "If a producer was given this id, look for an error or a rollback after its enqueue."
    return _explanation(job_id, None, "unknown", _Found(what, hint=hint), [Step("job", what)])


def _explanation(
    job_id: int, group: str | None, cause: Cause, found: _Found, steps: Sequence[Step]
) -> Explanation:
    return Explanation(
        job_id=job_id, group=group, cause=cause, answer=found.answer, hint=found.hint, steps=steps
    )


def _ended(case: _Case) -> _Found:
    job = case.job
    if not job.state.is_final:
        return _Found(f"no, it is {job.state}")
    when = f" {case.ago(job.ended_at)}" if job.ended_at else ""
    hint = None
    match job.state:
        case JobState.DONE:
            what = f"it is done: it ended{when}" + (f" on {job.worker}" if job.worker else "")
        case JobState.CANCELLED:
            what = f"it was cancelled{when}"
        case JobState.EXPIRED:
            what = f"it expired{when}: no worker started it in time"
            hint = f"To run it again: forebay dead redrive --job {job.job_id}"
        case _:
            what = f"it is dead after attempt {job.attempt}{case.last_error()}"
            hint = (
                f"See forebay dead show --job {job.job_id}; after a fix:"
                f" forebay dead redrive --job {job.job_id}"
            )
            flow = case.facts.flow
            if flow is not None and flow.died_of is not None:
                hint = flow.died_of.advice
    if job.redriven_as is not None:
        what += f"; it was redriven as job {job.redriven_as}"
        hint = f"forebay doctor --job {job.redriven_as}"
    return _Found(what, "ended", hint)


def _restored(case: _Case) -> _Found | None:
    if case.facts.is_same_cluster:
        return None
    return _Found(
        "the database was copied or restored from another cluster: no job runs until you decide",
        "restored",
        "forebay adopt --resume runs the waiting jobs, forebay adopt --discard drops them.",
    )


def _flow(case: _Case) -> _Found | None:
    """Return what a flow waits for that has given its slot back."""
    flow = case.facts.flow
    if flow is None or flow.waits_for is None or flow.since is None:
        return None
    step = f"step {flow.step}" if flow.step_key is None else f"step {flow.step}[{flow.step_key}]"
    if flow.waits_for == "sleep":
        assert flow.until is not None
        return _Found(f"{step} sleeps for another {case.length(flow.until)}", "flow")
    since = f", for {case.length(flow.since)} so far"
    if flow.waits_for == "signal":
        until = "" if flow.until is None else f" and for another {case.length(flow.until)} at most"
        name, key = flow.signal_name or "", flow.signal_key or ""
        return _Found(
            f"{step} waits for signal {name} with key {key}{since}{until}",
            "flow",
            # A literal copy is refused: what is sent is its answer for good.
            f"forebay signal {shlex.quote(name)} {shlex.quote(key)} 'JSON' wakes it; JSON is what"
            " its wait returns.",
        )
    children = counted(flow.children or 0, "job")
    dead = flow.first_dead
    have = "has" if flow.ended == 1 else "have"
    return _Found(
        f"{step} waits for {children}, of which {flow.ended or 0:,} {have} ended{since}"
        + ("" if dead is None else f"; job {dead} did not end well"),
        "flow",
        None if dead is None else f"See forebay dead show --job {dead}",
    )


def _due(case: _Case) -> _Found:
    job = case.job
    is_due = job.run_at is None or job.run_at <= case.facts.read_at
    if is_due and (unhandled := _unhandled(case)) is not None:
        return unhandled
    if job.run_at is None:
        return _Found("yes")
    if is_due:
        if (case.facts.read_at - job.run_at).total_seconds() < _OVERDUE_SECONDS:
            return _Found("since a moment")
        hint = "Start a worker: any worker makes the due jobs of all queues ready."
        what = f"it has been due for {case.length(job.run_at)}, and no worker has made it ready"
        return _Found(what, "overdue", hint)
    wait = f"in {case.length(job.run_at)}"
    if job.state is JobState.RETRYING:
        what = f"attempt {job.attempt} starts {wait}; the last one failed{case.last_error()}"
        return _Found(what, "retrying", f"See forebay jobs show {job.job_id}")
    if case.errors and case.errors[-1].outcome == "unknown kind":
        worker = case.errors[-1].worker or "its worker"
        return _Found(
            f"{worker} has no handler for {job.kind}: it is tried again {wait}",
            "no handler",
            _handler_hint(case),
        )
    return _Found(f"it is scheduled to start {wait}", "scheduled")


def _unhandled(case: _Case) -> _Found | None:
    """Return that the worker that had a due job last has no handler for it, until one that may
    have it serves the queue: a tick, or another worker of the same app, does not help.
    """
    job, facts = case.job, case.facts
    is_unknown = bool(case.errors) and case.errors[-1].outcome == "unknown kind"
    if not is_unknown or job.state.is_held or (facts.kind_queue is not None and facts.is_served):
        return None
    worker = case.errors[-1].worker or "its last worker"
    return _Found(
        f"{worker} had no handler for {job.kind}: it is due again, and waits for a worker that"
        " has one",
        "no handler",
        _handler_hint(case),
    )


def _handler_hint(case: _Case) -> str:
    return (
        f"Start a worker whose app has {case.job.kind}, or serve {case.queue} by such workers only;"
        f" if the handler was renamed: @app.job(name={case.job.kind!r})."
    )


def _held(case: _Case) -> _Found | None:
    job, holder = case.job, case.facts.holder
    if not job.state.is_held:
        return None
    worker = (holder or {}).get("worker") or job.worker or "a worker"
    cancelling = "; its handler is requested to stop" if job.cancel_requested else ""
    if holder is None:
        return _Found(f"{worker} has just had it; repeat the command", "claimed")
    silent = holder["silent_seconds"]
    limit = holder["suspect_seconds"] if holder["jobs"] else holder["lease_seconds"]
    if silent is None or silent > limit:
        since = "since it started" if silent is None else f"for {human_duration(silent)}"
        return _Found(
            f"{worker} has it and has been silent {since}; another worker recovers it after"
            f" {human_duration(holder['lease_seconds'])} at the latest",
            "worker silent",
            "Make sure that another worker runs: recovery needs one.",
        )
    since = "" if job.claimed_at is None else f" {case.ago(job.claimed_at)}"
    if job.state is JobState.RUNNING:
        return _Found(
            f"it runs: {worker} took it{since}{cancelling}",
            "running",
            (
                f"forebay jobs show {job.job_id} has its progress; forebay jobs cancel "
                f"{job.job_id} stops it."
            ),
        )
    if case.facts.key_job is not None:
        return _Found(
            (
                f"{worker} has it, and job {case.facts.key_job} of the same ordering key must "
                f"end first"
            ),
            "ordering key",
            f"forebay doctor --job {case.facts.key_job}",
        )
    return _Found(
        f"{worker} claimed it{since} and starts it next: it has "
        f"{counted(holder['jobs'], 'job')},"
        f" {holder['running']} of them running{cancelling}",
        "claimed",
        "To start jobs sooner, add workers or raise --concurrency.",
    )


def _served(case: _Case) -> _Found:
    facts = case.facts
    if facts.is_served or facts.last_claim_alive:
        who = ", ".join(facts.workers) or "an idle worker"
        if facts.last_claim_at is not None:
            who += f"; last claim {case.ago(facts.last_claim_at)}, by {facts.last_claim_by}"
        return _Found(f"yes: {who}")
    last = (
        "no worker has ever claimed from it"
        if facts.last_claim_at is None
        else f"the last claim was {case.ago(facts.last_claim_at)}, by {facts.last_claim_by}"
    )
    alive = [*facts.workers, *facts.others]
    who = (
        f"no worker serves {case.queue}; others run: {', '.join(alive)}"
        if alive
        else f"no worker runs, so none serves {case.queue}"
    )
    command = worker_command(app_place(facts.app), case.job.queue, case.job.group)
    declared = facts.kind_queue
    # A worker alone would not help.
    pause = _pause(case)
    too = "" if pause is None else f"; and {pause}"
    then = "" if pause is None else f"; then resume it: {_resume(case)}"
    if facts.tick_expected_by is not None and facts.tick_expected_by > facts.read_at:
        return _Found(
            f"no worker stays: runs that end by themselves serve {case.queue}, and the last one"
            f" ended {case.ago(facts.tick_ended_at)}{too}",
            "not served" if pause is None else "paused",
            f"The next run takes it; to run it now: {command} --until-idle, or"
            f" forebay tick {app_place(facts.app)} where ticks are used"
            if pause is None
            else _resume(case),
        )
    if declared is not None and declared != case.job.queue:
        return _Found(
            f"{who}; its kind {case.job.kind} belongs in queue {declared}{too}",
            "not served",
            f"Cancel it and enqueue it with --queue {declared}; or serve both queues with --queue.",
        )
    return _Found(
        f"{who}; {last}{too}",
        "not served",
        (
            f"Start a worker: {command}"
            if case.job.endpoint is None
            else "Start a deliverer: forebay deliver"
        )
        + then,
    )


def _paused(case: _Case) -> _Found:
    pause = _pause(case)
    return _Found("no") if pause is None else _Found(pause, "paused", _resume(case))


def _pause(case: _Case) -> str | None:
    """Return since when the queue is paused, and for how long; None: it is not."""
    if case.facts.paused_at is None:
        return None
    end = case.facts.resume_at
    until = "" if end is None else f", for another {case.length(end)}"
    return f"{case.queue} has been paused for {case.length(case.facts.paused_at)}{until}"


def _resume(case: _Case) -> str:
    return f"forebay queues resume {case.job.queue}"


def _key_paused(case: _Case) -> _Found | None:
    facts = case.facts
    if facts.key_paused_at is None:
        return None
    sort = facts.paused_key
    key = facts.ordering_key if sort == "ordering" else facts.limit_key
    end = facts.key_resume_at
    until = "" if end is None else f", for another {case.length(end)}"
    paused_for = f"{case.length(facts.key_paused_at)}{until}"
    if sort == "limit" and case.job.endpoint is not None:
        return _Found(
            f"endpoint {key} has been disabled or paused for {paused_for}",
            "paused",
            f"forebay endpoints show {shlex.quote(key or '')} tells why.",
        )
    return _Found(
        f"its {sort} key {key} has been paused for {paused_for}",
        "paused",
        f"forebay keys resume {case.job.queue} --{sort}-key {shlex.quote(key or '')}",
    )


def _handler(case: _Case) -> _Found | None:
    facts = case.facts
    if facts.kind_queue is not None or not facts.has_kinds:
        return None if facts.kind_queue is None else _Found("a worker has declared its kind")
    return _Found(
        f"no worker has ever declared a handler for {case.job.kind}",
        "no handler",
        "Check the spelling of the kind, and that the app of the workers imports its handler."
        f" If it was renamed: @app.job(name={case.job.kind!r}).",
    )


def _closing(case: _Case) -> _Found | None:
    if case.facts.closing_at is None:
        return None
    return _Found(
        (
            f"{case.queue} has been closing for {case.length(case.facts.closing_at)}: its "
            f"jobs are given up"
        ),
        "closing",
        f"forebay groups list --queue {case.job.queue}",
    )


def _parked(case: _Case) -> _Found | None:
    key = case.facts.key
    if key is None:
        return None
    answer = f"{case.key_title(key.sort, key.key)}: {key_answer(key, case.facts.read_at)}"
    match key.reason:
        case "held":
            return _Found(answer, "held", _held_hint(key.held_by))
        case "running" | "retry" if key.blocking_jobs:
            return _Found(answer, "ordering key", f"forebay doctor --job {key.blocking_jobs[0]}")
        case "breaker":
            return _open_breaker(case, key.waits_for or key.key, key.until)
        case "concurrency" | "rate" | "queue_concurrency" | "queue_rate":
            option = key.reason.removeprefix("queue_")
            if key.reason == option:
                option = f"key-{option}"
            return _Found(answer, "limit", case.raise_limit(option))
        case _:
            return _Found(answer)


def _open_breaker(case: _Case, key: str, probe_at: datetime | None) -> _Found:
    name = shlex.quote(key)
    of, command = f"limit key {key}", f"forebay keys show {case.job.queue} --limit-key {name}"
    if case.job.endpoint is not None:
        of, command = f"endpoint {key}", f"forebay endpoints show {name}"
    return _Found(
        f"the breaker of {of} is open, {next_probe(probe_at, case.facts.read_at)}",
        "limit",
        f"{command} shows the last error.",
    )


def _held_hint(dead_id: int | None) -> str:
    return (
        f"forebay dead redrive {dead_id} runs that job first; forebay dead skip {dead_id} does "
        f"without it."
    )


def _limits(case: _Case) -> _Found:
    facts = case.facts
    if facts.breaker_opened_at is not None and facts.limit_key is not None:
        # No claim has met the job yet.
        return _open_breaker(case, facts.limit_key, facts.probe_at)
    limits = facts.limits or {}
    queue = case.job.queue
    for name, running, title in (
        ("concurrency", facts.running, f"queue {queue}"),
        ("key_concurrency", facts.key_running, case.key_title("limit", facts.limit_key)),
    ):
        limit = limits.get(name)
        if limit is not None and running >= limit and (name == "concurrency" or facts.limit_key):
            return _Found(
                f"{title} runs {running} of at most {limit:g} jobs at once",
                "limit",
                case.raise_limit(name.replace("_", "-")),
            )
    for name, permits, next_at, title in (
        ("rate", facts.permits, facts.next_start_at, f"queue {queue}"),
        (
            "key_rate",
            facts.key_permits,
            facts.key_next_start_at,
            case.key_title("limit", facts.limit_key),
        ),
    ):
        if permits == 0:
            wait = "" if next_at is None else f"; the next job starts in {case.length(next_at)}"
            return _Found(
                f"{title} starts at most {limits[name]:g} jobs a second{wait}",
                "limit",
                case.raise_limit(name.replace("_", "-")),
            )
    return _Found("no limit is reached" if any(limits.values()) else "none")


def _key(case: _Case) -> _Found:
    facts = case.facts
    if facts.ordering_key is None:
        return _Found("none")
    if facts.key_job is None:
        return _Found(f"{facts.ordering_key}: no job before it")
    if facts.held_by is not None:
        return _Found(
            (
                f"dead letter {facts.held_by}, of job {facts.key_job}, holds its ordering key "
                f"{facts.ordering_key}"
            ),
            "held",
            _held_hint(facts.held_by),
        )
    return _Found(
        f"job {facts.key_job} of its ordering key {facts.ordering_key} must end first",
        "ordering key",
        f"forebay doctor --job {facts.key_job}",
    )


def _before(case: _Case) -> _Found:
    count = case.facts.before
    if not count:
        return _Found("none")
    some = f"more than {_COUNTED_MAX:,} jobs" if count > _COUNTED_MAX else counted(count, "job")
    return _Found(
        f"{some} of queue {case.job.queue} come first: of a better priority, or earlier",
        "jobs before",
        (
            "To start jobs sooner, add workers or raise --concurrency; a lower --priority "
            "number goes first."
        ),
    )


def _busy(case: _Case) -> _Found:
    if case.facts.is_watched:
        return _Found("no, one is idle")
    facts = case.facts
    able = [name for name in facts.workers if name not in facts.silent]
    if facts.silent and not able:
        silent = human_duration(max(facts.silent.values()))
        return _Found(
            f"no worker of {case.queue} answers: {', '.join(facts.silent)} has been silent for"
            f" {silent}, and has perhaps died",
            "worker silent",
            "Start another one: "
            + worker_command(app_place(facts.app), case.job.queue, case.job.group),
        )
    names = ", ".join(able) or facts.last_claim_by
    alone = ", and it runs alone because its last worker was lost" if case.facts.is_suspect else ""
    return _Found(
        f"the workers of {case.queue} are busy: {names}{alone}",
        "busy",
        "To start jobs sooner, add workers or raise --concurrency.",
    )


#: In the order of the page.
_QUESTIONS: Final[tuple[tuple[str, Callable[[_Case], _Found | None]], ...]] = (
    ("ended", _ended),
    ("restored", _restored),
    ("flow", _flow),
    ("due", _due),
    ("claimed", _held),
    ("served", _served),
    ("paused", _paused),
    ("key paused", _key_paused),
    ("closing", _closing),
    ("key", _parked),
    ("limits", _limits),
    ("ordering key", _key),
    # Only now: a limit holds back jobs of a queue whose workers declare no kinds too.
    ("handler", _handler),
    ("jobs before", _before),
    ("workers busy", _busy),
)
