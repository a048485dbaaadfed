"""forebay dead: dead letters.

List, show, groups, summary, redrive, skip, keep, purge, mute, unmute.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

from forebay.cli._acts import agreed
from forebay.cli._commands import Commands, Together, argument, option
from forebay.cli._database import client_of
from forebay.cli._patience import patience
from forebay.cli._steps import From, step_of
from forebay.cli.exit import ExitCode
from forebay.cli.options import (
    DiedAfter,
    DiedBefore,
    Dsn,
    Group,
    How,
    Json,
    Kind,
    Limit,
    Queue,
    Tag,
    ToGroup,
    duration,
    instant_or_age,
)
from forebay.cli.output import (
    ago,
    copied,
    facts_table,
    failure_headline,
    json_text,
    moment,
    one_line,
    options_shown,
    print_json,
    table,
)
from forebay.cli.text import Table, Text, console
from forebay.errors import ConfigError, DeadLetterNotFound
from forebay.model.text import attempt_of, counted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from forebay.client import Client
    from forebay.model.status import DeadGroup, DeadLetter, PurgePlan, RedrivePlan

commands = Commands()

ReasonOption = Annotated[
    str | None, option("--reason REASON", "exhausted, permanent, expired or 'worker lost'.")
]

Job = Annotated[int | None, option("--job JOB_ID", "Only of this job.")]

EndpointOption = Annotated[
    str | None, option("--endpoint ENDPOINT", "Only deliveries to this endpoint.")
]

Cause = Annotated[str | None, option("--cause CAUSE", "Only this cause, from `dead groups`.")]


def _filters(
    *,
    queue: Queue = None,
    kind: Kind = None,
    reason: ReasonOption = None,
    tag: Tag = None,
    group: Group = None,
    job: Job = None,
    cause: Cause = None,
    endpoint: EndpointOption = None,
    died_after: DiedAfter = None,
    died_before: DiedBefore = None,
) -> dict[str, Any]:
    return {
        "queue": queue,
        "kind": kind,
        "reason": reason,
        "tag": tag,
        "group": group,
        "job_id": job,
        "cause": cause,
        "endpoint": endpoint,
        "died_after": instant_or_age(died_after, "--died-after"),
        "died_before": instant_or_age(died_before, "--died-before"),
    }


Filters = Annotated[dict[str, Any], Together(_filters)]

OneCause = Annotated[str, argument("CAUSE", "From `forebay dead groups`.")]


@commands.add("list")
def list_(
    *,
    filters: Filters,
    redriven: Annotated[
        bool, option("--redriven", "Only redriven ones, with the new jobs.")
    ] = False,
    all_: Annotated[bool, option("--all", "Redriven ones too.")] = False,
    limit: Limit = 50,
    before: Annotated[
        int | None, option("--before DEAD_ID", "Next page: the last id of this page.")
    ] = None,
    dsn: Dsn = None,
    as_json: Json = False,
) -> None:
    """List dead letters that were not redriven, newest first."""
    if redriven and all_:
        raise ConfigError("dead list", "takes --redriven or --all, not both")
    which: Literal[True, "any"] | None = True if redriven else "any" if all_ else None
    found = client_of(dsn).dead_letters(redriven=which, limit=limit, before=before, **filters)
    if as_json:
        print_json(found)
        return
    out = console()
    if not found:
        out.print("No dead letters.", style="dim")
        return
    with_new_job = any(letter.redriven_as is not None for letter in found)
    rows = table(
        "dead", "job", *(["new job"] if with_new_job else []), "kind", "queue", "reason", "attempt",
        "died", "last error",
        right=("dead", "job", "new job", "attempt"), loose=("kind", "queue", "last error"),
    )  # fmt: skip
    for letter in found:
        rows.add_row(
            str(letter.dead_id),
            str(letter.job_id),
            *([str(letter.redriven_as or "-")] if with_new_job else []),
            letter.kind,
            _queue(letter),
            Text(letter.reason, style="red"),
            attempt_of(letter.attempt, letter.max_attempts),
            ago(letter.died_at),
            one_line(_last_error(letter)),
        )
    out.print(rows)
    if len(found) >= limit:
        out.print(f"next page: --before {found[-1].dead_id}", style="dim")


@commands.add("show")
def show(
    dead_id: Annotated[int | None, argument("[DEAD_ID]", "From `forebay dead list`.")] = None,
    *,
    job: Annotated[
        int | None, option("--job JOB_ID", "The job that died, instead of DEAD_ID.")
    ] = None,
    dsn: Dsn = None,
    as_json: Json = False,
) -> None:
    """Show one dead letter with its arguments and every error, or those of a job in all its
    groups.
    """
    if (dead_id is None) == (job is None):
        raise ConfigError(
            "dead show",
            "takes DEAD_ID or --job: exactly one of them",
            hint="`forebay dead show 7`, or `forebay dead show --job 4`.",
        )
    client = client_of(dsn)
    if dead_id is not None:
        letter = client.dead_letter(dead_id)
        if as_json:
            print_json(letter)
        else:
            _print_letter(client, letter)
        return
    assert job is not None
    found = client.dead_letters(job_id=job)
    if not found:
        raise DeadLetterNotFound.from_sql(
            f"there is no dead letter of job {job}",
            hint=(
                f"The job did not die, or its dead letter was deleted. See `forebay jobs show "
                f"{job}`."
            ),
        )
    if as_json:
        print_json(found)
        return
    for number, letter in enumerate(found):
        if number:
            console().print()
        _print_letter(client, letter)


def _print_letter(client: Client, letter: DeadLetter) -> None:
    out = console()
    rows = _facts(letter)
    for flow in client.flow(letter.job_id) if letter.redriven_as is None else ():
        if flow.group == letter.group and flow.died_of is not None:
            rows.add_row("next", flow.died_of.advice)
    out.print(rows)
    if letter.args:
        out.print(Text("arguments", style="bold"))
        from forebay.model.status import shown_args

        out.print(json_text(shown_args(letter)))
    for failure in letter.errors:
        out.print()
        out.print(failure_headline(failure))
        if failure.traceback:
            out.print(Text(failure.traceback.rstrip(), style="dim"), indent=2)


@commands.add("groups")
def groups(
    *,
    queue: Queue = None,
    kind: Kind = None,
    cause: Cause = None,
    endpoint: EndpointOption = None,
    dsn: Dsn = None,
    as_json: Json = False,
) -> None:
    """Group dead letters that were not redriven by cause: kind, class of the error, and function
    that raised it. Deliveries are grouped by endpoint too.

    The last column is the id of the newest dead letter, for `dead show`; the line below has the
    function and the message of its last error.
    """
    found = client_of(dsn).dead_groups(queue=queue, kind=kind, cause=cause, endpoint=endpoint)
    if as_json:
        print_json(found)
        return
    out = console()
    if not found:
        out.print("No dead letters.", style="dim")
        return
    with_endpoint = any(each.endpoint is not None for each in found)
    rows = table(
        "cause", "jobs", *(["endpoint"] if with_endpoint else []), "kind", "error", "first", "last",
        "newest id", right=("jobs", "newest id"), loose=("endpoint", "kind", "error"),
    )  # fmt: skip
    for each in found:
        name = (each.error_type or "").rpartition(".")[2] or each.reason
        rows.add_row(
            each.cause,
            f"{each.jobs:,}",
            *([each.endpoint or "-"] if with_endpoint else []),
            each.kind,
            Text(name, style="dim" if each.is_muted else "red"),
            ago(each.first_at),
            ago(each.last_at),
            str(each.dead_id),
        )
    out.print(rows)
    out.print()
    for each in {each.cause: each for each in reversed(found)}.values():
        out.print(f"{each.cause}  {_line_of(each).plain}", cut=True)
    out.print(f"→ {_next_of(found)}", style="dim", soft_wrap=True)


def _line_of(group: DeadGroup) -> Text:
    """Return the place, the message and whether its deaths are expected."""
    muted = ""
    if group.is_muted:
        muted = f"muted until {moment(group.muted_until)}" if group.muted_until else "muted"
    message = (group.message or "").strip().partition("\n")[0]
    place = f"in {group.place}" if group.place else ""
    if group.died_of is not None:
        # The place is where the parent waited, or no code of the application.
        cause = group.died_of.cause or f"the end of job {group.died_of.job_id}"
        place = f"a consequence of {cause}"
    return one_line(": ".join(part for part in (place, message, muted) if part) or group.reason)


def _next_of(found: Sequence[DeadGroup]) -> str:
    """Return what to do first: a parent follows its children, which a filter may have left out."""
    for group in found:
        if group.died_of is None:
            return (
                f"forebay dead show {group.dead_id}; after a fix: forebay dead redrive --cause"
                f" {group.cause}"
            )
    first = found[0].died_of
    assert first is not None
    return f"forebay dead groups --cause {first.cause}" if first.cause else first.advice


@commands.add("mute")
def mute(
    cause: OneCause,
    *,
    duration_: Annotated[
        str | None, option("--for TIME", "2d, 6h. Default: until unmuted.")
    ] = None,
    dsn: Dsn = None,
    as_json: Json = False,
) -> None:
    """Expect the deaths of a cause: log them as information instead of as errors, and do not
    report them in the doctor.

    They are recorded and counted as before. Workers know it from their next heartbeat on.
    """
    until = client_of(dsn).mute_cause(
        cause, None if duration_ is None else duration(duration_, "--for")
    )
    if as_json:
        print_json({"cause": cause, "muted_until": until})
    else:
        console().print(f"cause {cause} is muted" + (f" until {moment(until)}" if until else ""))


@commands.add("unmute")
def unmute(cause: OneCause, *, dsn: Dsn = None, as_json: Json = False) -> None:
    """Let the deaths of a cause be errors in the log again."""
    was_muted = client_of(dsn).unmute_cause(cause)
    if as_json:
        print_json({"cause": cause, "was_muted": was_muted})
    else:
        console().print(
            f"cause {cause} is not muted any more" if was_muted else f"cause {cause} was not muted"
        )
    if not was_muted:
        raise SystemExit(ExitCode.FAILED)


@commands.add("summary")
def summary(
    *,
    queue: Queue = None,
    endpoint: EndpointOption = None,
    dsn: Dsn = None,
    as_json: Json = False,
) -> None:
    """Count dead letters by queue or endpoint, kind, reason and error, with those that were
    redriven and deleted.

    Open are those that exist and were not redriven. --json has the first and the last death, too.
    """
    found = client_of(dsn).dead_summary(queue, endpoint=endpoint)
    if as_json:
        print_json(found)
        return
    out = console()
    if not found:
        out.print("No dead letters.", style="dim")
        return
    rows = table(
        "queue", "kind", "reason", "last error", "open", "redriven", "deleted", "last",
        right=("open", "redriven", "deleted"), loose=("queue", "kind", "last error"),
    )  # fmt: skip
    for line in found:
        rows.add_row(
            line.queue if line.endpoint is None else f"endpoint {line.endpoint}",
            line.kind,
            Text(line.reason, style="red"),
            one_line(line.error_type.rpartition(".")[2] or "-"),
            f"{line.not_redriven:,}",
            f"{line.redriven:,}",
            f"{line.deleted:,}",
            ago(line.newest_at) if line.newest_at else line.last_died_on.isoformat(),
        )
    out.print(rows)


@commands.add("keep")
def keep(
    *,
    queue: Queue = None,
    days: Annotated[
        int | None, option("--days N", "Delete after N days.", min=1, max=36_500)
    ] = None,
    forever: Annotated[bool, option("--forever", "Never delete them.")] = False,
    inherit: Annotated[bool, option("--inherit", "Remove the setting of the queue.")] = False,
    dsn: Dsn = None,
    as_json: Json = False,
) -> None:
    """Set how long dead letters are kept: of all queues, or of one. Default: forever.

    Workers delete older dead letters, redriven or not, and count them: see `forebay dead summary`.
    """
    if (days is not None) + forever + inherit != 1:
        raise ConfigError(
            "dead keep",
            "takes --days, --forever or --inherit: exactly one of them",
            hint="`forebay dead keep --days 90`, or `forebay dead keep --queue mail --forever`.",
        )
    if inherit and queue is None:
        raise ConfigError("dead keep", "--inherit needs --queue")
    before = client_of(dsn).keep_dead(queue, days=days, inherit=inherit)
    if as_json:
        print_json({"queue": queue, "days": days, "inherit": inherit, "before": before})
        return
    which = f"queue {queue}" if queue else "all queues without their own setting"
    rule = f"{days:,} days" if days else "forever" if forever else "like other queues"
    console().print(f"dead letters of {which} are kept {rule if not days else 'for ' + rule}")


@commands.add("redrive")
def redrive(
    dead_ids: Annotated[
        list[int] | None, argument("[DEAD_ID]...", "Dead letters to redrive.")
    ] = None,
    *,
    all_: Annotated[bool, option("--all", "All that are not redriven yet.")] = False,
    filters: Filters,
    limit: Annotated[int | None, option("--limit N", "Maximum number.")] = None,
    to_group: ToGroup = None,
    from_: From = None,
    how: How,
) -> None:
    """Enqueue new jobs from dead letters: by id, by filter, or all.

    Jobs are enqueued in their original order. A dead letter can be redriven once. A flow continues
    behind its steps; with --from, for ids only, it does that step and all later ones again. A
    filter works in steps; after an interruption, the same command finishes.
    """
    filters["limit"] = limit
    given = any(value is not None for value in filters.values())
    if bool(dead_ids) + all_ + (given and not all_) != 1:
        raise ConfigError(
            "dead redrive",
            "takes ids, --all or filters: exactly one of them",
            hint="`forebay dead redrive --kind send_mail`, or `forebay dead redrive 7 8`.",
        )
    client = client_of(how.dsn)
    if dead_ids:
        if how.dry_run or how.token:
            raise ConfigError("dead redrive", "takes --dry-run and --token with a filter only")
        step, key = (None, None) if from_ is None else step_of(from_)
        made = {
            dead_id: client.redrive(dead_id, to_group=to_group, from_step=step, from_key=key)
            for dead_id in dead_ids
        }
        if how.as_json:
            print_json([{"dead_id": dead, "job_id": new} for dead, new in made.items()])
            return
        for dead, new in made.items():
            console().print(f"redriven dead letter {dead} as job {new}")
        return
    if from_ is not None:
        raise ConfigError("--from", "needs the ids of dead letters", value=from_)
    filters["to_group"] = to_group
    token = agreed(
        how,
        lambda: client.plan_redrive(**filters),
        lambda plan: f"Redrive {counted(plan.jobs, 'dead letter')}?",
        _print_redrive_plan,
    )
    with patience("redrive", "run the same command again to finish it") as progress:
        count = client.redrive_matching(
            **filters, token=token, progress=lambda done: progress.note(done, "dead letter")
        )
    if how.as_json:
        print_json({"redriven": count})
    else:
        console().print(f"redriven dead letters: {count:,}")


def _print_redrive_plan(plan: RedrivePlan) -> None:
    rows = facts_table()
    rows.add_row("would redrive", Text(counted(plan.jobs, "dead letter"), "bold"))
    if plan.jobs:
        rows.add_row("died", f"{ago(plan.oldest_at)} to {ago(plan.newest_at)}")
    rows.add_row("token", copied(plan.token))
    console().print(rows)


@commands.add("skip")
def skip(
    dead_ids: Annotated[list[int], argument("DEAD_ID...", "Dead letters that hold their key.")],
    *,
    dsn: Dsn = None,
    as_json: Json = False,
) -> None:
    """Free the ordering keys that dead letters hold, without running their jobs.

    The dead letters stay.
    """
    client = client_of(dsn)
    held = {dead_id: client.skip_dead(dead_id) for dead_id in dead_ids}
    if as_json:
        print_json([{"dead_id": dead, "held_key": was} for dead, was in held.items()])
        return
    for dead, was in held.items():
        what = "its ordering key is free" if was else "it holds no ordering key"
        console().print(f"dead letter {dead}: {what}")


@commands.add("purge")
def purge(
    *,
    older_than: Annotated[
        str | None,
        option("--older-than AGE", "Minimum age: 30d, 12h, 90 (seconds). Needed without --cause."),
    ] = None,
    queue: Queue = None,
    cause: Cause = None,
    how: How,
) -> None:
    """Delete old dead letters, or those of a cause, permanently, now.

    All at once, or none. See `forebay dead keep` for a rule.
    """
    if older_than is None and cause is None:
        raise ConfigError("dead purge", "needs --older-than or --cause")
    age = 0.0 if older_than is None else duration(older_than, "older_than")
    assert age is not None
    which = f" of queue {queue}" if queue else ""
    which += f" of cause {cause}" if cause else ""
    which += f" older than {older_than}" if older_than else ""
    client = client_of(how.dsn)
    token = agreed(
        how,
        lambda: client.plan_purge_dead(age, queue=queue, cause=cause),
        lambda plan: f"Delete {counted(plan.jobs, 'dead letter')}{which}?",
        _print_purge_plan,
    )
    with patience("purge", "nothing is deleted: run the same command again"):
        count = client.purge_dead(age, queue=queue, cause=cause, token=token)
    if how.as_json:
        print_json({"purged": count})
    else:
        console().print(f"deleted dead letters: {count:,}")


def _print_purge_plan(plan: PurgePlan) -> None:
    rows = facts_table()
    rows.add_row("would delete", Text(counted(plan.jobs, "dead letter"), "bold"))
    if plan.jobs:
        rows.add_row("redriven", f"{plan.redriven:,} of them")
        rows.add_row("died", f"{ago(plan.oldest_at)} to {ago(plan.newest_at)}")
    rows.add_row("token", copied(plan.token))
    console().print(rows)


def _queue(letter: DeadLetter) -> str:
    if letter.endpoint is not None:
        return f"endpoint {letter.endpoint}"
    return letter.queue if letter.group == "default" else f"{letter.queue}/{letter.group}"


def _last_error(letter: DeadLetter) -> str:
    if not letter.errors:
        return "-"
    last = letter.errors[-1]
    line = (last.message or "").strip().partition("\n")[0]
    # In a list the message has little place.
    name = (last.type or "").removeprefix("forebay.errors.")
    return ": ".join(part for part in (name, line) if part) or last.outcome


def _facts(letter: DeadLetter) -> Table:
    rows = facts_table()
    rows.add_row("dead letter", Text(str(letter.dead_id), style="bold"))
    rows.add_row("job", f"{letter.job_id}  {letter.kind}")
    rows.add_row("reason", Text(letter.reason, style="red"))
    rows.add_row("cause", f"{letter.cause}{f'  in {letter.place}' if letter.place else ''}")
    rows.add_row("queue", f"{letter.queue}, priority {letter.priority}, group {letter.group}")
    if letter.endpoint is not None:
        rows.add_row("endpoint", letter.endpoint)
    rows.add_row("attempt", attempt_of(letter.attempt, letter.max_attempts))
    rows.add_row("enqueued", moment(letter.enqueued_at))
    rows.add_row("died", moment(letter.died_at))
    for name, value in options_shown(letter):
        rows.add_row(name, value)
    if letter.ordering_key is not None:
        what = "" if not letter.holds_key else ", which this letter holds: later jobs wait"
        rows.add_row("ordering key", f"{letter.ordering_key}{what}")
    if letter.redriven_as is not None:
        rows.add_row("redriven", f"as job {letter.redriven_as}, {moment(letter.redriven_at)}")
    return rows
