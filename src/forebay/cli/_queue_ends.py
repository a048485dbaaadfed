"""forebay queues: drop and redact a queue."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

from forebay._dataclass import dataclass
from forebay.cli._acts import agreed
from forebay.cli._commands import argument, option
from forebay.cli._database import client_of
from forebay.cli._groups import are_closed
from forebay.cli._patience import patience
from forebay.cli.exit import ExitCode
from forebay.cli.options import Dsn, How, Json, Yes, confirmed, instant_or_age
from forebay.cli.output import copied, facts_table, print_json
from forebay.cli.text import console
from forebay.model.change import JobFilter
from forebay.model.groups import DroppedQueue
from forebay.model.text import counted

Name = Annotated[str, argument("QUEUE", "The queue.")]


def drop(
    queue: Name,
    *,
    force: Annotated[bool, option("--force", "Drop it although workers serve it.")] = False,
    wait: Annotated[
        float, option("--wait SECONDS", "How long to wait for its running jobs.", min=0)
    ] = 30.0,
    how: How,
) -> None:
    """Drop a queue: cancel what waits, close its consumer groups, remove its settings.

    Dead letters stay.

    Running jobs finish. A job that is enqueued later makes the queue anew. Without workers, the
    command does all steps itself. If it is interrupted, the workers continue.
    """
    client = client_of(how.dsn)

    def count() -> _Drop:
        plan = client.plan_change("truncate", JobFilter(queue=queue))
        report = client.drop_queue(queue, force=force, dry_run=True)
        return _Drop(queue=queue, token=plan.token, **asdict(report))

    token = agreed(
        how,
        count,
        lambda plan: f"Drop queue {queue} with {plan.contents}?",
        _print_plan,
        if_none=True,
    )
    with patience(f"drop {queue}", "run it again; if the queue is gone, it is dropped"):
        report = client.drop_queue(queue, token=token, force=force)
        is_closed = are_closed(queue, report.groups, how.dsn, wait)
    if how.as_json:
        print_json({"queue": queue, "dropped": is_closed, **asdict(report)})
    elif is_closed:
        also = f", {counted(report.subjects, 'subject')} dropped" if report.subjects else ""
        jobs = counted(report.cancelled, "job")
        console().print(f"dropped queue {queue}: {jobs} cancelled{also}")
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
    with patience("redact", "run the same command again to finish it") as progress:
        redacted = client_of(dsn).redact_queue(
            queue, before=before, dead=dead, progress=lambda done: progress.note(done, "row")
        )
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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Drop(DroppedQueue):
    queue: str
    token: str

    @property
    def jobs(self) -> int:
        return self.cancelled

    @property
    def contents(self) -> str:
        """What goes with it, for a question."""
        jobs = counted(self.cancelled, "job")
        return f"{jobs} and {counted(self.subjects, 'subject')}" if self.subjects else jobs


def _print_plan(plan: _Drop) -> None:
    rows = facts_table()
    rows.add_row("would drop", plan.queue)
    rows.add_row("would cancel", counted(plan.cancelled, "job"))
    if plan.subjects:
        rows.add_row("would drop", counted(plan.subjects, "subject"))
    rows.add_row("running", counted(plan.running, "job"))
    rows.add_row("groups", ", ".join(plan.groups) or "none")
    rows.add_row("settings", ", ".join(plan.settings) or "none")
    rows.add_row("token", copied(plan.token))
    console().print(rows)
