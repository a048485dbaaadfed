"""What is declared in code: kinds, queues, schedules, resources, mirrors, drains, what runs around
jobs and after them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from forebay.app._middleware import Middlewares
from forebay.app._resources import Resources
from forebay.arguments.kinds import Kinds
from forebay.errors import ConfigError, shown

if TYPE_CHECKING:
    from collections.abc import Callable

    from forebay.arguments.keys import KindOptions
    from forebay.arguments.kinds import Kind
    from forebay.model.declared import Queue, QueueSettings
    from forebay.model.schedules import Schedule


class DrainDeclaration(Protocol):
    """A drain, as an app knows it."""

    @property
    def name(self) -> str:
        """The name."""

    @property
    def queue(self) -> str:
        """Its queue."""

    @property
    def group(self) -> str:
        """Its consumer group."""


class Declaration(Protocol):
    """A named declaration of an app other than a handler."""

    @property
    def name(self) -> str:
        """The name."""


class Declarations:
    """Declarations, which another object can take.

    Attributes:
        resources: what handlers find in their context.
        mirrors: the mirrors, by name.
        drains: the drains, by name.
        middlewares: what runs around enqueues, attempts and settlements.
        listeners: the functions to call after an event, by its name: failed, dead, done,
            worker_lost.
        queues: the queues, by name.
        schedules: the schedules, by name.
    """

    def __init__(self) -> None:
        self.resources = Resources()
        self.mirrors: dict[str, Declaration] = {}
        self.drains: dict[str, DrainDeclaration] = {}
        self.middlewares = Middlewares()
        self.listeners: dict[str, list[Callable[[Any], Any]]] = {}
        self.queues: dict[str, Queue] = {}
        self.schedules: dict[str, Schedule] = {}
        self._kinds = Kinds()
        #: Kinds without a retry policy, with their maximum attempts if given; the settings decide
        #: the rest.
        self._without_retry: dict[str, int | None] = {}
        self._retries_known = False
        self._follow_ups_known = False
        self._options: dict[str, KindOptions] = {}
        #: By the name of the kind, and the arguments that the worker gives.
        self._encoders: dict[tuple[str, ...], Callable[..., str]] = {}

    def take(self, other: Declarations) -> None:
        """Take the declarations of another object, all or none.

        Raises:
            ConfigError: something is declared in both, with another meaning.
        """
        trial = Declarations()
        trial._add_all(self)
        trial._add_all(other)
        self._add_all(other)

    def _add_all(self, other: Declarations) -> None:
        for kind in other._kinds:
            self.add_kind(kind)
        self._options |= other._options
        self._without_retry |= other._without_retry
        self._retries_known = False
        for queue in other.queues.values():
            self.add_queue(queue)
        for schedule in other.schedules.values():
            self.add_schedule(schedule)
        for mirror in other.mirrors.values():
            self.add_mirror(mirror)
        for drain in other.drains.values():
            self.add_drain(drain)
        self.resources.add_all(other.resources)
        for middleware in other.middlewares.all:
            self.middlewares.add(middleware)
        for event, listeners in other.listeners.items():
            for listener in listeners:
                self.add_listener(event, listener)

    def add_kind(self, kind: Kind) -> None:
        """Add a kind; it replaces one of the same name and function."""
        self._kinds.add(kind)
        self._follow_ups_known = False
        for place in [each for each in self._encoders if each[0] == kind.name]:
            del self._encoders[place]

    def add_options(self, kind: str, options: KindOptions) -> None:
        """Remember the options of a kind's jobs, for jobs that are enqueued by name."""
        self._options[kind] = options

    def options_of(self, kind: str) -> KindOptions | None:
        """Return the options of a kind's jobs; None if it is not declared."""
        return self._options.get(kind)

    def leave_retry_to_settings(self, kind: str, max_attempts: int | None) -> None:
        """Take the retry policy of a kind from the settings, except for the attempts if given."""
        self._without_retry[kind] = max_attempts
        self._retries_known = False

    def add_listener(self, event: str, listener: Callable[[Any], Any]) -> None:
        """Call a function after each event of this name.

        Raises:
            ConfigError: it is not a function.
        """
        if not callable(listener):
            raise ConfigError(f"on_{event}", f"is not a function: {shown(listener)}")
        self.listeners.setdefault(event, []).append(listener)

    def add_mirror(self, mirror: Declaration) -> None:
        """Add a mirror.

        Raises:
            ConfigError: another mirror has this name.
        """
        if mirror.name in self.mirrors:
            raise ConfigError(f"mirror {mirror.name}", "is declared twice")
        self.mirrors[mirror.name] = mirror

    def add_drain(self, drain: DrainDeclaration) -> None:
        """Add a drain.

        Raises:
            ConfigError: another drain has this name, or the same queue and group.
        """
        if drain.name in self.drains:
            raise ConfigError(f"drain {drain.name}", "is declared twice")
        for other in self.drains.values():
            if (other.queue, other.group) == (drain.queue, drain.group):
                raise ConfigError(
                    f"drain {drain.name}",
                    f"reads queue {drain.queue} in group {drain.group}, as drain {other.name} does:"
                    " each message would be sent by only one of them",
                    hint=f"Give it a consumer group: group={drain.name!r}.",
                )
        self.drains[drain.name] = drain

    def add_queue(self, queue: Queue) -> None:
        """Add a queue.

        Raises:
            ConfigError: it is declared already, with other settings.
        """
        before = self.queues.setdefault(queue, queue).settings
        if before != queue.settings:
            raise ConfigError(
                f"queue {queue}",
                (
                    f"is declared twice: with {_in_words(before)}, and with "
                    f"{_in_words(queue.settings)}"
                ),
            )

    def add_schedule(self, schedule: Schedule) -> None:
        """Add a schedule.

        Raises:
            ConfigError: another schedule has this name.
        """
        if self.schedules.setdefault(schedule.name, schedule) != schedule:
            raise ConfigError(
                f"schedule {schedule.name}",
                "is declared twice",
                hint="Give one of them another name.",
            )


def _in_words(settings: QueueSettings) -> str:
    given = [f"{name} {value!r}" for name, value in settings.given().items()]
    return ", ".join(given) or "no settings"
