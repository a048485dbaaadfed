"""forebay subjects: push, upsert, list, show, drop, kill, revive and upgrade subjects."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Annotated, Any

from forebay.cli._acts import agreed
from forebay.cli._backfill import (
    Key,
    Resume,
    needed,
    print_plan,
    resumed,
    rows_given,
    watched,
)
from forebay.cli._commands import Commands, Together, argument, option
from forebay.cli._database import client_of
from forebay.cli._input import file_text, parsed_json, stdin_text
from forebay.cli._load import check_place
from forebay.cli.exit import ExitCode
from forebay.cli.options import Dsn, How, Json, Limit, duration, instant, json_object
from forebay.cli.output import (
    WIDE,
    ago,
    compact,
    facts_table,
    json_text,
    moment,
    one_line,
    print_json,
    table,
)
from forebay.cli.text import Text, console
from forebay.errors import ConfigError, InvalidJob, shown
from forebay.model.backfill import Rows
from forebay.model.text import counted

if TYPE_CHECKING:
    from forebay.model.subjects import SubjectResult

commands = Commands()


Queue = Annotated[str, argument("QUEUE", "The queue of the subject.")]
Subject = Annotated[str, argument("SUBJECT", "The subject.")]
Kind = Annotated[str, argument("KIND", "The kind of its runs.")]
Named = Annotated[str | None, argument("[SUBJECT]", "The subject. Not with --file.")]
Args = Annotated[str | None, argument("[JSON]", "Arguments of its runs; - reads them from stdin.")]
RunAt = Annotated[str | None, option("--run-at TIME", "Due at this time, ISO 8601.")]
File = Annotated[
    str | None,
    option(
        "--file FILE",
        'Many: a JSON object a line, {"subject": ..., "args": {...}, "delay": ...}; - reads stdin.',
    ),
]


def _options(
    *,
    queue: Annotated[str | None, option("--queue QUEUE", "Default: that of the kind.")] = None,
    delay: Annotated[
        str | None, option("--delay TIME", "Due no earlier than: 90, 15m, 2h.")
    ] = None,
    run_at: RunAt = None,
    priority: Annotated[int | None, option("--priority N", "Lower numbers run first.")] = None,
    version: Annotated[int | None, option("--version N", "Version of the arguments.")] = None,
    tag: Annotated[str | None, option("--tag TEXT", "Where its runs come from.")] = None,
) -> dict[str, Any]:
    given = {
        "queue": queue,
        "delay": duration(delay, "--delay"),
        "run_at": instant(run_at, "--run-at"),
        "priority": priority,
        "version": version,
        "tag": tag,
    }
    return {name: value for name, value in given.items() if value is not None}


Options = Annotated[dict[str, Any], Together(_options)]


@commands.add("push")
def push(
    kind: Kind,
    subject: Named = None,
    args: Args = None,
    *,
    file: File = None,
    options: Options,
    dsn: Dsn = None,
    as_json: Json = False,
) -> None:
    """Create subjects. Those that exist, in any state, are left as they are."""
    items = _items({"kind": kind, **options}, subject, args, file)
    _print_results(client_of(dsn).push_subjects(items), as_json=as_json, many=file is not None)


@commands.add("upsert")
def upsert(
    kind: Kind,
    subject: Named = None,
    args: Args = None,
    *,
    file: File = None,
    revive: Annotated[
        bool, option("--revive", "Schedule completed, dead and killed ones.")
    ] = False,
    options: Options,
    dsn: Dsn = None,
    as_json: Json = False,
) -> None:
    """Create subjects, or change what is given of those that exist."""
    items = _items({"kind": kind, **options}, subject, args, file)
    _print_results(
        client_of(dsn).upsert_subjects(items, revive=revive), as_json=as_json, many=file is not None
    )


@commands.add("backfill")
def backfill(
    kind: Annotated[str | None, argument("[KIND]", "The kind of their runs.")] = None,
    *,
    rows: Annotated[Rows | None, Together(rows_given)],
    args: Annotated[str | None, option("--args JSON", "Arguments that all subjects share.")] = None,
    options: Options,
    chunk: Annotated[
        int | None, option("--chunk N", "Number of subjects per transaction; default: all in one.")
    ] = None,
    key: Key = None,
    resume: Resume = None,
    how: How,
) -> None:
    """Create a subject for each row of a table or query, in the database.

    The column subject is its name: --column subject=COLUMN. Subjects that exist, in any state, are
    left as they are, so the same command makes nothing twice. One statement creates all. With
    --chunk, each chunk is committed, and the backfill can be resumed. --query and --where are SQL
    that runs with your privileges. Without --token and --yes, the command counts the rows and asks.
    """
    if resume is not None:
        count = resumed(resume, kind, rows, how.dsn, "subjects backfill")
        _backfilled(count, how.as_json)
        return
    kind, rows = needed(kind, rows, "Name the handler of the subjects.")
    client = client_of(how.dsn)
    given: dict[str, Any] = {"args": json_object(args, "--args"), **options}
    token = agreed(
        how,
        lambda: client.plan_subjects(kind, rows, **given),
        lambda plan: f"Create a subject for each of {counted(plan.jobs, 'row')}?",
        lambda plan: print_plan(plan, "subjects"),
    )
    with watched("subjects backfill") as (begun, note):
        count = client.backfill_subjects(
            kind, rows, token=token, chunk=chunk, key=key, progress=note, begun=begun, **given
        )
    _backfilled(count, how.as_json)


def _backfilled(count: int, as_json: bool) -> None:
    if as_json:
        print_json({"rows": count})
    else:
        console().print(f"{counted(count, 'row')}: each has its subject")


@commands.add("append")
def append(
    kind: Kind,
    args: Args = None,
    *,
    options: Options,
    dsn: Dsn = None,
    as_json: Json = False,
) -> None:
    """Create a subject with a random name."""
    item = {"kind": kind, **options, "args": json_object(args, "args")}
    _print_results(client_of(dsn).push_subjects([item]), as_json=as_json, many=False)


@commands.add("list")
def list_(
    queue: Queue,
    *,
    state: Annotated[
        str | None, option("--state STATE", "scheduled, ready, running, completed, dead or killed.")
    ] = None,
    after: Annotated[str | None, option("--after SUBJECT", "Begin after this name.")] = None,
    limit: Limit = 50,
    dsn: Dsn = None,
    as_json: Json = False,
) -> None:
    """List the subjects of a queue, in the order of their names."""
    found = client_of(dsn).subjects(queue, state=state, after=after, limit=limit)
    if as_json:
        print_json(found)
        return
    rows = table(
        "subject", "state", "due", "last", "iterations", "kind", "args", right=("iterations",),
        loose=("subject", "args"),
    )  # fmt: skip
    for each in found:
        kind = each.kind if each.version == 0 else f"{each.kind}, version {each.version}"
        rows.add_row(
            each.subject,
            _state_text(each.state),
            ago(each.due_at),
            ago(each.last_at),
            f"{each.iterations:,}",
            kind,
            one_line(compact(each.args)),
        )
    out = console()
    out.print(rows if found else Text("No subjects.", style="dim"))
    if len(found) == limit:
        out.print(f"More: --after {shown(found[-1].subject)}", style="dim")


@commands.add("show")
def show(queue: Queue, subject: Subject, *, dsn: Dsn = None, as_json: Json = False) -> None:
    """Show a subject: state, times, arguments and what its handlers keep."""
    found = client_of(dsn).subject(queue, subject)
    if as_json:
        print_json(found)
        return
    rows = facts_table()
    for fact, value in (
        ("subject", f"{found.subject} in queue {found.queue}"),
        ("state", _state_text(found.state)),
        ("reason", found.reason),
        ("due", moment(found.due_at)),
        ("last run", moment(found.last_at)),
        ("iterations", f"{found.iterations:,}"),
        ("failed attempts", f"{found.attempts:,}"),
        ("job", None if found.job_id is None else str(found.job_id)),
        ("kind", f"{found.kind}, version {found.version}, priority {found.priority}"),
        ("args", json_text(found.args)),
        ("state of handlers", json_text(found.data)),
        ("options", json.dumps(found.options) if found.options else None),
        ("created", moment(found.created_at)),
        ("changed", moment(found.changed_at)),
    ):
        if value is not None:
            rows.add_row(fact, value)
    console().print(rows)


@commands.add("history")
def history(
    queue: Queue, subject: Subject, *, limit: Limit = 50, dsn: Dsn = None, as_json: Json = False
) -> None:
    """List what happened to a subject, newest first. About a day is kept."""
    found = client_of(dsn).subject_history(queue, subject, limit=limit)
    if as_json:
        print_json(found)
        return
    rows = table(
        "at", "what", "due", "iterations", "job", "reason", right=("iterations",), loose=("reason",)
    )
    out = console()
    at = moment if out.width >= WIDE else ago
    for each in found:
        job = "-" if each.job_id is None else str(each.job_id)
        rows.add_row(
            at(each.at),
            each.what,
            ago(each.due_at),
            f"{each.iterations:,}",
            job,
            one_line(each.reason or "-"),
        )
    out.print(rows)


@commands.add("trace")
def trace(
    name: Annotated[str, argument("NAME", "A subject.")],
    *,
    limit: Limit = 50,
    dsn: Dsn = None,
    as_json: Json = False,
) -> None:
    """List history and errors of the subjects of a name, in all queues, newest first."""
    found = client_of(dsn).trace(name, limit=limit)
    if as_json:
        print_json(found)
        return
    rows = table("at", "queue", "job", "kind", "what", "attempt", "error", loose=("error",))
    out = console()
    at = moment if out.width >= WIDE else ago
    for each in found:
        rows.add_row(
            at(each.at),
            each.queue,
            "-" if each.job_id is None else str(each.job_id),
            each.kind or "-",
            each.what,
            "-" if each.attempt is None else str(each.attempt),
            Text((each.error or "-").partition("\n")[0]),  # whole: it is what one looks for
        )
    out.print(rows if found else Text("Nothing.", style="dim"))


@commands.add("drop")
def drop(
    queue: Queue,
    subject: Annotated[str | None, argument("[SUBJECT]", "The subject. Not with --all.")] = None,
    *,
    every: Annotated[bool, option("--all", "All subjects of the queue.")] = False,
    dsn: Dsn = None,
    as_json: Json = False,
) -> None:
    """Drop a subject, or all of a queue: their names are free."""
    if (subject is None) != every:
        raise ConfigError("SUBJECT", "or --all must be given, and only one of them")
    if subject is not None:
        _print_act(queue, subject, client_of(dsn).drop_subject(queue, subject), as_json=as_json)
        return
    dropped = client_of(dsn).drop_subjects(queue)
    if as_json:
        print_json({"queue": queue, "dropped": dropped})
    else:
        console().print(f"{counted(dropped, 'subject')} dropped from queue {queue}")


@commands.add("kill")
def kill(
    queue: Queue,
    subject: Subject,
    *,
    reason: Annotated[str | None, option("--reason TEXT", "Why, for people.")] = None,
    dsn: Dsn = None,
    as_json: Json = False,
) -> None:
    """Kill a subject: it is not due until it is revived."""
    _print_act(queue, subject, client_of(dsn).kill_subject(queue, subject, reason), as_json=as_json)


@commands.add("revive")
def revive(
    queue: Queue,
    subject: Subject,
    *,
    run_at: RunAt = None,
    dsn: Dsn = None,
    as_json: Json = False,
) -> None:
    """Schedule a subject that is completed, dead or killed; now, or at a time."""
    result = client_of(dsn).revive_subject(queue, subject, instant(run_at, "--run-at"))
    _print_act(queue, subject, result, as_json=as_json)


@commands.add("counts")
def counts(
    *,
    queue: Annotated[str | None, option("--queue QUEUE", "Only this queue.")] = None,
    dsn: Dsn = None,
    as_json: Json = False,
) -> None:
    """Show the numbers of subjects by queue and state: those due later are scheduled."""
    from forebay.model.subjects import SUBJECT_STATES

    found = client_of(dsn).subject_counts(queue)
    if as_json:
        print_json(found)
        return
    by_queue: dict[str, dict[str, int]] = {}
    for each in found:
        by_queue.setdefault(each.queue, {})[each.state] = each.subjects
    rows = table("queue", *SUBJECT_STATES, "all", right=(*SUBJECT_STATES, "all"))
    for name, counts in by_queue.items():
        numbers = [*(counts.get(state, 0) for state in SUBJECT_STATES), sum(counts.values())]
        rows.add_row(name, *(f"{number:,}" for number in numbers))
    console().print(rows if found else Text("No subjects.", style="dim"))


@commands.add("upgrade")
def upgrade(
    queue: Queue,
    kind: Annotated[str, argument("KIND", "Their kind, without a version.")],
    *,
    from_version: Annotated[int, option("--from N", "The version of their arguments.")],
    to_version: Annotated[int, option("--to N", "The new version.")],
    function: Annotated[
        str,
        option(
            "--with MODULE:FUNCTION",
            "Gets arguments and state; returns new arguments, or a tuple of both.",
        ),
    ],
    wait: Annotated[str, option("--wait TIME", "Wait this long for runs to end.")] = "60s",
    chunk: Annotated[int, option("--chunk N", "Subjects per transaction.")] = 100,
    dsn: Dsn = None,
    as_json: Json = False,
) -> None:
    """Migrate the arguments of subjects to another version, under a lock of each.

    Continues where an earlier call stopped.
    """
    from forebay.model.subjects import UpgradeProgress

    printed = ""

    def report(step: UpgradeProgress) -> None:
        nonlocal printed
        line = f"pass {step.passes}: {step.upgraded:,} upgraded, {step.running:,} not yet"
        if line != printed:  # A chunk may have changed nothing, as the last one of a pass.
            printed = line
            console(stderr=True).print(line, style="dim")

    done = client_of(dsn).upgrade_subjects(
        queue,
        kind,
        from_version,
        to_version,
        _function(function),
        wait=duration(wait, "--wait") or 0.0,
        chunk=chunk,
        progress=None if as_json else report,
    )
    if as_json:
        print_json(done)
    elif done.is_done:
        console().print(
            f"{counted(done.upgraded, 'subject')} upgraded; none of version {from_version} left"
        )
    else:
        subjects = counted(done.upgraded, "subject")
        console().print(f"{subjects} upgraded; {done.running:,} still run: repeat the command")
    if not done.is_done:
        raise SystemExit(ExitCode.FAILED)


def _items(
    common: dict[str, Any], subject: str | None, args: str | None, file: str | None
) -> Iterator[dict[str, Any]]:
    if (subject is None) == (file is None):
        raise ConfigError(
            "SUBJECT", (
                    "or --file must be given, and only one of "
                    "them"
                    ), hint="Without a name: forebay subjects append."
        )  # fmt: skip
    if file is not None:
        return _lines(file, common)
    given = {} if args is None else {"args": json_object(args, "args")}
    return iter([common | {"subject": subject} | given])


def _lines(file: str, common: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the objects of a file, a JSON object a line; empty lines are skipped."""
    for number, line in enumerate(_text(file).split("\n"), start=1):
        if not line.strip():
            continue
        try:
            found = parsed_json(line)
        except ValueError as error:
            raise InvalidJob(f"line {number}", f"is not JSON: {error}") from None
        if not isinstance(found, dict):
            raise InvalidJob(f"line {number}", f"must be a JSON object, not {shown(found)}")
        if {"delay", "run_at"} & found.keys():
            yield {k: v for k, v in common.items() if k not in ("delay", "run_at")} | found
        else:
            yield common | found


def _text(file: str) -> str:
    return stdin_text("--file") if file == "-" else file_text(file, "--file")


def _print_results(results: list[SubjectResult], *, as_json: bool, many: bool) -> None:
    if as_json:
        print_json(results if many else results[0])
        return
    out = console()
    for each in results:
        out.print(f"subject {each.subject}: {each}")
    if many:
        numbers: dict[str, int] = {}
        for each in results:
            numbers[str(each)] = numbers.get(str(each), 0) + 1
        total = ", ".join(f"{number:,} {what}" for what, number in sorted(numbers.items()))
        out.print(total or "No subjects.", style="dim")


def _print_act(queue: str, subject: str, result: str, *, as_json: bool) -> None:
    if as_json:
        print_json({"queue": queue, "subject": subject, "result": result})
        return
    text = {"requested": "requested: its run has to stop first", "unchanged": "nothing to change"}
    console().print(f"subject {subject} in queue {queue}: {text.get(result, result)}")


def _state_text(state: str) -> Text:
    styles = {
        "scheduled": "yellow",
        "ready": "blue",
        "running": "cyan",
        "completed": "green",
        "dead": "red",
        "killed": "dim",
    }
    return Text(state, style=styles.get(state, "default"))


def _function(place: str) -> Callable[[dict[str, Any], dict[str, Any] | None], Any]:
    if ":" not in place:
        raise ConfigError("--with", f"is {shown(place)}, not MODULE:FUNCTION", value=place)
    module_name, attribute = check_place(place)
    found: Any = importlib.import_module(module_name)
    for part in attribute.split("."):
        found = getattr(found, part, None)
    if not callable(found):
        raise ConfigError("--with", f"names {place}, which is not a function", value=place)
    return found  # type: ignore[no-any-return]
