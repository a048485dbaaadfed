"""forebay where: one screen about one job."""

from __future__ import annotations

import json
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any, Final, cast

from forebay.cli._commands import argument, option
from forebay.cli._database import client_of
from forebay.cli._family import children_text, relative_text
from forebay.cli._steps import newest_step
from forebay.cli.exit import ExitCode
from forebay.cli.options import Dsn, Json
from forebay.cli.output import ago, compact, moment, print_json, state_text
from forebay.cli.text import Text, console
from forebay.model.status import shown_args
from forebay.model.text import attempt_of, call_text, counted, sentence
from forebay.policy.retry import human_duration

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from forebay.model.archive import JobAttempt, Whereabouts
    from forebay.model.status import Failure, JobHistory, JobStatus

_INDENT: Final = 12

#: All of it fits a terminal of 24 lines.
_OTHERS_MAX: Final = 5
_ATTEMPTS_MAX: Final = 6
_GROUPS_MAX: Final = 3

_STYLES: Final = {"done": "green", "dead": "red", "retried": "red", "lost": "red"}


def where(
    what: Annotated[
        str,
        argument(
            "JOB|SUBJECT|CORRELATION_ID|KEY",
            (
                "The id of a job; or a subject, a correlation id, an ordering key, a limit key, "
                "a unique key or the key of a signal."
            ),
        ),
    ],
    *,
    key: Annotated[
        bool, option("--key", "Look for a key or correlation id, also if a job has this number.")
    ] = False,
    dsn: Dsn = None,
    as_json: Json = False,
) -> None:
    """Show where a job is, why, and what happens next.

    Several jobs can have one subject, correlation id or key: the newest are listed, and the newest
    unfinished one is described. A number is the id of a job, if there is such a job. Exit code 1:
    there is no such job.
    """
    found = client_of(dsn).where(what, as_key=key)
    if as_json:
        print_json(found)
    elif found.job_id is None:
        console().print(_nothing(found))
    else:
        out = console()
        for line in _screen(found, out.width):
            out.print(line, cut=True)
        if found.found_as == "job":
            out.print(f"If you mean a key: forebay where --key {what}", style="dim")
    if found.job_id is None:
        raise SystemExit(ExitCode.FAILED)


def _nothing(found: Whereabouts) -> Text:
    if found.explanations:
        (reason,) = found.explanations
        text = Text(f"{sentence(reason.answer)}.", style="bold")
        return text.append(f"\n→ {reason.hint}" if reason.hint else "", style="not bold")
    text = Text(
        (
            f"No job has {found.what!r} as its correlation id or a key, no flow waits for a signal "
            f"with this key, and no subject of this name has run."
        ),
        style="bold",
    )
    text.append(
        "\n→ A flow that has got its signal waits for it no more: look for its job by another key"
        " or by its id.",
        style="not bold",
    )
    if not found.is_complete:
        text.append(
            "\n→ The newest 1,000,000 rows were searched. Search on with forebay jobs search.",
            style="not bold",
        )
    return text


def _screen(found: Whereabouts, width: int) -> Iterator[Text]:
    described = [job for job in found.jobs if job.job_id == found.job_id]
    others = list(dict.fromkeys(job.job_id for job in found.jobs if job.job_id != found.job_id))
    if others:
        more = "" if found.is_complete else " or more"
        yield Text(
            f"{counted(len(others) + 1, 'job')}{more} with {found.found_as} {found.what}",
            style="bold",
        )
        for job_id in others[:_OTHERS_MAX]:
            yield _other([job for job in found.jobs if job.job_id == job_id])
        if len(others) > _OTHERS_MAX:
            yield Text(f"  and {len(others) - _OTHERS_MAX} more", style="dim")
        yield Text()
    job = described[0]
    title = Text(f"job {job.job_id}  ", style="bold")
    yield title.append(call_text(job.kind, shown_args(job)), style="not bold")
    facts = list(_about(found, job))
    for one in described[:_GROUPS_MAX]:
        facts += _group(found, one, with_name=len(described) > 1)
    if len(described) > _GROUPS_MAX:
        facts.append(("", Text(f"and {counted(len(described) - _GROUPS_MAX, 'more group')}")))
    for name, value in facts:
        text = Text(value) if isinstance(value, str) else value
        # A sentence is whole: a command at its end must not be cut. Of everything else a line shows
        # the beginning.
        parts = [text] if text.no_wrap else text.lines(max(20, width - _INDENT))
        for number, part in enumerate(parts):
            yield Text.assemble((f"{'' if number else name:{_INDENT}}", "dim"), part)


def _other(jobs: Sequence[JobStatus]) -> Text:
    job = jobs[0]
    line = Text(f"  {job.job_id}  ")
    for number, one in enumerate(jobs[:_GROUPS_MAX]):
        line.append(" " if number else "").append(state_text(one.state))
    return line.append(
        f"  {ago(job.enqueued_at)}  {call_text(job.kind, shown_args(job))}", style="dim"
    )


def _about(found: Whereabouts, job: JobStatus) -> Iterator[tuple[str, str | Text]]:
    tags = [f"queue {job.queue}", f"priority {job.priority}"]
    if job.tag:
        tags.append(f"tag {job.tag}")
    if job.correlation_id:
        tags.append(f"correlation id {job.correlation_id}")
    yield "in", _cut(", ".join(tags))
    yield "made", _cut(_maker(job, found.attempts))
    if job.redriven_from is not None:
        yield "from", f"dead letter {job.redriven_from_dead_id} of job {job.redriven_from}"
    if (parent := found.family.parent) is not None:
        yield "parent", _cut(relative_text(parent))
    if children := children_text(found.family):
        yield "children", _cut(children)
    headers = dict(job.headers or {})
    headers.pop("forebay-parent", None)
    if "forebay-replayed-from" in headers:
        origin = headers.pop("forebay-replayed-from")
        yield "from", f"job {origin}, replay {headers.pop('forebay-replay', '-')}"
    if headers:
        yield "headers", _cut(compact(headers, 200))


def _maker(job: JobStatus, attempts: Sequence[JobAttempt]) -> str:
    first = next((one for one in attempts if one.is_first), None)
    text = moment(job.enqueued_at)
    if first is None:
        return f"{text}, to start later" if attempts or job.run_at else text
    others = (first.same_xid or 1) - 1
    with_it = f", with {counted(others, 'other job')}" if others else ""
    return f"by transaction {first.xid}{with_it}, {text}"


def _group(
    found: Whereabouts, job: JobStatus, *, with_name: bool
) -> Iterator[tuple[str, str | Text]]:
    history = next((one for one in found.histories if one.group == job.group), None)
    reason = next((one for one in found.explanations if one.group == job.group), None)
    state = state_text(job.state)
    if with_name:
        state = Text.assemble((f"group {job.group}: ", "bold"), state)
    if job.cancel_requested and not job.state.is_final:
        state.append(", cancellation requested", style="yellow")
    yield "state", state.append(f", attempt {attempt_of(job.attempt, job.max_attempts)}", "dim")
    # With several groups there is place for the newest attempt of each.
    yield from _attempts(found, job, history, most=2 if with_name else _ATTEMPTS_MAX)
    if history and history.progress and not job.state.is_final:
        done = history.progress
        yield "progress", _cut(f"{done.done:.0%} {done.note} ({ago(done.recorded_at)})")
    yield from _steps(found, job)
    if history and history.result:
        yield _result(history.result.value, history.result.problem)
    if reason is not None and not job.state.is_final:
        yield "runs" if job.state.is_held else "waits", reason.answer
    yield "next", Text(found.next_steps[job.group], style="bold")
    if not with_name:
        yield from _advice(job, reason)


def _steps(found: Whereabouts, job: JobStatus) -> Iterator[tuple[str, Text]]:
    for flow in found.flows:
        if flow.group == job.group and flow.steps:
            yield "steps", _cut(newest_step(flow))


def _advice(job: JobStatus, reason: Any) -> Iterator[tuple[str, str]]:
    if reason is not None and reason.hint and not job.state.is_final:
        yield "", f"→ {reason.hint}"


def _attempts(
    found: Whereabouts, job: JobStatus, history: JobHistory | None, most: int
) -> Iterator[tuple[str, Text]]:
    tries = [one for one in found.attempts if one.group == job.group and one.claimed_at is not None]
    errors = _errors_of(tries, history.errors if history else ())
    shown = tries[-most:] if len(tries) > most else tries
    if len(shown) < len(tries):
        yield "attempts", Text(f"{len(tries) - len(shown)} earlier ones", style="dim")
    before = None
    for one in shown:
        # A job that was lost or released comes again under the same number.
        name = f"{one.attempt} again" if one.attempt == before else f"attempt {one.attempt}"
        yield name, _attempt(one, errors.get(one.claimed_at))
        before = one.attempt


def _errors_of(
    tries: Sequence[JobAttempt], errors: Sequence[Failure]
) -> dict[datetime | None, Failure]:
    """Return the error of each run, by the time of its claim. Runs may have the same number, as
    those of a job whose worker was lost: an error is that of the last run that was claimed before.
    """
    found: dict[datetime | None, Failure] = {}
    for error in errors:
        own = [
            one.claimed_at
            for one in tries
            if one.attempt == error.attempt
            and one.claimed_at is not None
            and one.claimed_at <= error.failed_at
        ]
        if own:
            found[max(own)] = error
    return found


def _attempt(one: JobAttempt, error: Failure | None) -> Text:
    assert one.claimed_at is not None
    at = one.claimed_at.astimezone().strftime("%H:%M:%S")
    if (datetime.now(one.claimed_at.tzinfo) - one.claimed_at).days:
        at = one.claimed_at.astimezone().strftime("%Y-%m-%d %H:%M:%S")
    outcome = one.outcome or "in a worker"
    line = Text(no_wrap=True)
    line.append(f"{at} ").append(outcome, style=_STYLES.get(outcome, "cyan"))
    if one.millis is not None:
        line.append(f" after {human_duration(one.millis / 1000)}", style="dim")
    elif one.ended_at is not None and one.ended_at > one.claimed_at:
        length = human_duration((one.ended_at - one.claimed_at).total_seconds())
        line.append(f" within {length}", style="dim")
    what = ": ".join(part for part in (error.type, error.message) if part) if error else ""
    if what and one.outcome in ("retried", "dead", "unknown", "lost"):
        line.append(f"  {what.partition(chr(10))[0]}", style="red")
    if one.worker:
        line.append(f"  {one.worker}", style="dim")
    return line


def _cut(text: str) -> Text:
    """Return a text of which one line is shown."""
    return Text(text.partition("\n")[0], no_wrap=True)


def _result(value: Any, problem: str | None) -> tuple[str, Text]:
    """Return what the handler returned; of a delivery, what the far side has confirmed."""
    if problem is not None:
        return "result", _cut(problem)
    found = cast("dict[str, Any]", value) if isinstance(value, dict) else {}
    if found.keys() >= {"response", "proof", "is_duplicate"}:
        parts = [f"{name} {_plain(found[name])}" for name in ("proof", "response") if found[name]]
        text = ", ".join(parts) or "accepted"
        return "far side", _cut(text + (", known there already" if found["is_duplicate"] else ""))
    return "result", _cut(_plain(cast("object", value)))


def _plain(value: object) -> str:
    """Return a text as it is, and all else as the beginning of its JSON."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)[:200]
