"""forebay jobs replay, jobs export, time-machine: acts on jobs of the past."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from forebay.cli._acts import agreed
from forebay.cli._change import Conditions
from forebay.cli._commands import argument, option
from forebay.cli._database import client_of
from forebay.cli._export_files import Format, JsonLines, Writer, check_format, complete_file
from forebay.cli._patience import patience
from forebay.cli.options import (
    DiedAfter,
    DiedBefore,
    Dsn,
    How,
    Json,
    Kind,
    Queue,
    ToGroup,
    instant_or_age,
)
from forebay.cli.output import ago, copied, facts_table, moment, print_json, state_text, table
from forebay.cli.text import Text, console
from forebay.errors import ConfigError
from forebay.model.change import JobFilter
from forebay.model.text import counted

if TYPE_CHECKING:
    from forebay.client import Client
    from forebay.model.archive import Replay, ReplayPlan
    from forebay.ops.archive import ReplayOptions

State = Annotated[str | None, option("--state STATE", "Only jobs in this state; slow.")]


def _filter(which: JobFilter | None, **given: Any) -> JobFilter | None:
    """Return a filter with further conditions; None without any."""
    wanted = {name: value for name, value in given.items() if value is not None}
    return which if not wanted else replace(which or JobFilter(all=True), **wanted)


def replay(
    job_ids: Annotated[
        list[int] | None, argument("[JOB_ID...]", "The jobs; or give a filter.")
    ] = None,
    *,
    queue: Queue = None,
    kind: Kind = None,
    state: State = None,
    unfinished_at: Annotated[
        str | None,
        option("--unfinished-at TIME", "Only jobs that had not ended at this time; slow."),
    ] = None,
    died_after: DiedAfter = None,
    died_before: DiedBefore = None,
    to_group: ToGroup = None,
    continue_: Annotated[
        int | None, option("--continue REPLAY", "Finish an interrupted replay.")
    ] = None,
    how: How,
    which: Conditions,
) -> None:
    """Enqueue jobs of the past again, oldest first.

    The new jobs have the arguments, keys and tag of the old ones, and say where they came from.
    Jobs that wait or run match, too: give --enqueued-before or --state. A replay works in steps;
    after an interruption, --continue finishes it.
    """
    client = client_of(how.dsn)
    wanted = _filter(which, queue=queue, kind=kind, ids=job_ids or None)
    if continue_ is not None:
        if wanted is not None or how.token is not None or how.dry_run:
            raise ConfigError("--continue", "takes no filter, token or dry run")
        with _watched() as note:
            done = client.continue_replay(continue_, progress=note)
        _print_replay(done, how.as_json)
        return
    options: ReplayOptions = {
        "group": to_group,
        "state": "dead" if state is None and (died_after or died_before) else state,
        "unfinished_at": instant_or_age(unfinished_at, "--unfinished-at"),
        "died_after": instant_or_age(died_after, "--died-after"),
        "died_before": instant_or_age(died_before, "--died-before"),
    }
    if wanted is None:
        if options["state"] is None and unfinished_at is None:
            raise ConfigError("JOB_ID", "or a filter is needed")
        wanted = JobFilter(all=True)
    token = agreed(
        how,
        lambda: client.plan_replay(wanted, **options),
        lambda plan: f"Enqueue {counted(plan.jobs, 'job')} again?",
        _print_plan,
        named=bool(job_ids),
    )
    with _watched() as note:
        done = client.replay_jobs(wanted, token=token, progress=note, **options)
    _print_replay(done, how.as_json)


@contextmanager
def _watched() -> Iterator[Callable[[int, int], None]]:
    """Show the progress of a replay, and how an interrupted one is finished."""
    with patience("replay", "run the same command again") as progress:

        def note(replay_id: int, jobs: int) -> None:
            progress.what = f"replay {replay_id}"
            progress.note(jobs)
            progress.again = f"forebay jobs replay --continue {replay_id} continues it"

        yield note


def _print_plan(plan: ReplayPlan) -> None:
    rows = facts_table()
    rows.add_row("would replay", Text(counted(plan.jobs, "job"), style="bold"))
    if plan.jobs:
        rows.add_row("enqueued", f"{ago(plan.oldest_at)} to {ago(plan.newest_at)}")
    if plan.redacted:
        rows.add_row("left out", f"{counted(plan.redacted, 'job')}: their arguments were erased")
    rows.add_row("token", copied(plan.token))
    console().print(rows)


def _print_replay(done: Replay, as_json: bool) -> None:
    if as_json:
        print_json(done)
    else:
        left_out = (
            f", {done.redacted} left out: their arguments were erased" if done.redacted else ""
        )
        console().print(f"replay {done.replay_id}: {counted(done.jobs, 'job')} enqueued{left_out}")


def export(
    *,
    queue: Queue = None,
    kind: Kind = None,
    state: State = None,
    file: Annotated[Path | None, option("--file FILE", "Default: standard output.")] = None,
    file_format: Annotated[Format, option("--format FORMAT", "jsonl or parquet.")] = "jsonl",
    dsn: Dsn = None,
    which: Conditions,
) -> None:
    """Write jobs of the log to a file, the newest first, with their states: one line of JSON or
    one row for each job and group.

    A file has a temporary name until it is complete. To write every job before retention removes
    it, see forebay exports.
    """
    client = client_of(dsn)
    wanted = _filter(which, queue=queue, kind=kind)
    check_format(file_format)
    if file is None:
        if file_format == "parquet":
            raise ConfigError("--file", "is needed for parquet")
        _export(client, wanted, state, JsonLines(sys.stdout))
        return
    try:
        if file.exists():
            raise ConfigError("--file", f"exists already: {file}")
        with complete_file(file, file_format) as lines:
            count = _export(client, wanted, state, lines)
    except OSError as error:
        raise ConfigError("--file", f"cannot be written: {error.strerror}: {file}") from None
    console(stderr=True).print(f"{file}: {counted(count, 'line')}", soft_wrap=True)


def _export(client: Client, which: JobFilter | None, state: str | None, out: Writer) -> int:
    count, before = 0, None
    while True:
        page = client.find_to_export(which, state=state, before=before)
        out.add(page.jobs)
        count += len(page.jobs)
        before = page.next
        if before is None:
            return count


def time_machine(
    at: Annotated[str, argument("AT", "An age such as 2h, or ISO 8601.")],
    *,
    queue: Queue = None,
    limit: Annotated[int, option("--limit N", "Maximum number of jobs of each state.")] = 1000,
    dsn: Dsn = None,
    as_json: Json = False,
) -> None:
    """Show which jobs were ready or ran at a moment.

    Jobs that waited for a key or a limit, and scheduled and retrying jobs that have started since,
    are not among them.
    """
    moment_ = instant_or_age(at, "AT")
    assert moment_ is not None
    found = client_of(dsn).jobs_at(moment_, queue=queue, limit=limit)
    if as_json:
        print_json(found)
        return
    out = console()
    out.print(Text(moment(moment_), style="bold"))
    if not found:
        out.print("No job waited or ran.", style="dim")
        return
    counts = Counter((job.queue, job.group, job.kind, job.state) for job in found)
    totals = table("queue", "group", "kind", "state", "jobs", right=("jobs",), loose=("kind",))
    for (name, group, kind, state), count in sorted(counts.items()):
        totals.add_row(name, group, kind, state_text(state), f"{count:,}")
    out.print(totals)
    running = [job for job in found if job.state == "running"][:20]
    if running:
        out.print()
        rows = table(
            "job",
            "kind",
            "attempt",
            "since",
            "worker",
            right=("job", "attempt"),
            loose=("kind", "worker"),
        )
        for job in running:
            assert job.claimed_at is not None
            rows.add_row(
                str(job.job_id),
                job.kind,
                str(job.attempt),
                job.claimed_at.astimezone().isoformat(sep=" ", timespec="seconds"),
                job.worker,
            )
        out.print(rows)
