"""forebay jobs: list, show and cancel jobs."""

from __future__ import annotations

import sys
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Annotated, Any

from forebay.cli import _archive, _change
from forebay.cli._commands import Commands, argument, option
from forebay.cli._database import client_of, run
from forebay.cli._family import children_text, relative_text
from forebay.cli._steps import flow_json, print_steps, rewind
from forebay.cli.options import Dsn, Json, Kind, Limit, Queue
from forebay.cli.output import (
    ago,
    facts_table,
    failure_headline,
    json_text,
    moment,
    one_line,
    options_shown,
    print_json,
    state_text,
    table,
)
from forebay.cli.text import Console, Table, Text, console
from forebay.errors import JobNotFound
from forebay.model.archive import Family
from forebay.model.change import JobFilter
from forebay.model.explanation import Explanation
from forebay.model.status import JobHistory, JobStatus, shown_args
from forebay.model.text import attempt_of, call_text, counted

if TYPE_CHECKING:
    from forebay.client import Client

commands = Commands()

for _act in (_change.cancel, _change.retry, _change.reschedule, _change.reprioritise):
    commands.add(_act.__name__)(_act)

State = Annotated[
    str | None,
    option(
        "--state STATE",
        "scheduled, ready, claimed, running, retrying, done, cancelled, expired or dead.",
    ),
]
commands.add("rewind")(rewind)
commands.add("replay")(_archive.replay)
commands.add("export")(_archive.export)

JobId = Annotated[int, argument("JOB_ID", "The job.")]


@commands.add("list")
def list_(
    *,
    queue: Queue = None,
    kind: Kind = None,
    state: State = None,
    limit: Limit = 50,
    before: Annotated[
        int | None, option("--before PLACE", "Next page: `place` of the last job of this page.")
    ] = None,
    dsn: Dsn = None,
    as_json: Json = False,
    which: _change.Conditions,
) -> None:
    """List the newest jobs; a retry counts as new."""
    from forebay.ops.jobs import jobs

    wanted = jobs(queue=queue, kind=kind, state=state, limit=limit, before=before, which=which)
    found = run(dsn, wanted)
    if as_json:
        print_json(found)
        return
    out = console()
    if not found:
        out.print("No jobs.", style="dim")
        return
    # A column without a value takes no width.
    has_tags = any(job.tag for job in found)
    rows = table(
        "job", "state", "queue", "attempt", "since", "call", *(["tag"] if has_tags else []),
        right=("job", "attempt"), loose=("call", "tag"),
    )  # fmt: skip
    for job in found:
        rows.add_row(
            str(job.job_id),
            state_text(job.state),
            _queue(job),
            attempt_of(job.attempt, job.max_attempts),
            _since(job),
            one_line(call_text(job.kind, shown_args(job))),
            *([one_line(job.tag or "-")] if has_tags else []),
        )
    out.print(rows)
    if len(found) >= limit:
        out.print(f"next page: --before {found[-1].place}", style="dim")


@commands.add("search")
def search(
    text: Annotated[
        str | None, argument("[TEXT]", "Only jobs whose arguments or errors contain this text.")
    ] = None,
    *,
    queue: Queue = None,
    kind: Kind = None,
    state: State = None,
    limit: Limit = 50,
    before: Annotated[
        int | None, option("--before PLACE", "Next page: as the last one has printed.")
    ] = None,
    dsn: Dsn = None,
    as_json: Json = False,
    which: _change.Conditions,
) -> None:
    """Search all jobs in the log, ended ones too, the newest first, until N are found.

    It skips most of the log by kind, tag, correlation id, subject, keys and times; a text is looked
    for in each row. Jobs are printed as they are found; an interrupted search has printed what it
    had. With --json: one line for each job.
    """
    if queue is not None or kind is not None:
        which = replace(which or JobFilter(all=True), queue=queue, kind=kind)
    client, found, looked_at = client_of(dsn), 0, 0
    while found < limit:
        page = client.search_jobs(
            which, state=state, contains=text, limit=min(limit - found, 1000), before=before
        )
        found += len({job.job_id for job in page.jobs})
        looked_at += page.looked_at
        before = page.next
        for job in page.jobs:
            if as_json:
                print_json(job)
            else:
                console().print(_line(job), cut=True)
        if before is None:
            break
        if found < limit:
            _progress(looked_at, page.remaining)
    if not as_json:
        out = console(stderr=True)
        out.print(f"{counted(found, 'job')}; {looked_at:,} rows were read", style="dim")
        if before is not None:
            out.print(f"next page: --before {before}", style="dim")


def _progress(looked_at: int, remaining: int) -> None:
    if sys.stderr.isatty():
        console(stderr=True).print(
            f"{looked_at:,} rows read, {remaining:,} left at most", end="\r", style="dim"
        )


def _line(job: JobStatus) -> Text:
    line = Text(f"{job.job_id:>9}  ")
    line.append(state_text(f"{job.state:9}"))
    line.append(f"  {_queue(job):14}  {_since(job):12}  ", style="dim")
    return line.append(call_text(job.kind, shown_args(job)))


@commands.add("show")
def show(
    job_id: JobId,
    *,
    values: Annotated[bool, option("--values", "Also what the steps of a flow returned.")] = False,
    dsn: Dsn = None,
    as_json: Json = False,
) -> None:
    """Show a job in each consumer group of its queue: state, attempts, errors, progress, result,
    steps.
    """
    from forebay.model import JobState

    client = client_of(dsn)
    found = _found(client, job_id)
    histories = {history.group: history for history in client.job_history(job_id)}
    flows = {flow.group: flow for flow in client.flow(job_id, values=values)}
    family = client.family(job_id)
    if as_json:
        print_json(
            [
                _with_history(job, histories.get(job.group))
                | {"flow": flow_json(flows.get(job.group), values=values)}
                | {"family": asdict(family)}
                for job in found
            ]
        )
        return
    out = console()
    waiting = any(not job.state.is_final and job.state is not JobState.RUNNING for job in found)
    answers = {one.group: one for one in client.explain(job_id)} if waiting else {}
    for number, job in enumerate(found):
        if number:
            out.print()
        history = histories.get(job.group)
        flow = flows.get(job.group)
        # A flow that has begun does not expire.
        may_expire = not job.state.is_final and flow is None
        rows = _facts(job, history, answers.get(job.group), may_expire=may_expire)
        if flow is not None and flow.died_of is not None:
            rows.add_row("next", flow.died_of.advice)
        if not number:
            _add_family(rows, family)
        out.print(rows)
        if flow is not None:
            print_steps(out, flow, values=values)
        for error in history.errors if history else ():
            out.print(failure_headline(error))
        _print_result(out, history)
    if found[0].args:
        out.print(Text("arguments", style="bold"))
        out.print(json_text(shown_args(found[0])))


def _print_result(out: Console, history: JobHistory | None) -> None:
    if history and history.result and history.result.problem is None:
        out.print(Text("result", style="bold"))
        out.print(json_text(history.result.value))


def _found(client: Client, job_id: int) -> list[JobStatus]:
    """Return a job; the error of a missing one says why it is missing."""
    try:
        return client.job(job_id)
    except JobNotFound as missing:
        (reason,) = client.explain(job_id)
        missing.detail, missing.hint = reason.answer, reason.hint
        raise


def _add_family(rows: Table, family: Family) -> None:
    if family.parent is not None:
        rows.add_row("parent", relative_text(family.parent))
    if children := children_text(family):
        rows.add_row("children", children)


def _queue(job: JobStatus) -> str:
    name = job.queue if job.group == "default" else f"{job.queue}/{job.group}"
    return name if job.priority == 100 else f"{name} ({job.priority})"


def _since(job: JobStatus) -> str:
    if job.run_at is not None and not job.state.is_final:
        return f"due {ago(job.run_at)}"
    if job.state == "scheduled":
        return "due when woken"
    return ago(job.ended_at or job.claimed_at or job.enqueued_at)


def _with_history(job: JobStatus, history: JobHistory | None) -> dict[str, Any]:
    return asdict(job) | {
        "errors": history.errors if history else (),
        "progress": history.progress if history else None,
        "result": history.result if history else None,
    }


def _add_waits(rows: Table, job: JobStatus, waits: Explanation) -> None:
    rows.add_row("waits", waits.answer)
    # The advice to look here has been followed.
    if waits.hint and f"forebay jobs show {job.job_id}" not in waits.hint:
        rows.add_row("", f"→ {waits.hint}")


def _facts(
    job: JobStatus, history: JobHistory | None, waits: Explanation | None, *, may_expire: bool
) -> Table:
    from forebay.model import JobState

    rows = facts_table()
    rows.add_row("job", Text.assemble((str(job.job_id), "bold"), f"  {job.kind}"))
    state = state_text(job.state)
    if job.cancel_requested and not job.state.is_final:
        state.append(", cancellation requested", style="yellow")
    rows.add_row("state", state)
    if waits is not None and not job.state.is_final and job.state is not JobState.RUNNING:
        _add_waits(rows, job, waits)
    group = "" if job.group == "default" else f", group {job.group}"
    rows.add_row("queue", f"{job.queue}, priority {job.priority}{group}")
    rows.add_row("attempt", attempt_of(job.attempt, job.max_attempts))
    for name, value in (
        ("enqueued", job.enqueued_at),
        ("due", job.run_at),
        ("claimed", job.claimed_at),
        ("ended", job.ended_at),
        ("expires", job.expires_at if may_expire else None),
    ):
        if value is not None:
            rows.add_row(name, moment(value))
    for name, text in (
        ("endpoint", job.endpoint),
        ("worker", job.worker),
        *options_shown(job),
        ("dead letter", job.dead_id),
        (
            "redriven from",
            job.redriven_from
            and f"job {job.redriven_from}, dead letter {job.redriven_from_dead_id}",
        ),
        ("redriven as", job.redriven_as and f"job {job.redriven_as}"),
    ):
        if text is not None:
            rows.add_row(name, str(text))
    if history and history.progress and not job.state.is_final:
        progress = history.progress
        rows.add_row(
            "progress",
            " ".join([f"{progress.done:.0%}", progress.note, f"({ago(progress.recorded_at)})"]),
        )
    if history and history.result:
        kept = history.result
        rows.add_row("result", kept.problem or f"below, kept until {moment(kept.kept_until)}")
    return rows
