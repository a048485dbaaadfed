"""forebay queues: drop and redact a queue."""

from __future__ import annotations

from typing import Annotated, Final

from forebay.cli._commands import argument, option
from forebay.cli._database import client_of
from forebay.cli._groups import are_closed
from forebay.cli._patience import patience
from forebay.cli.exit import ExitCode
from forebay.cli.options import DryRun, Dsn, Json, Token, Yes, confirmed, instant_or_age
from forebay.cli.output import facts_table, print_json
from forebay.cli.text import console
from forebay.model.change import JobFilter
from forebay.model.groups import DroppedQueue
from forebay.model.text import counted

#: A line of progress each time that this many rows more were erased.
_SHOWN_EVERY: Final = 10_000

Name = Annotated[str, argument("QUEUE", "The queue.")]


def drop(
    queue: Name,
    *,
    force: Annotated[bool, option("--force", "Drop it although workers serve it.")] = False,
    wait: Annotated[
        float, option("--wait SECONDS", "How long to wait for its running jobs.", min=0)
    ] = 30.0,
    dry_run: DryRun = False,
    token: Token = None,
    yes: Yes = False,
    dsn: Dsn = None,
    as_json: Json = False,
) -> None:
    """Drop a queue: cancel what waits, close its consumer groups, remove its settings.

    Dead letters stay.

    Running jobs finish. A job that is enqueued later makes the queue anew. Without workers, the
    command does all steps itself. If it is interrupted, the workers continue.
    """
    client = client_of(dsn)
    if dry_run or not (yes or token):
        with patience("counting"):
            plan = client.plan_change("truncate", JobFilter(queue=queue))
        report = client.drop_queue(queue, force=force, dry_run=True)
        if dry_run:
            _print_plan(queue, report, plan.token, as_json)
            return
        what = f"Drop queue {queue} and cancel {counted(plan.jobs, 'job')}?"
        if not confirmed(what):
            raise SystemExit(ExitCode.FAILED)
        token = plan.token
    report = client.drop_queue(queue, token=token, force=force)
    is_closed = are_closed(queue, report.groups, dsn, wait)
    if as_json:
        print_json({"queue": queue, "dropped": is_closed, **_facts(report)})
    elif is_closed:
        console().print(f"dropped queue {queue}: {counted(report.cancelled, 'job')} cancelled")
    else:
        console().print(f"queue {queue} is dropped when its running jobs have ended")
    if not is_closed:
        raise SystemExit(ExitCode.FAILED)


def redact(
    queue: Name,
    *,
    older_than: Annotated[
        str | None,
        option(
            "--older-than TIME",
            "Only of jobs enqueued before: an age such as 7d, or ISO 8601. Default: now.",
        ),
    ] = None,
    dead: Annotated[
        bool, option("--dead", "Delete dead letters, too. They cannot be redriven then.")
    ] = False,
    yes: Yes = False,
    dsn: Dsn = None,
    as_json: Json = False,
) -> None:
    """Erase arguments, headers, results and error messages of a queue's ended jobs.

    Ids, kinds, keys, times and states stay.

    The command works in steps; after an interruption, the same command finishes. It cannot erase
    what was copied before: WAL, backups and logical replicas.
    """
    before = instant_or_age(older_than, "--older-than")
    if not yes and not confirmed(f"Erase what ended jobs of queue {queue} have brought with them?"):
        raise SystemExit(ExitCode.FAILED)
    shown = 0

    def progress(redacted: int) -> None:
        nonlocal shown
        if redacted >= shown + _SHOWN_EVERY and not as_json:
            shown = redacted
            console(stderr=True).print(f"{counted(redacted, 'row')} so far", style="dim")

    redacted = client_of(dsn).redact_queue(queue, before=before, dead=dead, progress=progress)
    if as_json:
        print_json({"queue": queue, "redacted": redacted})
        return
    out = console()
    out.print(f"queue {queue}: {counted(redacted, 'row')} erased")
    if redacted:
        out.print(
            (
                "→ old versions of the rows stay in the data files until vacuum; WAL, backups "
                "and logical replicas keep their copies"
            ),
            soft_wrap=True,
        )


def _facts(report: DroppedQueue) -> dict[str, object]:
    return {
        "cancelled": report.cancelled,
        "running": report.running,
        "groups": report.groups,
        "settings": report.settings,
    }


def _print_plan(queue: str, report: DroppedQueue, token: str, as_json: bool) -> None:
    if as_json:
        print_json({"queue": queue, "token": token, **_facts(report)})
        return
    rows = facts_table()
    rows.add_row("would drop", queue)
    rows.add_row("would cancel", counted(report.cancelled, "job"))
    rows.add_row("running", counted(report.running, "job"))
    rows.add_row("groups", ", ".join(report.groups) or "none")
    rows.add_row("settings", ", ".join(report.settings) or "none")
    rows.add_row("token", token)
    console().print(rows)
