"""What ``forebay worker`` does. Its options are declared in ``_worker``.

This module starts without rich.
"""

from __future__ import annotations

import contextlib
import faulthandler
import io
import signal
import sys
from typing import TYPE_CHECKING, Any, Final

from forebay.cli._differences import report_differences
from forebay.cli._load import load_app
from forebay.cli._served import check_queues_of_worker
from forebay.cli.exit import errors_go_to
from forebay.errors import ConfigError, shown
from forebay.forks import on_signals
from forebay.model.text import counted, logger

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from forebay.app import App
    from forebay.config import Settings, WorkerSettings
    from forebay.sending import Drain
    from forebay.worker import Stats, Worker

log = logger("forebay.cli")

_LEVELS: Final = ("debug", "info", "warning", "error")


def run_worker(
    app: str,
    *,
    group: str,
    endpoints: bool,
    until_idle: bool,
    app_dir: Path | None,
    log_level: str,
    log_format: str,
    dsn: str | None,
    as_json: bool,
    flags: dict[str, Any],
) -> None:
    """Run ``forebay worker``; the arguments are its options."""
    from forebay.config import load_settings

    set_up_log(log_level, log_format)
    found, location = load_app(app, app_dir)
    found._internals.use(dsn=dsn, settings=load_settings(flags))
    check_queues_of_worker(found)
    report_differences(found, app)
    settings = found.settings.worker
    phases = workers_of(found, app, location, group=group)
    if endpoints:
        phases += delivering_workers(found.dsn, found.settings)
    run_and_report(phases, settings, until_idle=until_idle, as_json=as_json)


def workers_of(
    app: App, place: str, location: tuple[str, str, bool] | None, *, group: str = "default"
) -> list[list[Worker]]:
    """Return the workers of an application, as ``phases_of`` does, and log what they serve."""
    from forebay.sending import phases_of

    def report(worker: Worker, drain: Drain | None) -> None:
        if drain is None:
            announce(app, worker, place)
        else:
            announce_drain(drain, worker)

    return phases_of(app, app.settings.worker, location=location, group=group, report=report)


def announce_drain(drain: Drain, worker: Worker) -> None:
    """Log what the worker of a drain sends."""
    log.info(
        "worker %s: sending queue %s to %s (%s), as group %s",
        worker.name,
        drain.queue,
        drain.sink.place,
        drain.sink.type,
        drain.group,
    )


def delivering_workers(
    dsn: str, settings: Settings, *, slots: int | None = None
) -> list[list[Worker]]:
    """Return a router, then a deliverer, and log that they run. None: the default number of
    slots.
    """
    from forebay.sending import SLOTS_DEFAULT, delivering

    slots = SLOTS_DEFAULT if slots is None else slots
    phases = delivering(dsn, settings, settings.worker, slots=slots)
    log.info(
        "workers %s: expanding published events, and sending %s at a time to endpoints",
        ", ".join(worker.name for phase in phases for worker in phase),
        counted(slots, "delivery", "deliveries"),
    )
    return phases


def run_and_report(
    phases: Sequence[Sequence[Worker]],
    settings: WorkerSettings,
    *,
    until_idle: bool = False,
    as_json: bool,
) -> None:
    """Run workers in this process until a signal, then print or log what each did: with JSON,
    one object for one worker, else a list.

    Args:
        phases: the workers; those of one phase make work for those of the next ones.
        settings: where the process answers probes, and how long running jobs may take to end.
        until_idle: run the phases one after another, each until its workers have nothing to do.
        as_json: print JSON.
    """
    together = phases if until_idle else [[worker for phase in phases for worker in phase]]
    found = _run_until_signal(together, settings, until_idle=until_idle)
    if as_json:
        from forebay.cli.output import print_json

        print_json(found[0][1] if len(found) == 1 else [stats for _, stats in found])
        return
    for name, stats in found:
        log.info("worker %s stopped: %s", name, _totals(stats))


def announce(app: App, worker: Worker, place: str) -> None:
    """Log what the worker serves; at DEBUG also how long a failing job of each kind is retried."""
    settings = app.settings.worker
    queues = settings.queue_weights or app.kinds.queues()
    kinds = sorted(
        (kind for kind in app.kinds if kind.queue in queues),
        key=lambda kind: (kind.queue, kind.name),
    )
    log.info(
        "worker %s of %s: serving %s in %s %s, %s at a time",
        worker.name,
        place,
        counted(len(kinds), "kind"),
        "queue" if len(queues) == 1 else "queues",
        settings.queue or ", ".join(queues),
        counted(settings.slots, "job"),
    )
    if settings.processes is not None:
        log.info("handlers run in %s", counted(settings.processes, "process", "processes"))
    for kind in kinds:
        log.debug("%s (queue %s): %s", kind.name, kind.queue, kind.retry.lifetime())


def _run_until_signal(
    phases: Sequence[Sequence[Worker]], settings: WorkerSettings, *, until_idle: bool
) -> list[tuple[str, Stats]]:
    """Run the phases; return the workers that ran.

    The first SIGTERM, SIGINT or SIGHUP stops the phase that runs, the second stops it immediately.
    """
    from forebay.worker import run_to_the_end, run_workers

    async def main() -> list[tuple[str, Stats]]:
        received = 0
        running: Sequence[Worker] = ()

        def on_signal(number: signal.Signals) -> None:
            nonlocal received
            received += 1
            if received == 1:
                log.info(
                    "%s: finishing running jobs (%g s); send again to stop now",
                    number.name,
                    settings.grace_seconds,
                )
                for worker in running:
                    worker.stop()
            else:
                log.warning("%s again: stopping now", number.name)
                for worker in running:
                    worker.stop_now()

        found: list[tuple[str, Stats]] = []
        with on_signals(on_signal):
            for running in phases:
                all_stats = await run_workers(running, settings, until_idle=until_idle)
                names = [worker.name for worker in running]
                found += zip(names, all_stats, strict=True)
                if received or any(worker.asked_by for worker in running):
                    break
        return found

    if not faulthandler.is_enabled():
        # Where a handler was when it crashed the process. A replaced stderr may be no file.
        with contextlib.suppress(AttributeError, OSError, RuntimeError, ValueError):
            faulthandler.enable()
    return run_to_the_end(main())


def set_up_log(level: str, form: str) -> None:
    """Log to stderr, after checking the options."""
    from forebay.worker import as_log_format, log_to_stderr

    if level not in _LEVELS:
        raise ConfigError(
            "--log-level", f"is {shown(level)}, not one of {', '.join(_LEVELS)}", value=level
        )
    chosen = as_log_format(form)
    if chosen is None:
        raise ConfigError("--log-format", f"is {shown(form)}, not text or json", value=form)
    log_to_stderr(level, chosen)
    if isinstance(sys.stdout, io.TextIOWrapper):
        # What handlers print appears when they print it, also in a file or a pipe.
        sys.stdout.reconfigure(line_buffering=True)
    errors_go_to(log if chosen == "json" else None)


def _totals(stats: Stats) -> str:
    always = ("done", "retried", "dead", "released", "cancelled")
    more = [name for name in ("snoozed", "postponed") if getattr(stats, name)]
    return ", ".join(f"{getattr(stats, name)} {name}" for name in (*always, *more))
