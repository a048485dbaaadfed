"""forebay workers: list running workers, and change them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from forebay.cli._acts import agreed
from forebay.cli._commands import Commands, argument, option
from forebay.cli._database import client_of
from forebay.cli._patience import patience
from forebay.cli.exit import ExitCode
from forebay.cli.options import Dsn, How, Json, Limit, instant_or_age
from forebay.cli.output import ago, copied, facts_table, one_line, print_json
from forebay.cli.text import Text, console
from forebay.errors import ConfigError
from forebay.model.text import counted, signal_name

if TYPE_CHECKING:
    from forebay.model.workers import EndedWorker, RunningJob, StopPlan, WorkerOverview

commands = Commands()

WorkerName = Annotated[
    str | None,
    argument("[WORKER]", "Name of a worker, or its beginning up to a colon: a host, or host:pid."),
]


@commands.add("list")
def list_(
    *,
    jobs: Annotated[
        int, option("--jobs N", "Running jobs listed for each worker.", min=0, max=100)
    ] = 5,
    ended: Annotated[
        bool,
        option("--ended", "Instead those that ended: how, and what became of what they ran."),
    ] = False,
    since: Annotated[
        str | None,
        option("--since TIME", "With --ended: from this time on, an age such as 2h; 1d."),
    ] = None,
    limit: Limit = 50,
    dsn: Dsn = None,
    as_json: Json = False,
) -> None:
    """List the workers: who, where, since when, and what they run.

    A worker that was killed stays in the list until its lease is revoked; its last heartbeat gets
    older. Then --ended shows it: for a day at least, and whether it stopped, crashed or was lost.
    """
    if ended:
        _list_ended(dsn, since=since, limit=limit, as_json=as_json)
        return
    if since is not None:
        raise ConfigError("--since", "needs --ended")
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
        if worker.is_silent and worker.heartbeat_at is not None:
            silent = f"  silent for {ago(worker.heartbeat_at).removesuffix(' ago')}"
            out.print(one_line(silent), style="yellow")
        if worker.stop_at is not None:
            out.print(one_line(f"  asked to stop {ago(worker.stop_at)} by {worker.stop_by}"))
        for job in worker.running_jobs:
            out.print(one_line(f"  {_runs(job)}"))
        more = worker.running - len(worker.running_jobs)
        if more > 0 and jobs:
            out.print(f"  and {more:,} more")


def _list_ended(dsn: str | None, *, since: str | None, limit: int, as_json: bool) -> None:
    found = client_of(dsn).ended_workers(since=instant_or_age(since, "--since"), limit=limit)
    if as_json:
        print_json(found)
        return
    out = console()
    if not found:
        out.print("No worker has ended in this time.", style="dim")
        return
    for worker in found:
        out.print(one_line(_end(worker)), style="default" if worker.how == "stopped" else "red")
        signs = f"started {ago(worker.started_at)}, last sign {ago(worker.heartbeat_at)}"
        out.print(one_line(f"  {signs}; {', '.join(worker.queues or ['?'])}"), style="dim")
        if worker.stop_by is not None:
            out.print(one_line(f"  asked to stop by {worker.stop_by}"))
        if worker.jobs:
            out.print(one_line(f"  {_held(worker)}"))
            more = ", ..." if worker.jobs > len(worker.job_ids) else ""
            out.print(one_line(f"  jobs {', '.join(map(str, worker.job_ids))}{more}"))


@commands.add("set")
def set_(
    name: WorkerName = None,
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


@commands.add("stop")
def stop(
    name: WorkerName = None,
    *,
    every: Annotated[bool, option("--all", "All workers.")] = False,
    app_version: Annotated[
        str | None,
        option("--app-version VERSION", "Only workers of this version of the application."),
    ] = None,
    how: How,
) -> None:
    """Ask running workers to stop, as SIGTERM does.

    They follow with their next heartbeat: they claim no more, running jobs have the grace time of
    their worker, and the rest goes back without using an attempt. systemd or Kubernetes may start
    the process again.
    """
    if every and name is not None:
        raise ConfigError("WORKER", "and --all exclude each other")
    if not every and name is None and app_version is None:
        raise ConfigError("WORKER", "is missing: name a worker, or pass --app-version or --all")
    client = client_of(how.dsn)
    which = f"worker {name}" if name else "workers"
    if app_version is not None:
        which += f" of version {app_version}"

    def planned() -> StopPlan:
        plan = client.plan_stop(worker=name, app_version=app_version)
        if not (plan.workers or how.dry_run):
            _refuse_none(which)
        return plan

    token = agreed(
        how,
        planned,
        lambda plan: (
            f"Stop {counted(len(plan.workers), 'worker')} with {counted(plan.jobs, 'running job')}?"
        ),
        _print_stop_plan,
        if_none=True,
    )
    with patience("stop", "run the same command again"):
        count = client.stop_workers(worker=name, app_version=app_version, token=token)
    if how.as_json:
        print_json({"workers": count})
    elif count:
        console().print(f"asked {counted(count, 'worker')} to stop")
    if not count:
        _refuse_none(None if how.as_json else which)


def _refuse_none(which: str | None) -> None:
    """End with failure, since no worker matches; say so unless JSON did."""
    if which is not None:
        text = f"no {which} runs that was not asked before"
        console(stderr=True).print(one_line(text), style="yellow")
    raise SystemExit(ExitCode.FAILED)


def _print_stop_plan(plan: StopPlan) -> None:
    rows = facts_table()
    rows.add_row("would stop", Text(counted(len(plan.workers), "worker"), "bold"))
    for name in plan.workers[:20]:
        rows.add_row("", one_line(name))
    if len(plan.workers) > 20:
        rows.add_row("", f"and {len(plan.workers) - 20:,} more")
    rows.add_row("that run", counted(plan.jobs, "job"))
    rows.add_row("token", copied(plan.token))
    console().print(rows)


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


def _end(worker: EndedWorker) -> str:
    by = "" if worker.signal is None else f" by {signal_name(worker.signal)}"
    back = "; it works again" if worker.is_back else ""
    return f"{worker.worker}  {worker.how}{by} {ago(worker.ended_at)}{back}"


def _held(worker: EndedWorker) -> str:
    kinds = ", ".join(
        f"{jobs:,} {kind}" for kind, jobs in sorted(worker.kinds.items(), key=lambda k: (-k[1], k))
    )
    became = [f"{worker.jobs - worker.used_attempt:,} returned"]
    if worker.used_attempt:
        became.append(f"{worker.used_attempt:,} used an attempt")
    return f"held {kinds or counted(worker.jobs, 'job')}: {', '.join(became)}"


def _runs(job: RunningJob) -> str:
    return (
        f"runs {job.job_id}"
        if job.kind is None
        else f"runs {job.job_id} {job.kind}, claimed {ago(job.claimed_at)}"
    )
