"""forebay workers: list running workers, and change them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from forebay.cli._commands import Commands, argument, option
from forebay.cli._database import client_of
from forebay.cli.exit import ExitCode
from forebay.cli.options import Dsn, Json
from forebay.cli.output import ago, one_line, print_json
from forebay.cli.text import console
from forebay.errors import ConfigError

if TYPE_CHECKING:
    from forebay.model.workers import RunningJob, WorkerOverview

commands = Commands()


@commands.add("list")
def list_(
    *,
    jobs: Annotated[
        int, option("--jobs N", "Running jobs listed for each worker.", min=0, max=100)
    ] = 5,
    dsn: Dsn = None,
    as_json: Json = False,
) -> None:
    """List the workers: who, where, since when, and what they run.

    A worker that was killed stays in the list until its lease is revoked; its last heartbeat gets
    older.
    """
    found = client_of(dsn).workers(jobs=jobs)
    if as_json:
        print_json(found)
        return
    out = console()
    if not found:
        out.print("No workers.", style="dim")
        return
    for worker in found:
        out.print(one_line(_facts(worker)))
        out.print(one_line(f"  {_serves(worker)}"), style="dim")
        for job in worker.running_jobs:
            out.print(one_line(f"  {_runs(job)}"))
        more = worker.running - len(worker.running_jobs)
        if more > 0 and jobs:
            out.print(f"  and {more:,} more")


@commands.add("set")
def set_(
    name: Annotated[
        str | None,
        argument(
            "[WORKER]", "Name of a worker, or its beginning up to a colon: a host, or host:pid."
        ),
    ] = None,
    *,
    every: Annotated[bool, option("--all", "All workers.")] = False,
    concurrency: Annotated[
        str,
        option(
            "--concurrency N",
            "Maximum number of concurrent jobs, 1 to 10,000; none: as it was started.",
        ),
    ],
    dsn: Dsn = None,
    as_json: Json = False,
) -> None:
    """Change the concurrency of running workers.

    They follow with their next heartbeat. Running jobs finish. It holds until a worker ends: one
    that starts again has the concurrency that it is started with.
    """
    if (name is None) != every:
        raise ConfigError(
            "WORKER",
            "is missing: name a worker, or pass --all"
            if name is None
            else "and --all exclude each other",
        )
    if concurrency != "none" and not (concurrency.isascii() and concurrency.isdigit()):
        raise ConfigError("--concurrency", f"is {concurrency!r}, not a whole number or none")
    wanted = None if concurrency == "none" else int(concurrency)
    count = client_of(dsn).set_concurrency(wanted, worker=name)
    if as_json:
        print_json({"workers": count, "concurrency": wanted})
    elif count:
        text = "as started" if wanted is None else str(wanted)
        console().print(f"concurrency {text} for {count} worker{'s' if count > 1 else ''}")
    else:
        console(stderr=True).print(f"no worker {name}" if name else "no workers", style="yellow")
    if not count:
        raise SystemExit(ExitCode.FAILED)


def _facts(worker: WorkerOverview) -> str:
    from forebay.model.text import human_bytes

    memory = "" if worker.memory_bytes is None else f"  {human_bytes(worker.memory_bytes)}"
    children = f" in {worker.processes} processes" if worker.processes else ""
    return (
        f"{worker.worker}  {worker.running}/{worker.concurrency or '?'} slots{children}{memory}"
        f"  started {ago(worker.started_at)}, heartbeat {ago(worker.heartbeat_at)}"
    )


def _serves(worker: WorkerOverview) -> str:
    names = ", ".join(worker.queues or ["?"])
    group = "" if worker.group in (None, "default") else f", group {worker.group}"
    app = " ".join(filter(None, (worker.app, worker.app_version)))
    library = f"forebay {worker.forebay_version}" if worker.forebay_version else ""
    return "; ".join(filter(None, (f"{names}{group}", app, library)))


def _runs(job: RunningJob) -> str:
    return (
        f"runs {job.job_id}"
        if job.kind is None
        else f"runs {job.job_id} {job.kind}, claimed {ago(job.claimed_at)}"
    )
