"""The queue of jobs that a command enqueues, and answers to misspelt queues: is one in use, do
workers serve it?
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING, Any

from forebay.cli._database import address_of, client_of
from forebay.cli._load import load_app
from forebay.errors import ConfigError, DatabaseUnavailable, SchemaError, shown
from forebay.model.text import logger

if TYPE_CHECKING:
    from forebay.app import App
    from forebay.arguments.kinds import Kind
    from forebay.client import Client

log = logger("forebay.cli")


def check_queues_of_worker(app: App) -> None:
    """Refuse a queue that is probably misspelt: no kind of the app is in it, the database does
    not know it, and its name is like that of a queue of the app. Warn of others without a kind:
    jobs can be enqueued there with ``using(queue=...)``.

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
                " another queue with using(queue=...), open it first: "
                "app.client().open_group(...).",
            )
        log.warning("--queue %s", problem)


def _is_in_use(dsn: str, queue: str) -> bool:
    from forebay.db.own import run_own
    from forebay.ops.queues import queue_known

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
    from forebay.db.own import run_own
    from forebay.ops.queues import queue_known

    has_jobs, is_served = run_own(address_of(dsn), queue_known(queue))
    if not has_jobs and not is_served:
        raise ConfigError(
            "queue",
            f"is {shown(queue)}: no job was enqueued there, and no worker has served it",
            value=queue,
            hint="`forebay queues list` shows the queues. For one that will be used: --new.",
        )


def client_for(
    kind: str, *, queue: str | None, app: str | None, dsn: str | None
) -> tuple[Client, str, str | None]:
    """Return the client that enqueues jobs of a kind, their queue, and a warning if no worker
    has declared the one or served the other.

    The queue is the given one, that of the app, or that of the workers.

    Raises:
        ConfigError: neither the app nor a worker has declared the kind, and no queue is given.
    """
    from forebay.db.own import run_own
    from forebay.ops.queues import queue_of

    if app is None:
        return client_of(dsn), *_queue_and_doubt(address_of(dsn), kind, queue)
    found, _ = load_app(app)
    found._internals.use(dsn=dsn)
    if queue is None and kind in found.kinds:
        return found.client(), found.kinds.get(kind).queue, None
    if queue is None:
        queue = run_own(found.dsn, queue_of(kind))
    if queue is None:
        raise _no_such_kind(found, kind)
    return found.client(), *_queue_and_doubt(found.dsn, kind, queue)


def check_args(kind: str, args: dict[str, Any], *, app: str | None) -> None:
    """Refuse arguments that the handler of an application would not take.

    Raises:
        InvalidJob: one is unknown, missing, or of another type.
    """
    if (found := _kind_of(app, kind)) is not None:
        found.check_names(args.keys())
        found.decode(args)


def check_names(kind: str, names: AbstractSet[str], *, app: str | None) -> None:
    """Refuse names of arguments that the handler of an application would not take.

    Raises:
        InvalidJob: one is unknown, or missing.
    """
    if (found := _kind_of(app, kind)) is not None:
        found.check_names(names)


def _kind_of(app: str | None, kind: str) -> Kind | None:
    if app is None:
        return None
    kinds = load_app(app)[0].kinds
    return kinds.get(kind) if kind in kinds else None


def _queue_and_doubt(dsn: str, kind: str, queue: str | None) -> tuple[str, str | None]:
    from forebay.arguments.kinds import QUEUE_DEFAULT
    from forebay.db.own import run_own
    from forebay.model.checks import checked_name
    from forebay.ops.queues import queue_known, queue_of

    declared = run_own(dsn, queue_of(kind))
    name = declared or QUEUE_DEFAULT if queue is None else checked_name(queue, "queue")
    _, is_served = run_own(dsn, queue_known(name))
    if queue is None and declared is None:
        which = "" if is_served else ", and none has ever served that one"
        return name, (
            f"no worker has declared kind {kind}, so it goes to queue {name}{which}; name "
            f"its queue with --queue, or the app"
            " with --app"
        )
    if is_served:
        return name, None
    text = f"no worker has ever served queue {name}"
    if declared not in {None, name}:
        text += f"; the workers of kind {kind} serve queue {declared}"
    return name, text


def warn(text: str | None) -> None:
    """Print a warning on stderr, if there is one."""
    if text is not None:
        from forebay.cli.text import console

        console(stderr=True).print(f"warning: {text}", style="yellow", soft_wrap=True)


def _no_such_kind(app: App, kind: str) -> ConfigError:
    names = sorted(known.name for known in app.kinds)
    return ConfigError(
        "kind",
        f"is {shown(kind)}, which neither the app nor a worker has declared",
        value=kind,
        hint=f"{_similar(kind, names)}For a kind of another app, name its queue with --queue.",
    )


def _similar(name: str, known: Iterable[str]) -> str:
    found = difflib.get_close_matches(name, known, n=1)
    return f"Did you mean {found[0]}? " if found else ""
