"""Commands for many jobs: cancel, retry, reschedule and reprioritise jobs, purge a queue."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Final

from forebay.cli._acts import agreed
from forebay.cli._commands import Given, Together, argument, option
from forebay.cli._database import client_of
from forebay.cli._patience import patience
from forebay.cli.exit import ExitCode
from forebay.cli.options import AGE, Group, How, instant, instant_in, instant_or_age
from forebay.cli.output import ago, copied, facts_table, print_json
from forebay.cli.text import Text, console
from forebay.errors import ConfigError
from forebay.model.change import ChangeAct, ChangePlan, ChangeResult, JobFilter
from forebay.model.status import CancelAnswer
from forebay.model.text import counted

if TYPE_CHECKING:
    from forebay.client import Client


#: Answers with which the exit code is 1 if jobs were named by id.
_FAILED: Final = ("already ended", "unknown", "running", "ordering key", "expires before")

_MEANINGS: Final[dict[str, str]] = {
    "cancelled": "cancelled",
    "requested": "in a worker, or a flow that waits: cancellation requested",
    "children": "flows among them wait for these: cancelled if they have not started",
    "changed": "changed",
    "unchanged": "as wanted already",
    "running": "in a worker: left alone",
    "ordering key": "left alone: they would lose their place among the jobs of their ordering key",
    "expires before": "left alone: they would expire before they may start",
    "already ended": "already ended",
    "unknown": "unknown: never enqueued, not committed, or past retention",
}


#: The conditions of a filter, as options of the commands.
_CONDITIONS: Final[dict[str, Given]] = {
    "queue": option("--queue QUEUE", "Only this queue."),
    "kind": option("--kind KIND", "Only this kind."),
    "tag": option("--tag TAG", "Only this tag."),
    "state": option("--state STATE", "Only scheduled, ready, claimed, running or retrying jobs."),
    "ordering_key": option("--ordering-key KEY", "Only this ordering key."),
    "limit_key": option("--limit-key KEY", "Only this limit key."),
    "unique_key": option("--unique-key KEY", "Only this unique key."),
    "correlation_id": option("--correlation-id ID", "Only this correlation id."),
    "subject": option("--subject SUBJECT", "Only runs of this subject."),
    "endpoint": option("--endpoint ENDPOINT", "Only deliveries to this endpoint."),
    "enqueued_after": option("--enqueued-after TIME", f"Enqueued since: {AGE}."),
    "enqueued_before": option("--enqueued-before TIME", f"Enqueued before: {AGE}."),
}
_TIMES: Final = ("enqueued_after", "enqueued_before")

Queue = Annotated[str, argument("QUEUE", "The queue.")]

JobIds = Annotated[list[int] | None, argument("[JOB_ID...]", "The jobs; or give a filter.")]


def _conditions(**given: str | None) -> JobFilter | None:
    return _filter_of(given) if any(given.values()) else None


def _filter(
    job_ids: JobIds = None,
    *,
    all_: Annotated[bool, option("--all", "Every unfinished job.")] = False,
    **conditions: str | None,
) -> JobFilter:
    given = {name: value for name, value in conditions.items() if value is not None}
    if job_ids and (given or all_):
        raise ConfigError("JOB_ID", "and a filter were given: give one of them")
    if not (job_ids or given or all_):
        raise ConfigError(
            "JOB_ID",
            "or a filter is needed",
            hint="Name jobs, a --queue, --kind or --tag, or say --all.",
        )
    return _filter_of(given, ids=job_ids or None, all=all_)


#: The conditions of a list; None if none is given.
Conditions = Annotated[JobFilter | None, Together(_conditions, _CONDITIONS)]
#: Jobs by their ids or by conditions.
Which = Annotated[JobFilter, Together(_filter, _CONDITIONS)]


Now = Annotated[bool, option("--now", "Flows that wait end without running again.")]


def cancel(*, which: Which, group: Group = None, now: Now = False, how: How) -> None:
    """Cancel jobs, by their ids or by a filter.

    A waiting job is cancelled. A running handler is requested to stop; if it finishes before, the
    job is done. A flow that waits in a step continues: the step raises JobCancelled, and the
    handler may compensate. A filter works in steps; after an interruption, the same command
    finishes. Exit code 1: a named job has already ended, or does not exist.
    """
    if group is not None and which.ids is None:
        raise ConfigError("--group", "needs the ids of jobs: a filter cancels for all groups")
    if which.ids is not None and not how.dry_run and how.token is None:
        _cancel_named(client_of(how.dsn), list(which.ids), group, now=now, as_json=how.as_json)
        return
    _act("cancel", which, how,
         lambda client, **more: client.cancel_matching(which, now=now, **more),
         now=now)  # fmt: skip


def retry(*, which: Which, how: How) -> None:
    """Start scheduled and retrying jobs now, by their ids or by a filter.

    They keep their attempts, errors and expiry. For a dead job: `forebay dead redrive --job
    JOB_ID`.
    """
    _act("retry", which, how, lambda client, **more: client.retry_matching(which, **more))


def reschedule(
    *,
    which: Which,
    at: Annotated[str | None, option("--at TIME", "The earliest start, in ISO 8601.")] = None,
    in_: Annotated[
        str | None, option("--in DURATION", "The earliest start, from now: 90s, 15m, 2h.")
    ] = None,
    how: How,
) -> None:
    """Let waiting jobs start at another time, by their ids or by a filter.

    Ready jobs with an ordering key stay, because they would lose their place, and so do jobs that
    would expire before. With the token of a dry run, --in counts from that dry run.
    """
    if (at is None) == (in_ is None):
        raise ConfigError("--at", "or --in is needed: give exactly one of them")
    run_at = instant(at, "--at") if in_ is None else instant_in(in_, "--in")
    _act("reschedule", which, how,
         lambda client, **more: client.reschedule_matching(which, run_at=run_at, **more),
         run_at=run_at)  # fmt: skip


def reprioritise(
    *,
    which: Which,
    priority: Annotated[int, option("--priority N", "Lower numbers run first.")],
    how: How,
) -> None:
    """Give waiting jobs another priority, by their ids or by a filter.

    Jobs with an ordering key stay, because they would lose their place.
    """
    _act("reprioritise", which, how,
         lambda client, **more: client.reprioritise_matching(which, priority=priority, **more),
         priority=priority)  # fmt: skip


def purge(queue: Queue, *, now: Now = False, how: How) -> None:
    """Cancel every unfinished job of a queue.

    Jobs that are enqueued later stay, and so do subjects. Flows that wait continue, and may
    compensate.
    """
    _act("purge", JobFilter(queue=queue), how,
         lambda client, **more: client.purge_queue(queue, now=now, **more),
         remark=lambda: _say_what_stays(queue, how), now=now)  # fmt: skip


def truncate(queue: Queue, *, how: How) -> None:
    """Cancel the jobs of a queue that wait now. Running jobs finish.

    Jobs that are enqueued later stay, and so do subjects.
    """
    _act("truncate", JobFilter(queue=queue), how,
         lambda client, **more: client.truncate_queue(queue, **more),
         remark=lambda: _say_what_stays(queue, how))  # fmt: skip


def _say_what_stays(queue: str, how: How) -> None:
    """Name the subjects of a queue: who empties it may not think of what is due later."""
    counts = client_of(how.dsn).subject_counts(queue)
    due = sum(each.subjects for each in counts if each.state == "scheduled")
    if due:
        console().print(
            f"→ {counted(due, 'subject')} of the queue will be due: `forebay subjects drop"
            f" {queue} --all` drops all subjects",
            soft_wrap=True,
        )


def _filter_of(conditions: Mapping[str, str | None], **others: Any) -> JobFilter:
    given = {name: value for name, value in conditions.items() if value is not None}
    times = {
        name: instant_or_age(given.pop(name), f"--{name.replace('_', '-')}")
        for name in _TIMES
        if name in given
    }
    return JobFilter(**given, **times, **others)  # type: ignore[arg-type]


def _act(
    act: ChangeAct,
    which: JobFilter,
    how: How,
    run: Callable[..., ChangeResult],
    *,
    remark: Callable[[], None] = lambda: None,
    **wanted: Any,
) -> None:
    """Do an act on many jobs, or plan it; ``wanted`` is the time or priority that it gives them."""
    client, as_json = client_of(how.dsn), how.as_json

    def show(plan: ChangePlan) -> None:
        _print_plan(act, plan)
        remark()

    token = agreed(
        how,
        lambda: client.plan_change(act, which, **wanted),
        lambda plan: f"{act.capitalize()} {counted(plan.jobs, 'job')}?",
        show,
        named=which.ids is not None,
    )
    with patience(act, "run the same command again to finish it") as progress:
        result = run(client, token=token, progress=progress.note)
    if as_json:
        print_json(result if result.jobs else {"answers": result.answers})
    elif result.jobs:
        for job_id, answer in result.jobs.items():
            console(stderr=answer in _FAILED).print(
                f"job {job_id}: {_MEANINGS[answer]}", soft_wrap=True
            )
    else:
        out = console()
        for name, count in result.answers.items():
            out.print(f"{counted(count, 'job')} {_MEANINGS[name]}")
        if not result.answers:
            out.print("No jobs.", style="dim")
        remark()
    if any(answer in _FAILED for answer in result.jobs.values()):
        raise SystemExit(ExitCode.FAILED)


def _print_plan(act: ChangeAct, plan: ChangePlan) -> None:
    rows = facts_table()
    rows.add_row(f"would {act}", Text(counted(plan.jobs, "job"), style="bold"))
    for state, count in sorted(plan.states.items()):
        rows.add_row(f"  {state}", f"{count:,}")
    for answer, count in sorted(plan.answers.items()):
        if answer not in ("cancelled", "requested", "changed"):
            rows.add_row(answer, f"{counted(count, 'job')}, {_MEANINGS[answer]}")
    if plan.jobs:
        rows.add_row("enqueued", f"{ago(plan.oldest_at)} to {ago(plan.newest_at)}")
    rows.add_row("token", copied(plan.token))
    out = console()
    out.print(rows)
    if plan.jobs:
        out.print(
            "→ run it again with --token instead of --dry-run; it takes no other jobs",
            soft_wrap=True,
        )


def _cancel_named(
    client: Client, job_ids: list[int], group: str | None, *, now: bool, as_json: bool
) -> None:
    answers = {job_id: client.cancel(job_id, group=group, now=now) for job_id in job_ids}
    if as_json:
        print_json([{"job_id": job_id, "answer": answer} for job_id, answer in answers.items()])
    failed = False
    for job_id, answer in answers.items():
        if answer in ("already ended", "unknown"):
            failed = True
            console(stderr=True).print(_cancelled(client, job_id, group, answer), soft_wrap=True)
        elif not as_json:
            console().print(_cancelled(client, job_id, group, answer))
    if failed:
        raise SystemExit(ExitCode.FAILED)


def _cancelled(client: Client, job_id: int, group: str | None, answer: CancelAnswer) -> str:
    match answer:
        case "cancelled":
            return f"job {job_id} is cancelled"
        case "requested":
            states = {job.state for job in client.job(job_id) if group in (None, job.group)}
            if not any(state.is_held for state in states):
                return f"job {job_id} is a flow that waits: it continues, and may compensate"
            return f"job {job_id} is in a worker: cancellation requested"
        case "already ended":
            states = {job.state for job in client.job(job_id) if group in (None, job.group)}
            return f"job {job_id} is already {' and '.join(sorted(states))}"
        case "unknown":
            return f"job {job_id} is unknown: never enqueued, not committed, or past retention"
