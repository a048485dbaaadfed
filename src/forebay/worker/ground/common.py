"""What all rooms of a worker have in common."""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING, Any

from forebay._dataclass import dataclass
from forebay.worker.ground.signals import Signals
from forebay.worker.ground.stats import Stats

if TYPE_CHECKING:
    from collections.abc import Mapping

    from forebay.config import WorkerSettings
    from forebay.worker.ground.application import Application


@dataclass(slots=True, eq=False)
class Common:
    """With what a worker was started, its signals and its counters.

    Attributes:
        app: the part of the application that workers use.
        dsn: the database.
        settings: see ``WorkerSettings``.
        group: name of the consumer group.
        name: the worker's name.
        weights: the queues that it serves, with their weights; none in a child process.
        until_idle: whether it ends when there is nothing left to do.
        signals: wake and end it.
        stats: count what it did.
        followed: the settings of the database that it follows, of those that were set.
    """

    app: Application
    dsn: str
    settings: WorkerSettings
    group: str
    name: str
    weights: Mapping[str, int]
    until_idle: bool = False
    signals: Signals = field(default_factory=Signals)
    stats: Stats = field(default_factory=Stats)
    followed: Mapping[str, Any] = field(default_factory=dict)

    def follow(self, found: Mapping[str, Any]) -> None:
        """Take the settings of the database."""
        if found != self.followed:
            self.followed = found
            self.app.follow(found)

    @property
    def application_name(self) -> str:
        """The name of its connections in the server."""
        return f"forebay {self.name}"[:63]
