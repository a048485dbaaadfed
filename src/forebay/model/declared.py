"""Queues as an application declares them, and how the database differs from the declaration."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from datetime import datetime
from typing import Any, Final, Literal, Self, cast

from forebay._dataclass import dataclass
from forebay.errors import ConfigError, InvalidJob, shown
from forebay.model import checks

RATE_MIN: Final = 0.000001
#: Of rates, bursts and concurrencies.
LIMIT_MAX: Final = 1_000_000
WAITING_MAX: Final = checks.BIGINT_MAX
SHARDS_MAX: Final = 64
DEAD_KEEP_DAYS_MAX: Final = 36_500

#: The integers among the settings, with the largest value.
_INTEGERS: Final = {
    "max_waiting": WAITING_MAX,
    "burst": LIMIT_MAX,
    "concurrency": LIMIT_MAX,
    "key_burst": LIMIT_MAX,
    "key_concurrency": LIMIT_MAX,
    "shards": SHARDS_MAX,
    "dead_keep_days": DEAD_KEEP_DAYS_MAX,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueSettings:
    """The settings that an application declares for a queue.

    A setting that it does not declare is None.

    Attributes:
        max_waiting: see ``Limits``, also for the following ones.
        rate: ...
        burst: ...
        concurrency: ...
        key_rate: ...
        key_burst: ...
        key_concurrency: ...
        shards: number of shards, 1 to 64.
        dead_keep_days: for how many days dead letters are kept, or ``"forever"``.
        groups: names of consumer groups.
        max_waiting_group: see ``Limits``; only with ``max_waiting``.
        notices: whether the queue sends notices of changes.

    Raises:
        InvalidJob: a setting has the wrong type or is out of range.
    """

    max_waiting: int | None = None
    rate: float | None = None
    burst: int | None = None
    concurrency: int | None = None
    key_rate: float | None = None
    key_burst: int | None = None
    key_concurrency: int | None = None
    shards: int | None = None
    dead_keep_days: int | Literal["forever"] | None = None
    groups: tuple[str, ...] = ()
    max_waiting_group: str | None = None
    notices: bool | None = None

    def __post_init__(self) -> None:
        for name, most in _INTEGERS.items():
            value = getattr(self, name)
            if value is not None and (name, value) != ("dead_keep_days", "forever"):
                checks.checked_integer(value, name, least=1, most=most)
        for name in ("rate", "key_rate"):
            _check_rate(getattr(self, name), name)
        for name in ("burst", "key_burst"):
            rate = name.replace("burst", "rate")
            if getattr(self, name) is not None and getattr(self, rate) is None:
                raise InvalidJob(name, f"is given without {rate}")
        if self.max_waiting_group is not None:
            group = checks.checked_name(self.max_waiting_group, "max_waiting_group")
            object.__setattr__(self, "max_waiting_group", group)
            if self.max_waiting is None:
                raise InvalidJob("max_waiting_group", "is given without max_waiting")
        if self.notices is not None and not isinstance(self.notices, bool):
            raise InvalidJob("notices", f"must be True or False, not {shown(self.notices)}")
        object.__setattr__(self, "groups", _checked_groups(self.groups))

    def given(self) -> dict[str, Any]:
        """Return the declared settings by name."""
        return {name: value for name, value in asdict(self).items() if value not in (None, ())}


class Queue(str):
    """A queue that an application declares: its name, with its settings.

    It can be used wherever a name of a queue can.

    ``App.queue`` makes one.

    Attributes:
        settings: the declared settings.
    """

    __slots__ = ("settings",)
    settings: QueueSettings

    def __new__(cls, name: str, settings: QueueSettings) -> Self:
        """Return a queue of this name.

        Raises:
            InvalidJob: the name is not one of a queue.
        """
        made = super().__new__(cls, checks.checked_name(name, "name"))
        made.settings = settings
        return made

    def __getnewargs__(self) -> tuple[str, QueueSettings]:  # type: ignore[override]  # copying and pickling
        return checks.plain_text(self), self.settings


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueDifference:
    """A setting of a queue whose value in the database is not the declared one.

    Attributes:
        queue: the queue.
        setting: ``max_waiting``, ``rate``, ``concurrency``, ``key_rate``, ``key_concurrency``,
            ``shards``, ``dead_keep_days``, ``notices``, or ``group`` and a name. A rate and its
            burst are one setting, and so are ``max_waiting`` and its group.
        database: the value in the database; None for the default. A rate is a dict with ``rate``
            and ``burst``, a ``max_waiting`` that counts for another group than ``default`` one with
            ``max_waiting`` and ``max_waiting_group``, an open group is ``"open"``.
        code: the declared value; None if it is not declared any more.
        applied: the value that was applied last; None if none was.
        applied_by: the application that applied it.
        applied_at: when.
        action: what ``apply`` does. ``set``, ``change``, ``remove``: it makes the database what the
            code declares. ``kept``: the value was changed by hand, the code did not change.
            ``conflict``: it was changed by hand and the code has changed too, or it was set by hand
            before it was first declared, or another application applied it; the value stays.
            ``forget``: it is no longer declared, and stays, because it was changed by hand or is a
            group.
        changed_by: who changed it last, by the event log, if it is kept, in conflict or forgotten;
            None if the log does not tell.
        changed_at: when.
    """

    queue: str
    setting: str
    database: Any
    code: Any
    applied: Any
    applied_by: str | None
    applied_at: datetime | None
    action: Literal["set", "change", "remove", "kept", "conflict", "forget"]
    changed_by: str | None
    changed_at: datetime | None

    @property
    def is_pending(self) -> bool:
        """Whether ``apply`` changes the database."""
        return self.action in ("set", "change", "remove")


def declared_queue(name: str, **settings: Any) -> Queue:
    """Return a declared queue.

    Raises:
        ConfigError: the name or a setting is refused; the error names the queue.
    """
    try:
        return Queue(name, QueueSettings(**settings))
    except InvalidJob as error:
        raise ConfigError(
            f"queue {shown(name) if error.field == 'name' else name}: {error.field}",
            str(error.problem),
            hint=error.hint,
        ) from None


def _check_rate(value: object, name: str) -> None:
    if value is None:
        return
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise InvalidJob(name, f"must be a number, not {type(value).__name__}: {shown(value)}")
    if not RATE_MIN <= value <= LIMIT_MAX:
        raise InvalidJob(
            name, f"is {shown(value)}, not within {RATE_MIN:f} to {LIMIT_MAX:,} starts per second"
        )


def _checked_groups(groups: object) -> tuple[str, ...]:
    if isinstance(groups, str) or not isinstance(groups, Iterable):
        raise InvalidJob(
            "groups", f"must be names, not {shown(groups)}", hint='Write ("default", "audit").'
        )
    names = tuple(checks.checked_name(name, "groups") for name in cast("Iterable[object]", groups))
    if len(set(names)) < len(names):
        raise InvalidJob("groups", f"names a group twice: {', '.join(names)}")
    return names
