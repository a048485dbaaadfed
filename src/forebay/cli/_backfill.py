"""forebay backfill: a job for each row of a table or a query."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

from forebay.cli._acts import agreed
from forebay.cli._commands import Together, argument, option
from forebay.cli._database import client_of
from forebay.cli._input import file_text, stdin_text
from forebay.cli._patience import patience
from forebay.cli._served import check_names, client_for, warn
from forebay.cli.options import How, duration, json_object, pair
from forebay.cli.output import copied, facts_table, print_json
from forebay.cli.text import Text, console
from forebay.errors import ConfigError, shown
from forebay.model import JobOptionChanges
from forebay.model.backfill import Rows
from forebay.model.checks import PRIORITY_BULK
from forebay.model.text import counted
from forebay.policy.retry import human_duration

if TYPE_CHECKING:
    from forebay.model.backfill import BackfillPlan, BackfillProgress


Key = Annotated[
    str | None,
    option("--key COLUMN", "The column that chunks are formed by. Default: --id-column."),
]

Resume = Annotated[int | None, option("--resume ID", "Continue a backfill in chunks.")]


def rows_given(
    *,
    query: Annotated[
        str | None, option("--query SQL", "A SELECT; its columns are the arguments of the jobs.")
    ] = None,
    table: Annotated[str | None, option("--table NAME", "A table, instead of a query.")] = None,
    column: Annotated[
        list[str] | None,
        option("--column [ARGUMENT=]COLUMN", "An argument of the jobs; repeatable. Default: id."),
    ] = None,
    ids: Annotated[
        str | None,
        option(
            "--ids ID,...", "Only rows with these ids; @FILE reads one per line, - reads stdin."
        ),
    ] = None,
    id_column: Annotated[
        str, option("--id-column COLUMN", "The column that --ids refers to.")
    ] = "id",
    equal: Annotated[
        list[str] | None,
        option("--equal COLUMN=VALUE", "Only rows with this value, e.g. of one user; repeatable."),
    ] = None,
    between: Annotated[
        list[str] | None,
        option(
            "--between COLUMN=FROM,TO",
            "Only rows within these bounds, both included; one may be empty.",
        ),
    ] = None,
    where: Annotated[str | None, option("--where SQL", "A further condition, in SQL.")] = None,
    param: Annotated[
        list[str] | None,
        option("--param NAME=VALUE", "A value for %(NAME)s in --query or --where."),
    ] = None,
) -> Rows | None:
    values = _pairs(param, "--param") or None
    if query is None and table is None:
        return None
    if query is not None and table is not None:
        raise ConfigError("--query", "or --table is needed: give exactly one of them")
    if query is not None:
        if column or ids or equal or between or where:
            raise ConfigError(
                "--query", "contains its conditions: the other filters are for --table"
            )
        return Rows.query(query, values)
    return Rows(
        str(table),
        dict(_column(text) for text in column or [id_column]),
        ids=_ids(ids),
        id_column=id_column,
        equal=_pairs(equal, "--equal"),
        between={name: _bounds(name, text) for name, text in _pairs(between, "--between").items()},
        where=where,
        params=values,
    )


def _pairs(texts: list[str] | None, flag: str) -> dict[str, str]:
    return dict(pair(text, flag) for text in texts or ())


def _column(text: str) -> tuple[str, str]:
    return pair(text, "--column") if "=" in text else (text, text)


def _bounds(column: str, text: str) -> tuple[str | None, str | None]:
    low, comma, high = text.partition(",")
    if not comma:
        given = f"{column}={text}"
        raise ConfigError("--between", f"is {shown(given)}, not COLUMN=FROM,TO", value=given)
    return low.strip() or None, high.strip() or None


def _ids(text: str | None) -> list[str] | None:
    if text is None:
        return None
    if text == "-":
        text = stdin_text("--ids")
    elif text.startswith("@"):
        text = file_text(text[1:], "--ids")
    return [each.strip() for line in text.splitlines() for each in line.split(",") if each.strip()]


def backfill(
    kind: Annotated[str | None, argument("[KIND]", "Kind of the jobs.")] = None,
    *,
    rows: Annotated[Rows | None, Together(rows_given)],
    args: Annotated[str | None, option("--args JSON", "Arguments that all jobs share.")] = None,
    queue: Annotated[
        str | None, option("--queue QUEUE", "Queue of the jobs. Default: that of the kind.")
    ] = None,
    app: Annotated[
        str | None,
        option("--app MODULE:APP", "The application: the jobs get the queue of their kind in it."),
    ] = None,
    priority: Annotated[int, option("--priority N", "Lower numbers run first.")] = PRIORITY_BULK,
    tag: Annotated[str, option("--tag TEXT", "Where the jobs come from.")] = "backfill",
    delay: Annotated[
        str | None, option("--delay TIME", "Run no earlier than this from now: 90s, 15m.")
    ] = None,
    expires_in: Annotated[
        str | None,
        option("--expires-in TIME", "Expire unless started within this time after that: 30d."),
    ] = None,
    max_attempts: Annotated[
        int | None, option("--max-attempts N", "Default: the handler's.")
    ] = None,
    chunk: Annotated[
        int | None, option("--chunk N", "Number of jobs per transaction; default: all in one.")
    ] = None,
    key: Key = None,
    resume: Resume = None,
    how: How,
) -> None:
    """Enqueue a job for each row of a table or query, in the database.

    One statement enqueues all jobs. With --chunk, each chunk is committed, and the backfill can be
    resumed. --query and --where are SQL that runs with your privileges. Without --app and --queue,
    the jobs go to the queue that the workers of their kind have declared in the database.
    Without --token and --yes, the command counts the jobs and asks.
    """
    if resume is not None:
        _enqueued(resumed(resume, kind, rows, how.dsn), how.as_json)
        return
    kind, rows = needed(kind, rows, "Name the handler: forebay backfill reindex.")
    client, name, doubt = client_for(kind, queue=queue, app=app, dsn=how.dsn)
    options: JobOptionChanges = {"queue": name, "priority": priority, "tag": tag}
    if delay is not None:
        options["delay"] = duration(delay, "--delay")
    if max_attempts is not None:
        options["max_attempts"] = max_attempts
    common = json_object(args, "--args")
    if rows.names is not None:
        check_names(kind, rows.names | common.keys(), app=app)
    ends = duration(expires_in, "--expires-in")

    def plan() -> BackfillPlan:
        found = client.plan_backfill(kind, rows, args=common, expires_in=ends, **options)
        warn(doubt)
        return found

    is_planned = not (how.yes or how.token)
    token = agreed(
        how,
        plan,
        lambda plan: f"Enqueue {counted(plan.jobs, 'job')} in queue {plan.queue}?",
        print_plan,
    )
    with watched() as (begun, note):
        count = client.backfill(
            kind, rows, args=common, expires_in=ends, token=token, chunk=chunk, key=key,
            progress=note, begun=begun, **options,
        )  # fmt: skip
    _enqueued(count, how.as_json)
    if not is_planned:
        warn(doubt)


def resumed(
    backfill_id: int,
    kind: str | None,
    rows: Rows | None,
    dsn: str | None,
    command: str = "backfill",
) -> int:
    """Finish an interrupted backfill; return the number of its rows."""
    if kind is not None or rows is not None:
        raise ConfigError("--resume", "continues an existing backfill: name no kind and no rows")
    with watched(command) as (begun, note):
        begun(backfill_id)
        return client_of(dsn).resume_backfill(backfill_id, progress=note)


def needed(kind: str | None, rows: Rows | None, hint: str) -> tuple[str, Rows]:
    """Return the kind and the rows of a new backfill, which must be given."""
    if kind is None:
        raise ConfigError("KIND", "is missing", hint=hint)
    if rows is None:
        raise ConfigError("--query", "or --table is needed: give exactly one of them")
    return kind, rows


@contextmanager
def watched(
    command: str = "backfill",
) -> Iterator[tuple[Callable[[int], None], Callable[[BackfillProgress], None]]]:
    """Show the progress of a backfill, and how an interrupted one is finished.

    The two functions are called when its number is known, and after each chunk. Before, or in one
    transaction, an interruption leaves nothing.
    """
    with patience("backfill", "nothing is enqueued: run the same command again") as progress:

        def begun(backfill_id: int) -> None:
            progress.what = f"backfill {backfill_id}"
            progress.again = f"forebay {command} --resume {backfill_id} continues it"

        def note(step: BackfillProgress) -> None:
            share = 100.0 * step.jobs_done / step.jobs_all if step.jobs_all else 100.0
            progress.reached = f"{step.jobs_done:,} of {step.jobs_all:,} ({share:.0f} %)"

        yield begun, note


def _enqueued(count: int, as_json: bool) -> None:
    if as_json:
        print_json({"enqueued": count})
    else:
        console().print(f"{counted(count, 'job')} enqueued")


def print_plan(plan: BackfillPlan, what: str = "jobs") -> None:
    """Print what a dry run found."""
    facts = facts_table()
    facts.add_row(what, Text(f"{plan.jobs:,}", "bold"))
    facts.add_row("queue", plan.queue)
    facts.add_row("arguments", f"{plan.bytes:,} bytes")
    took = (
        "unknown: nothing could be written"
        if plan.seconds is None
        else human_duration(plan.seconds)
    )
    facts.add_row("enqueuing takes" if what == "jobs" else "it takes", took)
    facts.add_row(
        "waiting already" if what == "jobs" else "jobs that wait",
        f"{plan.waiting:,}, {plan.waiting_alike:,} with the same priority",
    )
    facts.add_row("token", copied(plan.token))
    out = console()
    out.print(facts)
    out.print(
        "→ run it again with --token instead of --dry-run to enqueue exactly these jobs, or none"
    )
