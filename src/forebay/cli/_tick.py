"""forebay tick: do what is due within a budget, and end."""

from __future__ import annotations

import signal
import sys
from typing import TYPE_CHECKING, Annotated, Any

from forebay.cli._commands import option
from forebay.cli._load import load_app
from forebay.cli._serving import set_up_log
from forebay.cli._worker import AppPlace, LogForm, LogLevel
from forebay.cli.exit import ExitCode
from forebay.cli.options import AppDir, Dsn, Json, duration, setting_flags
from forebay.cli.output import print_json
from forebay.cli.text import Console
from forebay.forks import on_signals

if TYPE_CHECKING:
    from collections.abc import Sequence

    from forebay.app import App
    from forebay.tick import Tick
    from forebay.worker import Worker


def tick(
    app: AppPlace,
    *,
    budget: Annotated[
        str,
        option("--budget TIME", "How long it may take, as 30s or 2min: 1 s to an hour."),
    ] = "30s",
    endpoints: Annotated[
        bool, option("--endpoints", "Also expand published events and send deliveries.")
    ] = False,
    look: Annotated[
        bool, option("--look", "Run nothing: tell whether work is left, and when more is due.")
    ] = False,
    app_dir: AppDir = None,
    log_level: LogLevel = "info",
    log_format: LogForm = "text",
    dsn: Dsn = None,
    as_json: Json = False,
    flags: Annotated[
        dict[str, Any],
        setting_flags("worker", "delivery", "retry", common=("queue", "concurrency", "schedules")),
    ],
) -> None:
    """Do what is due within a budget, and leave no session open.

    For cron, serverless functions and databases that sleep. It decides schedules, makes due jobs
    ready, recovers what died, maintains the log and runs jobs. After three quarters of the budget
    no further job starts. Exit code 1: work is left.
    """
    from forebay.config import load_settings
    from forebay.tick.ticking import as_json as as_json_of
    from forebay.tick.ticking import checked_budget, look_at
    from forebay.worker import run_to_the_end

    set_up_log(log_level, log_format)
    seconds = checked_budget(duration(budget, "--budget"), "--budget")
    found, location = load_app(app, app_dir)
    found._internals.use(dsn=dsn, settings=load_settings(flags))
    if look:
        done = run_to_the_end(look_at(found))
    else:
        done = run_to_the_end(_ticked(found, seconds, location, endpoints=endpoints))
    if as_json:
        print_json(as_json_of(done))
    else:
        Console(sys.stdout).print(_sentence(done, is_look=look))
    if done.is_left:
        raise SystemExit(ExitCode.FAILED)


async def _ticked(
    app: App, seconds: float, location: tuple[str, str, bool] | None, *, endpoints: bool
) -> Tick:
    """Run a tick. The first SIGTERM or SIGINT ends it in order, the second at once."""
    from forebay.tick.ticking import tick as run_tick

    received = 0
    running: Sequence[Worker] = ()

    def on_signal(_number: signal.Signals) -> None:
        nonlocal received
        received += 1
        for worker in running:
            if received == 1:
                worker.stop()
            else:
                worker.stop_now()

    def on_start(workers: Sequence[Worker]) -> None:
        nonlocal running
        running = workers

    with on_signals(on_signal):
        return await run_tick(
            app,
            budget=seconds,
            endpoints=endpoints,
            location=location,
            on_start=on_start,
            is_stopped=lambda: received > 0,
        )


def _sentence(done: Tick, *, is_look: bool) -> str:
    parts = []
    if not is_look:
        counts = {name: getattr(done, name) for name in ("done", "retried", "dead", "released")}
        parts.append(", ".join(f"{count} {name}" for name, count in counts.items()))
        parts.append(f"{done.scheduled} scheduled")
    parts.append("work is left" if done.is_left else "nothing is left")
    when = "nothing is due within a day"
    if done.next_at is not None:
        when = f"next due at {done.next_at.isoformat(timespec='seconds')}"
    parts.append(when)
    return "; ".join(parts)
