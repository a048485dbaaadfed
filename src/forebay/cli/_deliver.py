"""forebay deliver: expand published events and send deliveries until a signal."""

from __future__ import annotations

from typing import Annotated, Any, Final

from forebay.cli._commands import option
from forebay.cli._serving import delivering_workers, run_and_report, set_up_log
from forebay.cli._worker import LogForm, LogLevel
from forebay.cli.options import Dsn, Json, setting_flags
from forebay.errors import ConfigError

_SLOTS_MAX: Final = 10_000


def deliver(
    *,
    concurrency: Annotated[
        int, option("--concurrency N", "Deliveries that this process holds: 1 to 10,000.")
    ] = 500,
    until_idle: Annotated[
        bool,
        option(
            "--until-idle",
            "Exit when all events are expanded and sent, also those that limits held back; not"
            " those that wait for a retry, an open breaker or a pause.",
        ),
    ] = False,
    log_level: LogLevel = "info",
    log_format: LogForm = "text",
    dsn: Dsn = None,
    as_json: Json = False,
    flags: Annotated[dict[str, Any], setting_flags("worker", "delivery")],
) -> None:
    """Expand published events, and send their deliveries to the endpoints.

    Needs no application. Any number of processes may run. On SIGTERM or Ctrl-C, or when
    its terminal is closed, it waits up to grace_seconds (30) for running calls. A second signal
    stops it at once.
    """
    from forebay.app import App
    from forebay.config import load_settings

    set_up_log(log_level, log_format)
    if not 1 <= concurrency <= _SLOTS_MAX:
        raise ConfigError("--concurrency", f"is {concurrency}, not within 1 to {_SLOTS_MAX:,}")
    app = App(dsn, name="deliver")
    app._internals.use(dsn=dsn, settings=load_settings(flags))
    phases = delivering_workers(app.dsn, app.settings, slots=concurrency)
    run_and_report(phases, app.settings.worker, until_idle=until_idle, as_json=as_json)
