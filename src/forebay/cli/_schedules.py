"""forebay schedules: create, preview, pause, run and backfill schedules."""

from __future__ import annotations

import json
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

from forebay.cli._acts import agreed
from forebay.cli._commands import Commands, argument, option
from forebay.cli._database import client_of
from forebay.cli._patience import patience
from forebay.cli.options import Dsn, How, Json, duration, instant, instant_or_age, json_object
from forebay.cli.output import WIDE, ago, clock, facts_table, moment, one_line, print_json, table
from forebay.cli.text import Text, console
from forebay.errors import ConfigError
from forebay.model.schedules import ScheduleDifference
from forebay.model.text import counted
from forebay.policy.retry import human_duration

if TYPE_CHECKING:
    from forebay.model.schedules import ScheduleStatus

commands = Commands()

Name = Annotated[str, argument("SCHEDULE", "The schedule.")]


From = Annotated[str | None, option("--from TIME", "ISO 8601. Default: now.")]
To = Annotated[str | None, option("--to TIME", "ISO 8601; before it.")]


@commands.add("list")
def list_(*, dsn: Dsn = None, as_json: Json = False) -> None:
    """List the schedules, with their last decision."""
    found = client_of(dsn).schedules()
    if as_json:
        print_json(found)
        return
    out = console()
    if not found:
        out.print("No schedules. `forebay apply MODULE:APP` applies declared ones.", style="dim")
        return
    rows = table("schedule", "kind", "when", "last", "state", loose=("schedule", "kind", "state"))
    for each in found:
        last = "-" if each.last_for is None else f"{ago(each.last_for)}, {each.last_status}"
        rows.add_row(each.name, each.kind, _when(each), last, _state(each))
    out.print(rows)


@commands.add("show")
def show(name: Name, *, dsn: Dsn = None, as_json: Json = False) -> None:
    """Show the definition and the state of a schedule."""
    found = client_of(dsn).schedule(name)
    if as_json:
        print_json(found)
        return
    rows = facts_table()
    for fact, value in (
        ("schedule", found.name),
        ("state", _state(found)),
        ("when", _when(found)),
        ("from", moment(found.starts_at)),
        ("job", f"{found.kind} in queue {found.queue or 'of its kind'}, priority {found.priority}"),
        ("args", json.dumps(found.args)),
        ("options", json.dumps(found.options)),
        ("jitter", human_duration(found.jitter) if found.jitter else "-"),
        ("overlap", found.overlap + (", pause on failure" if found.pause_on_failure else "")),
        (
            "missed",
            f"{found.missed}, within {human_duration(found.catch_up)}, {found.missed_max:,}",
        ),
        ("declared by", found.declared_by or "-"),
        ("decided to", moment(found.decided_to)),
        ("decisions", f"{found.decisions:,}"),
    ):
        rows.add_row(fact, value)
    console().print(rows)


@commands.add("create")
def create(
    name: Name,
    kind: Annotated[str, argument("KIND", "The kind of its jobs.")],
    cron: Annotated[str | None, argument("[CRON]", 'As "0 9 * * MON-FRI".')] = None,
    *,
    every: Annotated[str | None, option("--every TIME", "Instead of CRON: 90, 15m, 2h.")] = None,
    tz: Annotated[str, option("--tz ZONE", "Time zone.")] = "UTC",
    args: Annotated[str | None, option("--args JSON", "Arguments of its jobs.")] = None,
    queue: Annotated[str | None, option("--queue QUEUE", "Default: that of the kind.")] = None,
    overlap: Annotated[
        str, option("--overlap RULE", "allow, skip, queue, cancel, replace.")
    ] = "skip",
    missed: Annotated[str, option("--missed RULE", "skip, latest or all.")] = "latest",
    jitter: Annotated[str | None, option("--jitter TIME", "Start up to this late.")] = None,
    options: Annotated[str | None, option("--options JSON", "Options of its jobs.")] = None,
    dsn: Dsn = None,
    as_json: Json = False,
) -> None:
    """Create a schedule, or replace its definition."""
    given: dict[str, Any] = {"overlap": overlap, "missed": missed, "tz": tz, "queue": queue}
    if jitter is not None:
        given["jitter"] = duration(jitter, "--jitter")
    result = client_of(dsn).create_schedule(
        name,
        kind,
        cron,
        every=duration(every, "--every"),
        args=json_object(args, "--args"),
        options=json_object(options, "--options"),
        **given,
    )
    if as_json:
        print_json({"schedule": name, "result": result})
    else:
        console().print(f"schedule {name}: {result}")


@commands.add("drop")
def drop(name: Name, *, dsn: Dsn = None, as_json: Json = False) -> None:
    """Drop a schedule with its history. Its jobs stay."""
    dropped = client_of(dsn).drop_schedule(name)
    if as_json:
        print_json({"schedule": name, "dropped": dropped})
    else:
        console().print(f"schedule {name}: {'dropped' if dropped else 'does not exist'}")


@commands.add("pause")
def pause(
    name: Name,
    *,
    note: Annotated[str | None, option("--note TEXT", "Why, for people.")] = None,
    dsn: Dsn = None,
    as_json: Json = False,
) -> None:
    """Pause a schedule. Jobs that it enqueued run."""
    changed = client_of(dsn).pause_schedule(name, note)
    if as_json:
        print_json({"schedule": name, "changed": changed})
    else:
        console().print(f"schedule {name}: {'paused' if changed else 'was paused already'}")


@commands.add("resume")
def resume(name: Name, *, dsn: Dsn = None, as_json: Json = False) -> None:
    """Resume a schedule. Instants of the pause are not caught up."""
    changed = client_of(dsn).resume_schedule(name)
    if as_json:
        print_json({"schedule": name, "changed": changed})
    else:
        console().print(f"schedule {name}: {'resumed' if changed else 'was not paused'}")


@commands.add("run")
def run(name: Name, *, dsn: Dsn = None, as_json: Json = False) -> None:
    """Enqueue a job of a schedule now, also if it is paused."""
    job_id = client_of(dsn).run_schedule(name)
    if as_json:
        print_json({"schedule": name, "job_id": job_id})
    else:
        console().print(f"enqueued job {job_id} of schedule {name}")


@commands.add("history")
def history(
    name: Name,
    *,
    limit: Annotated[int, option("--limit N", "Maximum number of rows.")] = 20,
    before: Annotated[
        str | None, option("--before TIME", "Earlier instants; an age, or ISO 8601.")
    ] = None,
    dsn: Dsn = None,
    as_json: Json = False,
) -> None:
    """List decisions of a schedule, newest first."""
    found = client_of(dsn).schedule_history(
        name, limit=limit, before=instant_or_age(before, "--before")
    )
    if as_json:
        print_json(found)
        return
    rows = table(
        "instant", "number", "status", "job", "reason", right=("number",), loose=("reason",)
    )
    out = console()
    at = moment if out.width >= WIDE else clock
    for each in found:
        reason = each.reason or "-"
        if each.instants > 1:
            reason = f"{each.instants:,} instants, {reason}"
        job = "-" if each.job_id is None else str(each.job_id)
        rows.add_row(
            at(each.scheduled_for), f"{each.occurrence:,}", each.status, job, one_line(reason)
        )
    out.print(rows if found else Text("No decisions.", style="dim"))


@commands.add("preview")
def preview(
    name: Name,
    *,
    start: From = None,
    end: To = None,
    limit: Annotated[int, option("--limit N", "Maximum number of rows.")] = 20,
    dsn: Dsn = None,
    as_json: Json = False,
) -> None:
    """Show the instants of a schedule, by the clock of the database."""
    found = client_of(dsn).preview_schedule(
        name, instant(start, "--from"), instant(end, "--to"), limit=limit
    )
    if as_json:
        print_json(found)
        return
    rows = table("instant", "job starts", "decided")
    out = console()
    at = moment if out.width >= WIDE else clock
    for each in found:
        rows.add_row(at(each.scheduled_for), at(each.starts_at), each.status or "-")
    out.print(rows if found else Text("No instants.", style="dim"))


@commands.add("backfill")
def backfill(
    name: Name,
    *,
    start: Annotated[str, option("--from TIME", "ISO 8601.")],
    end: Annotated[str, option("--to TIME", "ISO 8601; before it.")],
    how: How,
) -> None:
    """Enqueue jobs for past instants that have none."""
    client, begin, until = client_of(how.dsn), _required(start, "--from"), _required(end, "--to")
    token = agreed(
        how,
        lambda: client.backfill_schedule(name, begin, until),
        lambda plan: f"Enqueue {counted(plan.jobs, 'job')} of schedule {name}?",
        lambda plan: console().print(
            f"{counted(plan.jobs, 'job')}; to enqueue them, add --token {plan.token}",
            soft_wrap=True,
        ),
    )
    with patience("backfill", "nothing is enqueued: run the same command again"):
        # Without a token it counts.
        token = token or client.backfill_schedule(name, begin, until).token
        done = client.backfill_schedule(name, begin, until, token=token)
    if how.as_json:
        print_json(done)
    else:
        console().print(f"enqueued {counted(done.jobs, 'job')} of schedule {name}")


def print_schedules(differences: list[ScheduleDifference], *, dry_run: bool) -> None:
    """Print what was done about each declared schedule, or would be."""
    words = {
        "create": "would create" if dry_run else "created",
        "change": "would change" if dry_run else "changed",
        "kept": "kept: changed by hand",
        "vanished": "not declared any more, still runs: forebay schedules drop",
    }
    out = console()
    for each in differences:
        text = words.get(each.action, f"kept: {each.detail}")
        out.print(f"schedule {each.name}: {text}")


def _required(text: str, name: str) -> datetime:
    found = instant(text, name)
    if found is None:
        raise ConfigError(name, "is empty")
    return found


def _when(each: ScheduleStatus) -> str:
    if each.every is not None:
        return f"every {human_duration(each.every)}"
    return f"{each.cron} {each.tz}"


def _state(each: ScheduleStatus) -> Text:
    if each.problem is not None:
        return Text(f"problem: {each.problem}", style="red")
    if each.paused_at is not None:
        note = f": {each.pause_note}" if each.pause_note else ""
        return Text(f"paused {ago(each.paused_at)}{note}", style="yellow")
    if each.vanished_at is not None:
        return Text(f"not declared any more, {ago(each.vanished_at)}", style="yellow")
    return Text("active", style="green")
