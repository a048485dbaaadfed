"""forebay import: schedules and waiting jobs of other libraries."""

from __future__ import annotations

import functools
import importlib
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

from forebay.cli._acts import agreed
from forebay.cli._commands import Commands, Together, argument, option
from forebay.cli._database import address_of, run
from forebay.cli._load import check_place, load_app
from forebay.cli._patience import patience
from forebay.cli._served import warn
from forebay.cli.options import AppDir, How
from forebay.cli.output import print_json, table
from forebay.cli.text import Text, console
from forebay.errors import ConfigError, shown
from forebay.model.text import counted, replaced_controls

if TYPE_CHECKING:
    from forebay.moving.fit import Fit
    from forebay.moving.found import Source
    from forebay.moving.write import Move

commands = Commands()

_SOURCE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,59}")

_STYLES = {"conflict": "bold yellow", "kept": "yellow", "vanished": "yellow", "same": "dim"}
_WORDS = {
    "create": ("would create", "created"),
    "change": ("would change", "changed"),
    "same": ("is as there", "is as there"),
    "kept": ("kept: changed by hand", "kept: changed by hand"),
    "conflict": ("not touched", "not touched"),
    "vanished": (
        "not there any more, still runs: forebay schedules drop",
        "not there any more, still runs: forebay schedules drop",
    ),
}


class _Target(NamedTuple):
    """What becomes of tasks here."""

    map_: list[str] | None
    app: str | None
    app_dir: Path | None
    to_queue: str | None


def _target(
    *,
    map_: Annotated[
        list[str] | None,
        option("--map TASK=KIND", "The kind of a task; repeatable. Default: the task's name."),
    ] = None,
    app: Annotated[
        str | None,
        option("--app MODULE:APP", "Your forebay.App: kinds and arguments are checked by it."),
    ] = None,
    app_dir: AppDir = None,
    to_queue: Annotated[
        str | None, option("--to-queue QUEUE", "Queue of all jobs. Default: as there.")
    ] = None,
) -> _Target:
    return _Target(map_, app, app_dir, to_queue)


Target = Annotated[_Target, Together(_target)]

Broker = Annotated[
    str | None,
    option("--broker NAME", "redis or amqp: says which of two priorities goes first."),
]


SourceName = Annotated[
    str | None,
    option("--source NAME", "Name of the source, to tell it from others that look alike."),
]


@commands.add("celery-beat")
def celery_beat(
    celery_app: Annotated[str, argument("MODULE:APP", "The Celery app: proj.celery:app.")],
    *,
    name: SourceName = None,
    target: Target,
    how: How,
) -> None:
    """Import the schedules of a Celery app: its beat_schedule.

    What cannot be kept exactly is named with the reason, and not written. A repeated import changes
    nothing. Nothing is changed in Celery.
    """
    from forebay.moving.celery_beat import CeleryBeat

    name = _checked_source(name)
    _needs("celery", "celery")
    found = _attribute(celery_app, target.app_dir)
    _move(CeleryBeat(found, celery_app, name), target, how)


@commands.add("django-celery-beat")
def django_celery_beat(
    *,
    source: Annotated[
        str | None, option("--from ADDRESS", "Django's database. Default: that of Forebay.")
    ] = None,
    broker: Broker = None,
    name: SourceName = None,
    target: Target,
    how: How,
) -> None:
    """Import the periodic tasks of django-celery-beat, from their tables in PostgreSQL.

    A clocked task becomes a job with a time. What cannot be kept exactly is named with the reason,
    and not written. A repeated import changes nothing. Nothing is changed in the tables.
    """
    from forebay.moving.celery_words import order_of
    from forebay.moving.django_celery_beat import DjangoCeleryBeat

    name = _checked_source(name)
    _needs("celery", "celery")
    address = address_of(how.dsn) if source is None else source
    order = order_of(broker)
    if broker is not None and order is None:
        raise ConfigError("--broker", "is neither redis nor amqp", value=broker)
    _move(DjangoCeleryBeat(lambda operation: run(address, operation), order, name), target, how)


@commands.add("celery")
def celery(
    *,
    broker: Annotated[str, option("--broker ADDRESS", "The Redis: redis://localhost:6379/0.")],
    queue: Annotated[str, option("--queue QUEUE", "Celery's queue.")] = "celery",
    target: Target,
    how: How,
) -> None:
    """Import the jobs of Celery that wait in Redis.

    Stop the Celery workers first. Each message becomes one job, however often you import, and stays
    in Redis; the command says how to empty the queue. What cannot be kept is named with the reason:
    parts of chains and chords, bodies that are not JSON.
    """
    _needs("redis", "redis")
    from forebay.moving.celery_redis import CeleryRedis

    _move(CeleryRedis(broker, queue), target, how)


@commands.add("rq")
def rq(
    *,
    redis: Annotated[str, option("--redis ADDRESS", "The Redis: redis://localhost:6379/0.")],
    queue: Annotated[str, option("--queue QUEUE", "RQ's queue.")] = "default",
    trust_pickles: Annotated[
        bool,
        option(
            "--trust-pickles",
            "Unpickle arguments: this runs what the writers of that Redis want.",
        ),
    ] = False,
    target: Target,
    how: How,
) -> None:
    """Import the jobs of RQ that wait, in the queue or for their time.

    Stop the RQ workers first. Each job becomes one here, however often you import, and stays in
    Redis. RQ writes pickles unless it was told to write JSON; they are refused without
    --trust-pickles.
    """
    _needs("redis", "redis")
    from forebay.moving.rq import Rq

    _move(Rq(redis, queue, trust_pickles=trust_pickles), target, how)


From = Annotated[str | None, option("--from ADDRESS", "Its database. Default: that of Forebay.")]


@commands.add("procrastinate")
def procrastinate(
    *,
    source: From = None,
    queue: Annotated[str | None, option("--queue QUEUE", "Only this queue of it.")] = None,
    target: Target,
    how: How,
) -> None:
    """Import the jobs of procrastinate that wait: those in status todo.

    Stop its workers first. Each job becomes one here, however often you import, and stays there. A
    lock becomes an ordering key.
    """
    _of_table("procrastinate", source, queue, target, how)


@commands.add("pgqueuer")
def pgqueuer(*, source: From = None, target: Target, how: How) -> None:
    """Import the jobs of pgqueuer that wait: those in status queued.

    Stop its workers first. Each job becomes one here, however often you import, and stays there. A
    payload that is not a JSON object is refused by name.
    """
    _of_table("pgqueuer", source, None, target, how)


def _of_table(
    library: str, source: str | None, queue: str | None, target: _Target, how: How
) -> None:
    from forebay.moving.sql_queues import SqlQueue

    address = address_of(how.dsn) if source is None else source
    _move(SqlQueue(library, lambda operation: run(address, operation), queue), target, how)


def _checked_source(name: str | None) -> str | None:
    """Return the name of a source as it may be; it cannot be mistaken for the place of another.

    Raises:
        ConfigError: it is longer, or has other characters.
    """
    if name is None or _SOURCE_NAME.fullmatch(name):
        return name
    raise ConfigError(
        "--source",
        f"is {shown(name)}, not a name of 1 to 60 letters, digits and _ . -",
        value=name,
        hint="Name the project: --source shop-eu.",
    )


def _needs(module: str, extra: str) -> None:
    try:
        importlib.import_module(module)
    except ImportError:
        raise ConfigError(
            module, "is not installed", hint=f"python -m pip install 'forebay[{extra}]'"
        ) from None


def _attribute(place: str, folder: Path | None) -> Any:
    module_name, attribute = check_place(place, folder)
    found: object = importlib.import_module(module_name)
    for part in attribute.split("."):
        if not hasattr(found, part):
            raise ConfigError(
                "MODULE:APP", f"names {attribute}, which module {module_name} does not have"
            )
        found = getattr(found, part)
    return found


def _fit(target: _Target, dsn: str | None) -> tuple[Fit, str]:
    """Return what becomes of tasks, and the address of the database."""
    from forebay.moving.fit import Fit, kinds_by_task
    from forebay.ops.queues import queue_of

    names = kinds_by_task(target.map_)
    if target.app is None:
        address = address_of(dsn)
        return (
            Fit(
                names=names,
                queue=target.to_queue,
                queue_of=functools.cache(lambda kind: run(address, queue_of(kind))),
            ),
            address,
        )
    found, _ = load_app(target.app, target.app_dir)
    found._internals.use(dsn=dsn)
    return (
        Fit(
            names=names,
            queue=target.to_queue,
            kinds=found.kinds,
            declared=found._internals.options_of,
        ),
        found.dsn,
    )


def _move(source: Source, target: _Target, how: How) -> None:
    from forebay.moving.write import Mover

    fit, address = _fit(target, how.dsn)
    mover = Mover(address, source, fit)
    token = agreed(how, mover.look, _question, lambda plan: _show(plan, source.farewell))
    with patience("import", "run the same command again: what is here is not written twice") as (
        progress
    ):
        done = mover.write(token, progress.note)
    if how.as_json:
        print_json(done)
    else:
        _show(done, source.farewell)


def _question(plan: Move) -> str:
    parts = []
    if plan.pending:
        parts.append(counted(plan.pending, "schedule"))
    if plan.new:
        parts.append(counted(plan.new, "job"))
    return f"Write {' and '.join(parts)}?"


def _show(move: Move, farewell: str) -> None:
    """Print what an import does, or has done, in the same words."""
    out = console()
    if move.schedules:
        rows = table("schedule", "there", "kind", "when", "", loose=("schedule", "there", ""))
        for step in move.schedules:
            rows.add_row(
                step.name,
                "-" if step.source_name in (None, step.name) else _shown(str(step.source_name)),
                step.kind or "-",
                step.when or "-",
                Text(
                    _WORDS[step.action][move.is_done] + (f": {step.detail}" if step.detail else ""),
                    style=_STYLES.get(step.action, "green"),
                ),
            )
        out.print(rows)
    for each in move.waiting:
        verb = "enqueued" if move.is_done else "would enqueue"
        known = f", {each.known:,} are here" if each.known else ""
        out.print(f"{verb} {counted(each.new, 'job')} of {each.kind} in queue {each.queue}{known}")
    for one in move.refused:
        out.print(
            Text.assemble(("refused ", "bold yellow"), f"{_shown(one.name)}: {_shown(one.reason)}"),
            soft_wrap=True,
        )
    if not (move.schedules or move.waiting or move.refused):
        out.print("Nothing is there.", style="dim")
    for doubt in move.doubts:
        warn(doubt)
    if not move.is_done:
        out.print(f"token {move.token}", style="dim", soft_wrap=True)
        if move.jobs:
            out.print(
                "→ run it again with --token instead of --dry-run; it writes this, or nothing",
                soft_wrap=True,
            )
    elif move.schedules or move.waiting:
        out.print(f"→ {farewell}", soft_wrap=True)


def _shown(text: str) -> str:
    return replaced_controls(text.replace("\n", " "))
