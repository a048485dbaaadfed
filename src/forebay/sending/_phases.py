"""The workers that an application needs."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from forebay.errors import ConfigError
from forebay.sending._deliverer import SLOTS_DEFAULT, Deliverer
from forebay.sending._drain import drains_of
from forebay.sending._router import Router
from forebay.worker import Worker

if TYPE_CHECKING:
    from collections.abc import Callable

    from forebay.app import App
    from forebay.config import Settings, WorkerSettings
    from forebay.sending._drain import Drain


def phases_of(
    app: App,
    settings: WorkerSettings,
    *,
    location: tuple[str, str, bool] | None = None,
    group: str = "default",
    endpoints: bool = False,
    report: Callable[[Worker, Drain | None], object] = lambda _worker, _drain: None,
) -> list[list[Worker]]:
    """Return the worker of an application's handlers, then, unless queues or a group were chosen,
    those of its drains, then those of endpoints. Each phase makes work for the next ones.

    Args:
        app: the application.
        settings: of its workers.
        location: where child processes find the app; see ``Worker``.
        group: the consumer group of the handlers.
        endpoints: also expand published events and send deliveries.
        report: called with the worker of the handlers and None, and with each of a drain and that.

    Raises:
        ConfigError: a drain and the handlers read the same queue in the same group.
    """
    queues = settings.queue_weights or app.kinds.queues()
    declared = drains_of(app).values()
    drains = [] if settings.queue_weights or group != "default" else list(declared)
    for drain in declared:
        if drain.group == group and drain.queue in queues:
            raise ConfigError(
                f"drain {drain.name}",
                f"reads queue {drain.queue} in group {group}, as the handlers do: each job would be"
                " sent or run, not both",
                hint=f"Give the drain a consumer group: group={drain.name!r}.",
            )
    phases = []
    if queues or not (drains or endpoints):
        made = Worker(app._internals, app.dsn, settings=settings, group=group, location=location)
        report(made, None)
        phases.append([made])
    if drains:
        phases.append([each.worker(app.dsn, in_this_process(settings)) for each in drains])
        for worker, drain in zip(phases[-1], drains, strict=True):
            report(worker, drain)
    if endpoints:
        phases += delivering(app.dsn, app.settings, settings)
    return phases


def delivering(
    dsn: str, settings: Settings, of_workers: WorkerSettings, *, slots: int = SLOTS_DEFAULT
) -> list[list[Worker]]:
    """Return a router, then a deliverer.

    Args:
        dsn: the database.
        settings: what rows of endpoints may set.
        of_workers: the settings of both.
        slots: how many deliveries the deliverer holds.
    """
    deliverer = Deliverer(slots=slots, permissions=settings.delivery)
    made = (Router(), deliverer)
    return [[each.worker(dsn, in_this_process(of_workers))] for each in made]


def in_this_process(settings: WorkerSettings) -> WorkerSettings:
    """Return the settings of a worker whose handler is Forebay's: child processes run those of
    the application.
    """
    return replace(settings, processes=None)
