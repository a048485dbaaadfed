"""The options of a job."""

from __future__ import annotations

from dataclasses import fields, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, TypedDict

from forebay._dataclass import dataclass
from forebay.errors import InvalidJob, shown
from forebay.model import checks
from forebay.model.unique import Debounce, Unique

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Self


class MessagesOptions(TypedDict, total=False):
    """The options of a job that many messages to an endpoint share."""

    priority: int | None
    tag: str | None
    run_at: datetime | None
    delay: float | timedelta | None
    expires_at: datetime | None
    correlation_id: str | None
    headers: dict[str, str] | None
    ordering_key: str | None


class MessageOptions(MessagesOptions, total=False):
    """The options of a job that an event, or a message to an endpoint, has too."""

    unique: Unique | None


class JobOptionChanges(MessageOptions, total=False):
    """The keywords of ``using`` and of ``JobOptions.merged``."""

    queue: str | None
    max_attempts: int | None
    limit_key: str | None


#: Free texts, and how many characters they have at most.
_TEXTS: Final = (
    ("tag", checks.TAG_CHARACTERS_MAX),
    ("correlation_id", checks.CORRELATION_ID_CHARACTERS_MAX),
    ("ordering_key", checks.ORDERING_KEY_CHARACTERS_MAX),
    ("limit_key", checks.LIMIT_KEY_CHARACTERS_MAX),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobOptions:
    """Options of one job; None leaves the choice to the kind, then to the schema.

    Attributes:
        queue: the queue of the job.
        priority: -32768 to 32767, lower numbers first.
        tag: where the job came from, free text of at most 200 characters.
        run_at: the job starts no earlier than this instant, an aware datetime.
        delay: the job starts no earlier than this time after the enqueue, by the database's clock;
            in seconds or as a timedelta; negative means now. Not together with ``run_at``.
        expires_at: from this instant on the job is not started; later than ``run_at``.
        max_attempts: maximum number of attempts, 1 to 10,000.
        correlation_id: passed to the handler unchanged, at most 200 characters. In a handler, None
            is that of its job.
        headers: at most 64 text entries, at most 8 kB in total.
        unique: what to do if a job with the same key exists: ``Once``, ``Idempotent``,
            ``Coalesce``, ``Replace``, ``Debounce`` or ``Throttle``.
        ordering_key: jobs of the queue with the same key run one at a time, in the order they were
            enqueued, also across retries; at most 200 characters.
        limit_key: the tenant of the job. Jobs of the queue with the same key share the limits per
            key, and all keys of the queue take turns; at most 200 characters. With ``ordering_key``
            too, both hold.

    Raises:
        InvalidJob: an option has the wrong type or is out of range.

    >>> options = JobOptions(queue="mail", delay=timedelta(hours=1))
    >>> options.delay, options.merged(delay=None).delay
    (3600.0, None)
    """

    queue: str | None = None
    priority: int | None = None
    tag: str | None = None
    run_at: datetime | None = None
    delay: float | timedelta | None = None
    expires_at: datetime | None = None
    max_attempts: int | None = None
    correlation_id: str | None = None
    headers: Mapping[str, str] | None = None
    unique: Unique | None = None
    ordering_key: str | None = None
    limit_key: str | None = None

    def __post_init__(self) -> None:
        if self.queue is not None:
            object.__setattr__(self, "queue", checks.checked_name(self.queue, "queue"))
        if self.priority is not None:
            checks.checked_integer(
                self.priority, "priority", least=checks.PRIORITY_MIN, most=checks.PRIORITY_MAX
            )
        if self.max_attempts is not None:
            checks.checked_integer(
                self.max_attempts, "max_attempts", least=1, most=checks.MAX_ATTEMPTS_MAX
            )
        for name, most in _TEXTS:
            text = getattr(self, name)
            if text is not None:
                object.__setattr__(self, name, checks.checked_text(text, name, characters_max=most))
        if self.headers is not None:
            # A copy: a later change of the caller's dict must not change the job.
            object.__setattr__(self, "headers", checks.checked_headers(self.headers))
        if self.unique is not None and not isinstance(self.unique, Unique):
            raise InvalidJob(
                "unique",
                (
                    f"must be a uniqueness mode, not {type(self.unique).__name__}: "
                    f"{shown(self.unique)}"
                ),
                hint='For example unique=Once("order:42").',
            )
        self._check_times()

    def _check_times(self) -> None:
        if self.run_at is not None:
            checks.checked_instant(self.run_at, "run_at")
        if self.delay is not None:
            object.__setattr__(self, "delay", checks.checked_delay(self.delay))
        if self.run_at is not None and self.delay is not None:
            raise InvalidJob("delay", "contradicts run_at: give only one of them")
        if isinstance(self.unique, Debounce) and (
            self.run_at is not None or self.delay is not None
        ):
            raise InvalidJob(
                "unique", "contradicts delay and run_at: Debounce sets the time of the job"
            )
        if self.expires_at is None:
            return
        checks.checked_instant(self.expires_at, "expires_at")
        if self.run_at is not None and self.expires_at <= self.run_at:
            raise InvalidJob(
                "expires_at",
                f"is {self.expires_at.isoformat()}, not after run_at {self.run_at.isoformat()}",
            )

    @property
    def delay_seconds(self) -> float | None:
        """The delay in seconds."""
        return None if self.delay is None else checks.checked_delay(self.delay)

    @classmethod
    def parse(cls, options: Mapping[str, object]) -> JobOptions:
        """Return options from a mapping of names to values, refusing unknown names."""
        return cls().merged(**options)

    def merged(self, **changes: Any) -> Self:
        """Return a copy with some options changed; None removes an option.

        ``run_at`` and ``delay`` replace each other.

        Raises:
            InvalidJob: an option is unknown, or its value is refused.
        """
        if not changes:
            return self
        for name in changes:
            if name not in OPTION_NAMES:
                raise InvalidJob(
                    f"option {shown(name)}",
                    "is unknown",
                    hint=checks.hint_for(name, OPTION_NAMES),
                )
        if changes.get("run_at") is not None:
            changes.setdefault("delay", None)
        if changes.get("delay") is not None:
            changes.setdefault("run_at", None)
        return replace(self, **changes)

    def given(self) -> dict[str, Any]:
        """Return the options that are not None, by name.

        >>> JobOptions(queue="mail", priority=0).given()
        {'queue': 'mail', 'priority': 0}
        """
        return {name: value for name in OPTION_NAMES if (value := getattr(self, name)) is not None}


OPTION_NAMES = tuple(field.name for field in fields(JobOptions))

#: Options that a job keeps as they are given: not those of where and when it runs.
KEPT_OPTION_NAMES = tuple(
    name
    for name in OPTION_NAMES
    if name not in ("queue", "priority", "run_at", "delay", "expires_at", "unique")
)
