"""The schedules of a Celery app: ``app.conf.beat_schedule``."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from typing import Any

import celery

from forebay.errors import ConfigError, shown
from forebay.moving.celery_words import options_of, order_of, timing_of
from forebay.moving.found import (
    FoundJob,
    FoundSchedule,
    Refused,
    UnkeptError,
    Work,
    owner_of,
)


class CeleryBeat:
    """The schedules that beat of a Celery app would run.

    Args:
        app: a ``celery.Celery``.
        place: where it was found.
        source: its name; None: its place, and the main name of the app.

    Raises:
        ConfigError: it is not a Celery app.
    """

    def __init__(self, app: Any, place: str, source: str | None = None) -> None:
        if not isinstance(app, celery.Celery):
            raise ConfigError(
                "MODULE:APP", f"names {place}, which is {shown(app)} and not a celery.Celery"
            )
        self._app = app
        self.label = owner_of("celery-beat", source, f"{place} {app.main or ''}".rstrip())
        self.farewell = (
            "stop beat first, and take the schedules out of beat_schedule: both would run them"
        )

    def read(self) -> Iterator[FoundSchedule | FoundJob | Refused]:
        """Yield the schedules, by name."""
        entries = self._app.conf.beat_schedule
        if not isinstance(entries, Mapping):
            raise ConfigError("beat_schedule", f"is {shown(entries)}, not a mapping")
        self._app.loader.import_default_modules()
        for name in sorted(entries, key=str):
            try:
                yield self._found(str(name), entries[name])
            except UnkeptError as error:
                yield Refused(name=str(name), reason=str(error))

    def _found(self, name: str, entry: Any) -> FoundSchedule:
        given = dict(entry) if isinstance(entry, Mapping) else None
        if given is None or not isinstance(given.get("task"), str) or "schedule" not in given:
            raise UnkeptError("it is no entry with a task and a schedule")
        if given.get("relative"):
            raise UnkeptError("it is rounded to whole units (relative): write it as a crontab")
        positional, named = given.get("args") or (), given.get("kwargs") or {}
        if not isinstance(positional, (list, tuple)) or not isinstance(named, Mapping):
            raise UnkeptError("its arguments are computed at each run: compute them in the handler")
        conf = self._app.conf
        options = options_of(given.get("options") or {}, order_of(conf.broker_url))
        expires_in = options.pop("expires_in", None)
        deadline = conf.beat_cron_starting_deadline
        when = given["schedule"]
        if hasattr(when, "app"):
            when.app = self._app
        timing = timing_of(when, None)
        if deadline is not None and "cron" in timing:
            timing["catch_up"] = float(deadline)
        return FoundSchedule(
            name=name,
            work=Work(
                task=given["task"],
                positional=tuple(positional),
                named=named,
                parameters=self._parameters(given["task"]),
                **options,
            ),
            expires_in=expires_in,
            **timing,
        )

    def _parameters(self, task: str) -> tuple[str, ...] | None:
        known = self._app.tasks.get(task)
        if known is None:
            return None
        try:
            parameters = inspect.signature(known.run).parameters.values()
        except (TypeError, ValueError):
            return None
        by_place = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        return tuple(each.name for each in parameters if each.kind in by_place)
