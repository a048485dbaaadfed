"""What becomes of the work of another library here: its kind, its arguments, its options."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from forebay._dataclass import dataclass
from forebay.arguments.json_guard import encode_args
from forebay.arguments.keys import KindOptions
from forebay.errors import ConfigError, EnqueueError, InvalidJob, shown
from forebay.model import checks
from forebay.model.schedules import Schedule
from forebay.model.unique import SECONDS_MAX, Throttle
from forebay.moving.found import FoundJob, FoundSchedule, UnkeptError, Work
from forebay.ops.enqueue import Call
from forebay.ops.schedules import schedule_facts

if TYPE_CHECKING:
    from forebay.arguments.kinds import Kinds

#: What a name of a schedule may not have.
_NOT_IN_NAMES: Final = re.compile(r"[^A-Za-z0-9_.:-]+")
_NAME_MAX: Final = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """How the work of a source becomes ours.

    Attributes:
        kinds: of the application; None: without one, nothing is known of them.
        declared: the options of a kind there; None of an unknown one.
        queue_of: the queue of a kind without an application, as workers declared it.
        names: kinds by the names of tasks; a task that is not among them has its name as kind.
        queue: of all jobs; None: as in the source, or that of the kind.
    """

    kinds: Kinds | None = None
    declared: Callable[[str], KindOptions | None] = lambda _kind: None
    queue_of: Callable[[str], str | None] = lambda _kind: None
    names: Mapping[str, str]
    queue: str | None = None

    def schedule(self, found: FoundSchedule) -> Schedule:
        """Return a schedule.

        Raises:
            UnkeptError: it cannot be kept exactly.
        """
        work = found.work
        kind, args = self._kind(work), self._args(work)
        options = self.declared(kind) or KindOptions()
        expires_in = options.expires_in_seconds if found.expires_in is None else found.expires_in
        try:
            made = Schedule(
                name=schedule_name(found.name),
                kind=kind,
                cron=found.cron,
                every=found.every,
                tz=found.tz,
                args=json.loads(args),
                queue=self.queue or work.queue or options.options.queue,
                priority=self._priority(work, options),
                # As beat does: it sends a task whatever became of the one before, and when it
                # starts late, it sends one for all that it missed.
                overlap="allow",
                missed="latest",
                catch_up=found.catch_up,
                starts_at=found.starts_at,
                options={
                    "tag": options.options.tag,
                    "max_attempts": options.options.max_attempts,
                    "headers": dict(work.headers) or None,
                    "expires_in": expires_in,
                },
            )
            schedule_facts(made)
        except InvalidJob as error:
            raise UnkeptError(str(error)) from None
        return made

    def job(self, found: FoundJob) -> Call:
        """Return a job, ready to be enqueued under a key that outlives it.

        Raises:
            UnkeptError: it cannot be kept exactly.
        """
        work = found.work
        kind, args = self._kind(work), self._args(work)
        declared = self.declared(kind) or KindOptions()
        given: dict[str, Any] = {
            "queue": self.queue or work.queue or declared.options.queue or self.queue_of(kind),
            "priority": self._priority(work, declared),
            "run_at": found.run_at,
            "expires_at": found.expires_at,
            "headers": dict(work.headers) or None,
            "ordering_key": found.ordering_key,
            "max_attempts": found.max_attempts,
        }
        try:
            options = declared.options.merged(
                **{name: value for name, value in given.items() if value is not None},
                unique=Throttle(found.source_id, period=SECONDS_MAX),
            )
            if declared.keys is not None:
                options = declared.keys.options(args, options, with_unique=False)
        except InvalidJob as error:
            raise UnkeptError(str(error)) from None
        return Call(
            kind=kind,
            args=args,
            options=options.merged(queue=options.queue or "default"),
            expires_in_seconds=(
                None if found.expires_at is not None else declared.expires_in_seconds
            ),
        )

    def _kind(self, work: Work) -> str:
        kind = self.names.get(work.task, work.task)
        try:
            checks.checked_name(kind, "kind")
        except InvalidJob as error:
            raise UnkeptError(str(error)) from None
        if self.kinds is not None and kind not in self.kinds:
            raise UnkeptError(
                f"the app declares no kind {kind}; declare it, or name the kind: "
                f"--map {work.task}=KIND"
            )
        return kind

    @staticmethod
    def _priority(work: Work, declared: KindOptions) -> int:
        for each in (work.priority, declared.options.priority):
            if each is not None:
                return each
        return checks.PRIORITY_DEFAULT

    def _args(self, work: Work) -> str:
        """Return the arguments as JSON, by name, as the handler can read them, if there is one."""
        kind = self.names.get(work.task, work.task)
        handler = None if self.kinds is None else self.kinds.get(kind)
        names = None if handler is None else handler.arguments.names
        values = _by_name(work, work.parameters if names is None else names)
        if names is not None and not values.keys() <= set(names):
            raise UnkeptError(f"kind {kind} takes no argument {min(values.keys() - set(names))}")
        try:
            text = encode_args(values)
            if handler is not None:
                handler.decode(json.loads(text))
        except EnqueueError as error:
            raise UnkeptError(f"its arguments: {error}") from None
        return text


def _by_name(work: Work, parameters: tuple[str, ...] | None) -> dict[str, Any]:
    if not work.positional:
        return dict(work.named)
    if parameters is None:
        raise UnkeptError(
            "it has arguments by position, and the names of its parameters are not known; "
            "name the application: --app MODULE:APP"
        )
    if len(work.positional) > len(parameters):
        raise UnkeptError(
            f"it has {len(work.positional)} arguments by position, and the kind takes "
            f"{len(parameters)}"
        )
    by_place = dict(zip(parameters, work.positional, strict=False))
    twice = by_place.keys() & work.named.keys()
    if twice:
        raise UnkeptError(f"its argument {min(twice)} is given twice")
    return by_place | dict(work.named)


def schedule_name(name: str) -> str:
    """Return the name of a schedule as ours may be.

    >>> schedule_name("add every 30 s"), schedule_name("9 o'clock")
    ('add-every-30-s', '_9-o-clock')
    """
    made = _NOT_IN_NAMES.sub("-", name.strip()).strip("-")[:_NAME_MAX]
    return made if made[:1].isalpha() or made[:1] == "_" else f"_{made}"[:_NAME_MAX]


def kinds_by_task(texts: list[str] | None) -> dict[str, str]:
    """Return the kinds that ``--map TASK=KIND`` names.

    Raises:
        ConfigError: a text has another form.
    """
    found = {}
    for text in texts or ():
        task, _, kind = text.rpartition("=")
        if not task or not kind:
            raise ConfigError("--map", f"is {shown(text)}, not TASK=KIND", value=text)
        found[task] = kind
    return found
