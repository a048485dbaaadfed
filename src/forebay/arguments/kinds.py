"""A kind: a handler, its name, and its declared options.

``App`` makes kinds from functions. A client encodes arguments with a kind; a worker decodes
arguments and decides retries with it. To create a kind needs no import and no database.
"""

from __future__ import annotations

import inspect
import typing
from dataclasses import field, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, Literal, cast

from forebay._dataclass import dataclass
from forebay.arguments._signature import (
    Arguments,
    Parameters,
    RawItems,
    Untyped,
    arguments_of,
    innermost,
)
from forebay.arguments.follow_up import FollowUp, declared_follow_up
from forebay.arguments.json_guard import DEFAULT_LIMITS, ArgumentLimits
from forebay.arguments.keys import DeclaredKeys, declared_keys
from forebay.arguments.results import gives_coroutine
from forebay.errors import ConfigError, InvalidJob, UnknownKind, shown
from forebay.model import JobOptions, checks
from forebay.policy.key_breaker import Breaker, checked_breaker
from forebay.policy.retry import RetryPolicy, as_policy

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from collections.abc import Set as AbstractSet

QUEUE_DEFAULT: Final = "default"

#: A batch handler's jobs come from one claim.
BATCH_SIZE_MAX: Final = 10_000

#: The longest time that a worker may wait for a fuller call.
LINGER_SECONDS_MAX: Final = 1.0

#: How long results are kept by default.
KEEP_SECONDS_DEFAULT: Final = 7 * 86_400.0
KEEP_SECONDS_MAX: Final = 3650 * 86_400.0

TIMEOUT_SECONDS_MAX: Final = 30 * 86_400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SubjectKind:
    """What a kind of runs of subjects has in addition.

    Attributes:
        name: the kind of the subjects, without the version.
        version: of their arguments.
        every: a run that returns None is due again at the next instant of this grid, in seconds;
            None: the subject is completed.
    """

    name: str
    version: int = 0
    every: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """One handler as declared; made by ``Kind.declare``.

    Attributes:
        name: name of the kind, which a job refers to.
        function: the handler, unchanged.
        queue: default queue of its jobs.
        priority: default priority of its jobs, lower numbers first.
        options: defaults for the other options of its jobs.
        retry: the retry policy.
        soft_timeout_seconds: time after which the handler is requested to stop; None for never.
        hard_timeout_seconds: time after which the handler is stopped; None for never.
        is_async: whether it is a coroutine function; otherwise it runs in a thread.
        transaction: whether it runs in a transaction that also completes the job.
        connection: the class of the connection of that transaction; None for psycopg.
        batch_size: maximum number of jobs per call; None for a handler of single jobs.
        linger_seconds: how long a worker waits for a fuller call; None for not at all.
        keep_result_seconds: how long its results are kept; None for not at all.
        holds_key: whether a dead letter holds its ordering key.
        on_done: the follow-up of its jobs that are done; None for none.
        on_dead: the follow-up of its dead letters; None for none.
        in_process: whether it runs in a separate process, which is killed at the hard timeout.
        memory_bytes: maximum memory of a call in that process; None for no limit.
        cpu_seconds: maximum processor time of a call in that process; None for no limit.
        takes_context: whether its first parameter is a context.
        limits: maximum size and depth of its arguments.
        subject: with a handler of subjects: their kind and version; None for a handler of jobs.
        keys: which arguments make the keys of its jobs; None if no arguments do.
        breaker: when the jobs of a limit key wait because it fails; None for never.
    """

    name: str
    function: Callable[..., Any]
    arguments: Arguments = field(repr=False, compare=False)
    queue: str = QUEUE_DEFAULT
    priority: int = checks.PRIORITY_DEFAULT
    options: JobOptions = field(default_factory=JobOptions)
    retry: RetryPolicy = field(default_factory=RetryPolicy)
    soft_timeout_seconds: float | None = None
    hard_timeout_seconds: float | None = None
    is_async: bool = False
    transaction: bool = False
    connection: type | None = None
    batch_size: int | None = None
    linger_seconds: float | None = None
    keep_result_seconds: float | None = None
    holds_key: bool = False
    on_done: FollowUp | None = None
    on_dead: FollowUp | None = None
    in_process: bool = False
    memory_bytes: int | None = None
    cpu_seconds: float | None = None
    takes_context: bool = False
    limits: ArgumentLimits = DEFAULT_LIMITS
    subject: SubjectKind | None = None
    keys: DeclaredKeys | None = None
    breaker: Breaker | None = None

    @classmethod
    def declare(
        cls,
        function: Callable[..., Any],
        *,
        name: str | None = None,
        queue: str = QUEUE_DEFAULT,
        priority: int = checks.PRIORITY_DEFAULT,
        options: JobOptions | None = None,
        retry: RetryPolicy | Mapping[str, Any] | None = None,
        soft_timeout_seconds: float | None = None,
        hard_timeout_seconds: float | None = None,
        transaction: bool = False,
        batch_size: int | None = None,
        linger: object = None,
        keep_result: object = False,
        holds_key: object = False,
        on_done: object = None,
        on_dead: object = None,
        executor: object = None,
        memory_bytes: int | None = None,
        cpu_seconds: float | None = None,
        limits: ArgumentLimits = DEFAULT_LIMITS,
        subject: SubjectKind | None = None,
        keys_by: Mapping[str, object] | None = None,
        unique: object = None,
        breaker: object = None,
    ) -> Kind:
        """Return the kind of a function; the default name is that of the function.

        Raises:
            ConfigError: an option is invalid; the error names it and the reason.

        >>> def greet(user_id: int, locale: str = "en") -> None: ...
        >>> kind = Kind.declare(greet, queue="mail")
        >>> kind.encode(42, locale="it")
        '{"user_id":42,"locale":"it"}'
        >>> kind.decode({"user_id": 42, "added_later": True})
        {'user_id': 42}
        """
        name = _checked_name(name if name is not None else _name_of(function), function)
        queue = _checked_queue(name, queue, priority)
        _check_timeouts(name, soft_timeout_seconds, hard_timeout_seconds)
        _check_batch_size(name, batch_size)
        keep_seconds = _checked_keep(name, keep_result)
        _check_executor(name, executor, memory_bytes, cpu_seconds)
        retry = cast("RetryPolicy | None", as_policy(retry))
        if retry is not None and not isinstance(retry, RetryPolicy):
            raise ConfigError(f"kind {name}: retry", f"must be a RetryPolicy, not {shown(retry)}")
        arguments, takes_context, carries = arguments_of(
            function, name, batch=batch_size is not None
        )
        is_async = _is_async(function, name)
        keys = declared_keys(name, arguments, keys_by or {}, unique)
        has_limit_key = keys is not None and "limit_by" in keys.by
        return cls(
            name=name,
            function=function,
            arguments=arguments,
            queue=queue,
            priority=priority,
            options=options or JobOptions(),
            retry=retry or RetryPolicy(),
            soft_timeout_seconds=soft_timeout_seconds,
            hard_timeout_seconds=hard_timeout_seconds,
            is_async=is_async,
            transaction=transaction,
            connection=_checked_connection(name, carries, transaction, is_async),
            batch_size=batch_size,
            linger_seconds=_checked_linger(name, linger),
            keep_result_seconds=keep_seconds,
            holds_key=_checked_holds_key(name, holds_key),
            on_done=declared_follow_up(name, "on_done", on_done),
            on_dead=declared_follow_up(name, "on_dead", on_dead),
            in_process=executor == "process",
            memory_bytes=memory_bytes,
            cpu_seconds=cpu_seconds,
            takes_context=takes_context,
            limits=limits,
            subject=subject,
            keys=keys,
            breaker=checked_breaker(name, breaker, has_key=has_limit_key),
        )

    @property
    def flavour(self) -> Literal["async", "thread"]:
        """How the handler is called."""
        return "async" if self.is_async else "thread"

    @property
    def takes_raw(self) -> bool:
        """Whether the handler takes the arguments of its jobs as undecoded JSON."""
        return isinstance(self.arguments, RawItems)

    @property
    def takes_any_names(self) -> bool:
        """Whether its jobs have any arguments, given by name: those of a batch handler of
        ``Job`` or ``msgspec.Raw`` values.
        """
        return isinstance(self.arguments, Untyped)

    @property
    def is_batch(self) -> bool:
        """Whether one call takes many jobs."""
        return self.batch_size is not None

    def without(self, names: tuple[str, ...]) -> Kind:
        """Return this kind for producers that leave some arguments to the worker."""
        if not names or not isinstance(self.arguments, Parameters):
            return self
        return replace(self, arguments=self.arguments.without(names))

    def encode(self, /, *args: Any, **kwargs: Any) -> str:
        """Return the JSON text of the arguments of one job, checked against the signature.

        Raises:
            InvalidJob: an argument is unknown, missing, of the wrong type, or has no JSON form.
            PayloadTooLarge: the text has more bytes than the limit.
            PayloadTooDeep: an argument is nested too deeply.
        """
        try:
            return self.arguments.encode(args, kwargs, self.limits)
        except InvalidJob as error:
            raise error.of_kind(self.name) from None

    def check_names(self, names: AbstractSet[str]) -> None:
        """Refuse names of arguments that its handler does not take, or that lack one.

        Raises:
            InvalidJob: one is unknown, or missing.
        """
        if isinstance(self.arguments, Parameters):
            try:
                self.arguments.check_names(names)
            except InvalidJob as error:
                raise error.of_kind(self.name) from None

    def decode(self, args: Mapping[str, Any]) -> Any:
        """Return what the handler receives, from the decoded JSON of a job.

        For a handler of single jobs it is the dict of its keyword arguments, without unknown ones.
        For a batch handler it is one element of its list; if the element type is ``Job``, the
        arguments are returned unchanged.

        Raises:
            InvalidJob: an argument is missing or of the wrong type; a retry cannot succeed.
        """
        try:
            if not isinstance(args, dict):
                raise InvalidJob("args", f"must be an object, not {type(args).__name__}")
            return self.arguments.decode(args)
        except InvalidJob as error:
            raise error.of_kind(self.name) from None


class Kinds:
    """The kinds of one application, by name."""

    def __init__(self) -> None:
        self._by_name: dict[str, Kind] = {}

    def add(self, kind: Kind) -> Kind:
        """Add a kind and return it.

        Raises:
            ConfigError: another function already has the name.
        """
        known = self._by_name.get(kind.name)
        if known is not None and _place(known.function) != _place(kind.function):
            raise ConfigError(
                f"kind {kind.name}",
                f"is declared twice, at {_place(known.function)} and {_place(kind.function)}",
                hint='Give one of them another name: @app.job(name="...").',
            )
        self._by_name[kind.name] = kind
        return kind

    def get(self, name: str) -> Kind:
        """Return the kind with this name.

        Raises:
            UnknownKind: there is no such kind.
        """
        kind = self._by_name.get(name)
        if kind is None:
            raise UnknownKind(name, known=tuple(self._by_name))
        return kind

    def queues(self) -> tuple[str, ...]:
        """Return the default queues of the kinds, sorted."""
        return tuple(sorted({kind.queue for kind in self}))

    def __contains__(self, name: object) -> bool:
        return name in self._by_name

    def __iter__(self) -> Iterator[Kind]:
        return iter(self._by_name.values())

    def __len__(self) -> int:
        return len(self._by_name)


class OneHandler(Kinds):
    """One handler for jobs of every kind."""

    def __init__(self, kind: Kind) -> None:
        super().__init__()
        self._kind = self.add(kind)

    def renew(self, kind: Kind) -> None:
        """Replace the handler."""
        self._kind = self.add(kind)

    def get(self, name: str) -> Kind:
        """Return the handler, whatever the kind."""
        del name
        return self._kind


def _name_of(function: Callable[..., Any]) -> str:
    name = getattr(function, "__name__", None) or getattr(innermost(function), "__name__", "")
    return str(name)


def _place(function: Callable[..., Any]) -> str:
    # By location, not by identity: reloading a module declares its kinds again.
    inner = innermost(function)
    code = getattr(inner, "__code__", None)
    if code is None:
        return f"{getattr(inner, '__module__', '?')}.{getattr(inner, '__qualname__', '?')}"
    return f"{code.co_filename}:{code.co_firstlineno}"


def _checked_name(name: object, function: Callable[..., Any]) -> str:
    if name == "<lambda>":
        raise ConfigError(
            f"kind at {_place(function)}",
            "has no name: a lambda has none",
            hint=(
                'Declare a function with def, or name the kind: app.job(name="resize")(lambda ...).'
            ),
        )
    try:
        return checks.checked_name(name, "name")
    except InvalidJob as error:
        raise ConfigError(
            f"kind of {shown(function)}", f"has no usable name: {error.message}", hint=error.hint
        ) from None


def _checked_queue(name: str, queue: object, priority: int) -> str:
    try:
        JobOptions(priority=priority)
        return checks.checked_name(queue, "queue")
    except InvalidJob as error:
        raise ConfigError(f"kind {name}: {error.field}", str(error.problem)) from None


def _check_timeouts(name: str, soft: object, hard: object) -> None:
    for label, value in (("soft_timeout_seconds", soft), ("hard_timeout_seconds", hard)):
        if value is None:
            continue
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not (number and 0 < value <= TIMEOUT_SECONDS_MAX):  # type: ignore[operator]
            raise ConfigError(
                f"kind {name}: {label}",
                f"is {shown(value)}, not a number above 0 and at most {TIMEOUT_SECONDS_MAX:g}",
                value=value,
            )
    if soft is not None and hard is not None and soft > hard:  # type: ignore[operator]
        raise ConfigError(
            f"kind {name}: soft_timeout_seconds",
            f"is {soft}, longer than hard_timeout_seconds {hard}",
            value=soft,
        )


#: Types of a context's connection, by package and class, and whether they are asynchronous.
_CONNECTIONS: Final = {
    ("psycopg", "Connection"): False,
    ("psycopg", "AsyncConnection"): True,
    ("sqlalchemy", "Connection"): False,
    ("sqlalchemy", "Session"): False,
    ("sqlalchemy", "AsyncConnection"): True,
    ("sqlalchemy", "AsyncSession"): True,
    ("django", "BaseDatabaseWrapper"): False,
}


def _checked_connection(
    name: str, carries: Any, transaction: bool, is_async: bool
) -> type[Any] | None:
    """Return the declared class of the connection of a handler's context; None for psycopg."""
    if carries is None:
        return None
    cls = typing.get_origin(carries) or carries
    bases = cls.__mro__ if isinstance(cls, type) else ()
    names = [(base.__module__.partition(".")[0], base.__name__) for base in bases]
    known = next((found for found in names if found in _CONNECTIONS), None)
    where = f"kind {name}: its context"
    if known is None:
        raise ConfigError(
            where,
            f"is declared with {shown(carries)}, which is not a supported connection",
            hint="TransactionContext[...] takes a connection of psycopg, a connection or "
            "session of SQLAlchemy,"
            " or Django's BaseDatabaseWrapper.",
        )
    if not transaction:
        raise ConfigError(
            where,
            f"is declared with a {known[1]}, but the handler has no transaction",
            hint="@app.job(transaction=True)",
        )
    if _CONNECTIONS[known] != is_async:
        raise ConfigError(
            where,
            f"is declared with a {known[1]}, which is"
            f" {'synchronous, but the handler is not' if is_async else 'not for a plain function'}",
            hint="Use AsyncConnection or AsyncSession for a coroutine function, Connection or "
            "Session for a"
            " plain function.",
        )
    return None if known[0] == "psycopg" else cls


def _check_batch_size(name: str, size: object) -> None:
    if size is None:
        return
    if not isinstance(size, int) or isinstance(size, bool) or not 1 <= size <= BATCH_SIZE_MAX:
        raise ConfigError(
            f"kind {name}: batch size",
            f"is {shown(size)}, not an integer within 1 to {BATCH_SIZE_MAX}",
            value=size,
        )


def _checked_linger(name: str, linger: object) -> float | None:
    if linger is None:
        return None
    if isinstance(linger, timedelta):
        linger = linger.total_seconds()
    # A bool is an int to Python, and NaN fails every comparison.
    if (
        not isinstance(linger, int | float)
        or isinstance(linger, bool)
        or not 0 < linger <= LINGER_SECONDS_MAX
    ):
        raise ConfigError(
            f"kind {name}: linger",
            f"is {shown(linger)}, not a time above 0 and at most {LINGER_SECONDS_MAX:g} s",
            value=linger,
            hint="A time such as 0.05 makes calls fuller; without the option a call never waits.",
        )
    return float(linger)


def _check_executor(name: str, executor: object, memory: object, cpu: object) -> None:
    if executor not in (None, "process"):
        raise ConfigError(
            f"kind {name}: executor",
            f'is {shown(executor)}, not "process"',
            value=executor,
            hint=(
                "By default, coroutines run on the worker's event loop and plain functions in "
                "threads."
            ),
        )
    for label, value, least in (("memory_bytes", memory, 1_000_000), ("cpu_seconds", cpu, 0.1)):
        if value is None:
            continue
        if executor is None:
            raise ConfigError(
                f"kind {name}: {label}",
                "needs a handler in a process",
                value=value,
                hint='Add executor="process".',
            )
        if isinstance(value, bool) or not isinstance(value, int | float) or not value >= least:
            raise ConfigError(
                f"kind {name}: {label}",
                f"is {shown(value)}, not a number of at least {least}",
                value=value,
            )


def _checked_holds_key(name: str, holds: object) -> bool:
    if not isinstance(holds, bool):
        raise ConfigError(
            f"kind {name}: holds_key", f"is {shown(holds)}, not True or False", value=holds
        )
    return holds


def _checked_keep(name: str, keep: object) -> float | None:
    if keep is None or keep is False:
        return None
    if keep is True:
        return KEEP_SECONDS_DEFAULT
    if isinstance(keep, timedelta):
        keep = keep.total_seconds()
    if not (isinstance(keep, int | float) and 0 < keep <= KEEP_SECONDS_MAX):
        raise ConfigError(
            f"kind {name}: keep_result",
            f"is {shown(keep)}, not True or a time above 0 and at most 10 years",
            value=keep,
        )
    return float(keep)


def _is_async(function: Callable[..., Any], name: str) -> bool:
    call = function if inspect.isroutine(function) else getattr(function, "__call__", function)  # noqa: B004
    if inspect.isgeneratorfunction(call) or inspect.isasyncgenfunction(call):
        raise ConfigError(
            f"kind {name}",
            "is a generator: a call would run nothing",
            hint=(
                "Return instead of yielding, or wrap the generator in a function that consumes it."
            ),
        )
    return gives_coroutine(function)
