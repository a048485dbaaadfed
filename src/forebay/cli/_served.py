"""Answers to misspelt queues: whether a queue is in use, and whether workers serve it."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import TYPE_CHECKING

from forebay.cli.output import console
from forebay.client import address_of
from forebay.db.own import run_own
from forebay.errors import ConfigError, DatabaseUnavailable, SchemaError, shown
from forebay.model.text import logger
from forebay.ops.queues import queue_known

if TYPE_CHECKING:
    from forebay.app import App

log = logger("forebay.cli")


def check_queues_of_worker(app: App) -> None:
    """Refuse a queue that is probably misspelt: no kind of the app is in it, the database does not know it, and its name is like
    that of a queue of the app. Warn of others without a kind: jobs can be enqueued there with ``using(queue=...)``.

    Raises:
        ConfigError: a queue is probably misspelt.
    """
    declared = app.kinds.queues()
    for queue in app.settings.worker.queue_weights or ():
        if queue in declared:
            continue
        problem = f"names {queue}, and no kind of this app is in that queue"
        similar = _similar(queue, declared)
        if similar and not _is_in_use(app.dsn, queue):
            raise ConfigError(
                "queue",
                problem,
                value=queue,
                hint=f"{similar}Queues of the app: {', '.join(declared)}. For jobs that you send to"
                " another queue with using(queue=...), open it first: app.client().open_group(...).",
            )
        log.warning("--queue %s", problem)


def _is_in_use(dsn: str, queue: str) -> bool:
    try:
        has_jobs, is_served = run_own(dsn, queue_known(queue))
    except (DatabaseUnavailable, SchemaError):
        return True  # The worker waits for it, and reports it.
    return has_jobs or is_served


def check_queue_in_use(dsn: str | None, queue: str) -> None:
    """Refuse the name of a queue that the database does not know.

    Raises:
        ConfigError: the queue is probably misspelt.
    """
    has_jobs, is_served = run_own(address_of(dsn), queue_known(queue))
    if not has_jobs and not is_served:
        raise ConfigError(
            "queue",
            f"is {shown(queue)}: no job was enqueued there, and no worker has served it",
            value=queue,
            hint="`forebay queues list` shows the queues. For one that will be used: --new.",
        )


def warn_unserved(dsn: str | None, queue: str, advice: str = "") -> None:
    """Warn on stderr if no worker has ever served a queue."""
    _, is_served = run_own(address_of(dsn), queue_known(queue))
    if not is_served:
        text = f"warning: no worker has ever served queue {queue}"
        console(stderr=True).print(f"{text}; {advice}" if advice else text, style="yellow")


def check_kind(app: App, kind: str) -> None:
    """Refuse a kind that the app does not have.

    Raises:
        ConfigError: the kind is probably misspelt.
    """
    if kind not in app.kinds:
        names = sorted(known.name for known in app.kinds)
        raise ConfigError(
            "kind",
            f"is {shown(kind)}, which the app does not have",
            value=kind,
            hint=f"{_similar(kind, names)}For a kind of another app, name its queue with --queue.",
        )


def _similar(name: str, known: Iterable[str]) -> str:
    found = difflib.get_close_matches(name, known, n=1)
    return f"Did you mean {found[0]}? " if found else ""
