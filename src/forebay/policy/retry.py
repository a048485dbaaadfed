"""Whether and when a failed job runs again, and for how long it is retried."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, cast

from forebay._dataclass import dataclass
from forebay.errors import ConfigError, EnqueueError, shown
from forebay.model import checks
from forebay.model.checks import MAX_ATTEMPTS_MAX
from forebay.model.text import logger
from forebay.policy.backoff import (
    STRATEGIES,
    Strategy,
    backoff_seconds,
    jittered,
    total_seconds,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import timedelta

    from forebay.config import RetrySettings

log = logger("forebay.worker")

#: From the number of the failed attempt and its exception to the wait.
Delay: TypeAlias = "Callable[[int, BaseException | None], float | timedelta | None]"

_JSON_SECONDS_MAX: Final = 30 * 86_400.0
_JSON_TIME: Final = f"a number of seconds within 0.001 to {_JSON_SECONDS_MAX:.0f}"

#: The keys of the JSON form of a policy, with the range of a number, and what a value is. See
#: ``forebay._policy_problem()``.
_JSON_KEYS: Final = {
    "max_retries": (0, MAX_ATTEMPTS_MAX - 1, f"an integer within 0 to {MAX_ATTEMPTS_MAX - 1}"),
    "backoff": (0, 0, f"one of {', '.join(STRATEGIES)}"),
    "base_delay": (0.001, _JSON_SECONDS_MAX, _JSON_TIME),
    "increment": (0, _JSON_SECONDS_MAX, _JSON_TIME.replace("0.001", "0")),
    "max_delay": (0.001, _JSON_SECONDS_MAX, _JSON_TIME),
    "jitter": (0, 0, "True or False"),
}

#: Most exceptions of a group that are examined; the first ones decide for a larger group.
_LEAVES_MAX: Final = 100


@dataclass(frozen=True, slots=True)
class RetryAfter:
    """Run the job again after this many seconds."""

    seconds: float


@dataclass(frozen=True, slots=True)
class GiveUp:
    """Make the job a dead letter."""

    reason: Literal["exhausted", "permanent"]


Decision = RetryAfter | GiveUp


@dataclass(frozen=True, slots=True)
class Lifetime:
    """The time from the first failure to the last attempt, without the attempts themselves.

    With ``by_function`` a function chooses the delays, and the seconds are those of the strategy
    that it may fall back to.
    """

    seconds_min: float
    seconds_expected: float
    seconds_max: float
    attempts: int
    by_function: bool = False

    def __str__(self) -> str:
        """Return it as text: ``up to 20 attempts over about 7.8 h``."""
        if self.by_function and self.attempts > 1:
            return f"up to {self.attempts} attempts, delayed by a function"
        if self.attempts == 1:
            return "1 attempt, no retries"
        return f"up to {self.attempts} attempts over about {human_duration(self.seconds_expected)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """How the jobs of a kind are retried.

    Attributes:
        strategy: how waits grow: fixed, linear, exponential or polynomial.
        base_seconds: the wait after the first failure, before jitter.
        increment_seconds: with linear, by how much each wait is longer than the one before; None
            means ``base_seconds``.
        cap_seconds: the longest wait.
        jitter: draw each wait from the upper half of its length, so that jobs that failed together
            do not return together; False makes waits exact.
        delay: a function of the number of the failed attempt and its exception (None if the handler
            returned ``Retry``) that returns the wait, in seconds or as a timedelta, without jitter;
            None leaves it to the strategy. If it raises, or returns anything else, that is logged,
            and the strategy decides.
        max_attempts: total attempts, 1 to 10,000; the option of a job overrides it.
        retry_on: retry these exception types only; empty means all.
        permanent_on: never retry these. If both cover a type, the nearer base class decides:
            with ``retry_on=(TimeoutError,)`` and ``permanent_on=(OSError,)`` a
            ``TimeoutError`` is retried.

    >>> str(RetryPolicy().lifetime())
    'up to 20 attempts over about 7.8 h'
    """

    strategy: Strategy = "exponential"
    base_seconds: float = 5.0
    cap_seconds: float = 3600.0
    max_attempts: int = 20
    increment_seconds: float | None = None
    jitter: bool = True
    delay: Delay | None = None
    retry_on: tuple[type[BaseException], ...] = ()
    permanent_on: tuple[type[BaseException], ...] = ()

    def __post_init__(self) -> None:
        if self.strategy not in STRATEGIES:
            raise ConfigError(
                "retry strategy",
                f"is {shown(self.strategy)}, not one of {', '.join(STRATEGIES)}",
                value=self.strategy,
            )
        _check_number("retry base_seconds", self.base_seconds, least=0.001)
        _check_number("retry cap_seconds", self.cap_seconds, least=self.base_seconds)
        _check_attempts(self.max_attempts)
        self._check_shape()
        for name in ("retry_on", "permanent_on"):
            types = getattr(self, name)
            if not isinstance(types, tuple) or not all(is_exception_type(t) for t in types):
                raise ConfigError(
                    f"retry {name}", f"is {shown(types)}, not a tuple of exception types"
                )
        both = set(self.retry_on) & set(self.permanent_on)
        if both:
            names = ", ".join(sorted(cls.__name__ for cls in both))
            raise ConfigError("retry permanent_on", f"contradicts retry_on: both have {names}")

    def _check_shape(self) -> None:
        if self.increment_seconds is not None:
            _check_number("retry increment_seconds", self.increment_seconds, least=0)
            if self.strategy != "linear":
                raise ConfigError(
                    "retry increment_seconds",
                    f"has no meaning with strategy {self.strategy!r}",
                    hint='Add strategy="linear".',
                )
        if not isinstance(self.jitter, bool):
            raise ConfigError("retry jitter", f"is {shown(self.jitter)}, not True or False")
        if self.delay is not None and not callable(self.delay):
            raise ConfigError(
                "retry delay",
                f"is {shown(self.delay)}, not a function",
                hint="delay=lambda attempt, error: 60 * attempt; for a constant wait use "
                "base_seconds with"
                ' strategy="fixed".',
            )

    @classmethod
    def from_json(cls, policy: Mapping[str, Any]) -> RetryPolicy:
        """Return a policy from its JSON form, which endpoints and SQL have too.

        ``max_retries`` counts the attempts after the first one, 0 to 9999. ``backoff`` is fixed,
        linear, exponential or polynomial. ``base_delay``, ``increment`` (linear only) and
        ``max_delay`` are seconds, up to 30 days. ``jitter`` is True or False. What is left out is
        as in ``RetryPolicy()``; ``max_delay`` is at least ``base_delay``.

        Raises:
            ConfigError: a key is unknown, or a value is out of range.

        >>> policy = {"max_retries": 4, "backoff": "linear", "base_delay": 10, "jitter": False}
        >>> RetryPolicy.from_json(policy).delays()
        [10.0, 20.0, 30.0, 40.0]
        """
        given, known = checked_json_policy(policy), cls()
        base = float(given.get("base_delay", known.base_seconds))
        increment = given.get("increment")
        return cls(
            strategy=given.get("backoff", known.strategy),
            base_seconds=base,
            cap_seconds=float(given.get("max_delay", max(known.cap_seconds, base))),
            max_attempts=int(given.get("max_retries", known.max_attempts - 1)) + 1,
            increment_seconds=None if increment is None else float(increment),
            jitter=given.get("jitter", True),
        )

    def as_json(self) -> dict[str, Any]:
        """Return the JSON form, for an endpoint.

        Raises:
            ConfigError: the policy has a function or types of exceptions, which have no such form,
                or a delay of more than 30 days.

        >>> list(RetryPolicy(max_attempts=3, strategy="fixed").as_json().items())[:3]
        [('max_retries', 2), ('backoff', 'fixed'), ('base_delay', 5.0)]
        """
        if self.delay is not None or self.retry_on or self.permanent_on:
            raise ConfigError(
                "retry",
                "has delay, retry_on or permanent_on, which have no JSON form",
                hint="An endpoint takes max_attempts, strategy, jitter and the times of a policy.",
            )
        found = {
            "max_retries": self.max_attempts - 1,
            "backoff": self.strategy,
            "base_delay": self.base_seconds,
            "increment": self.increment_seconds,
            "max_delay": self.cap_seconds,
            "jitter": self.jitter,
        }
        return dict(
            checked_json_policy({name: value for name, value in found.items() if value is not None})
        )

    def delays(self) -> list[float]:
        """Return the waits between all attempts, before jitter, if the strategy decides them.

        >>> RetryPolicy(max_attempts=4).delays()
        [5.0, 10.0, 20.0]
        """
        return [self._full_seconds(attempt) for attempt in range(1, self.max_attempts)]

    @classmethod
    def from_settings(cls, settings: RetrySettings) -> RetryPolicy:
        """Return the policy for kinds that declare none."""
        return cls(
            strategy=cast("Strategy", settings.retry_strategy),
            base_seconds=settings.retry_base_seconds,
            cap_seconds=settings.retry_cap_seconds,
            max_attempts=settings.max_attempts,
        )

    def decide(
        self, exception: BaseException, attempt: int, u: float, *, max_attempts: int | None = None
    ) -> Decision:
        """Return the decision after a failed attempt.

        Args:
            exception: what the handler raised.
            attempt: number of the attempt that failed, from 1.
            u: a draw from [0, 1).
            max_attempts: the limit of the job; None means that of the policy.

        >>> RetryPolicy().decide(ValueError(), 1, 0.0)
        RetryAfter(seconds=2.5)
        >>> RetryPolicy(permanent_on=(LookupError,)).decide(KeyError(), 1, 0.0)
        GiveUp(reason='permanent')
        """
        if self.is_permanent(exception):
            return GiveUp("permanent")
        if attempt >= (max_attempts or self.max_attempts):
            return GiveUp("exhausted")
        return RetryAfter(self.delay_seconds(attempt, u, exception))

    def delay_seconds(self, attempt: int, u: float, error: BaseException | None = None) -> float:
        """Return the wait after the given attempt: what ``delay`` says, else that of the
        strategy with jitter.

        >>> def delay(attempt, error):
        ...     return 60 if isinstance(error, OSError) else None
        >>> policy = RetryPolicy(delay=delay)
        >>> policy.delay_seconds(3, 0.0, TimeoutError()), policy.delay_seconds(3, 0.0, ValueError())
        (60.0, 10.0)
        """
        if self.delay is not None:
            chosen = _chosen(self.delay, attempt, error)
            if chosen is not None:
                return chosen
        full = self._full_seconds(attempt)
        return jittered(full, u) if self.jitter else full

    def _full_seconds(self, attempt: int) -> float:
        return backoff_seconds(
            attempt,
            strategy=self.strategy,
            base_seconds=self.base_seconds,
            cap_seconds=self.cap_seconds,
            increment_seconds=self.increment_seconds,
        )

    def is_permanent(self, exception: BaseException) -> bool:
        """Whether no retry can help. A group is permanent when any exception in it is."""
        return any(self._is_permanent_type(type(leaf)) for leaf in leaves(exception))

    def _is_permanent_type(self, raised: type[BaseException]) -> bool:
        for cls in raised.__mro__:
            if cls in self.permanent_on:
                return True
            if cls in self.retry_on:
                return False
        if self.retry_on:
            return True
        # The database would refuse the same arguments again.
        return issubclass(raised, EnqueueError)

    def lifetime(self, *, max_attempts: int | None = None) -> Lifetime:
        """Return for how long a job is retried if every attempt fails immediately."""
        attempts = max_attempts or self.max_attempts
        full = total_seconds(
            attempts,
            strategy=self.strategy,
            base_seconds=self.base_seconds,
            cap_seconds=self.cap_seconds,
            increment_seconds=self.increment_seconds,
        )
        least = full / 2 if self.jitter else full
        return Lifetime(
            least, (least + full) / 2, full, attempts, by_function=self.delay is not None
        )


def checked_json_policy(policy: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the JSON form of a policy.

    Raises:
        ConfigError: a key is unknown, or a value is out of range.
    """
    if not policy:
        raise ConfigError("retry", "is an empty object", hint='Write {"max_retries": 10}.')
    for name, value in policy.items():
        if name not in _JSON_KEYS:
            raise ConfigError(
                "retry", f"has {shown(name)}, which is none of {', '.join(_JSON_KEYS)}"
            )
        least, most, what = _JSON_KEYS[name]
        if name == "backoff":
            is_right = isinstance(value, str) and value in STRATEGIES
        elif name == "jitter":
            is_right = isinstance(value, bool)
        else:
            is_right = (
                isinstance(value, int | float)
                and not isinstance(value, bool)
                and least <= value <= most
                and (name != "max_retries" or value == int(value))
            )
        if not is_right:
            raise ConfigError("retry", f"has the {name} {shown(value)}, not {what}", value=value)
    if "increment" in policy and policy.get("backoff") != "linear":
        raise ConfigError("retry", 'has an increment without "backoff": "linear"')
    base = policy.get("base_delay", RetryPolicy().base_seconds)
    if policy.get("max_delay", _JSON_SECONDS_MAX) < base:
        raise ConfigError(
            "retry", f"has the max_delay {policy['max_delay']:g}, below base_delay {base:g}"
        )
    return policy


def as_policy(retry: object) -> object:
    """Return the policy that a kind declares: a mapping is the JSON form of one.

    Raises:
        ConfigError: a mapping is none.
    """
    return RetryPolicy.from_json(retry) if isinstance(retry, Mapping) else retry


def _chosen(delay: Delay, attempt: int, error: BaseException | None) -> float | None:
    """Return the wait that a function chose.

    The result is None if the function leaves it to the strategy, or if its answer cannot be used.
    """
    try:
        answer = delay(attempt, error)
        return None if answer is None else checks.checked_seconds(answer, "delay")
    except Exception as problem:
        # The job must not pay for it: the strategy decides.
        log.error(
            "the delay function of a retry policy failed, its strategy decides: %s: %s",
            type(problem).__name__,
            problem,
        )
        return None


def human_duration(seconds: float) -> str:
    """Return a duration in its largest fitting unit, with two significant digits if useful.

    >>> [human_duration(s) for s in (0.25, 42, 90, 5400, 28136, 3 * 86400)]
    ['0.25 s', '42 s', '1.5 min', '1.5 h', '7.8 h', '3 d']
    """
    for unit, size in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= size * (2 if unit == "d" else 1):
            value = seconds / size
            return (
                f"{value:.1f}".removesuffix(".0") + f" {unit}"
                if value < 10
                else (f"{value:.0f} {unit}")
            )
    return f"{seconds:.2g} s"


def human_distance(seconds: float) -> str:
    """Return how far an instant is, with the seconds since it; negative: it is to come.

    >>> [human_distance(s) for s in (0.4, 120, -5)]
    ['now', '2 min ago', 'in 5 s']
    """
    if abs(seconds) < 1:
        return "now"
    length = human_duration(round(abs(seconds)))
    return f"{length} ago" if seconds > 0 else f"in {length}"


def leaves(exception: BaseException) -> list[BaseException]:
    """Return the exceptions of a group and of the groups in it, or the exception itself."""
    found: list[BaseException] = []
    waiting = [exception]
    for _ in range(10 * _LEAVES_MAX):
        if not waiting or len(found) >= _LEAVES_MAX:
            break
        current = waiting.pop()
        if isinstance(current, BaseExceptionGroup):
            waiting.extend(current.exceptions[:_LEAVES_MAX])
        else:
            found.append(current)
    return found or [exception]


def is_exception_type(value: object) -> bool:
    """Whether a value is a type of exceptions."""
    return isinstance(value, type) and issubclass(value, BaseException)


def _check_number(field: str, value: object, *, least: float) -> None:
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise ConfigError(field, f"must be a number, not {shown(value)}", value=value)
    if not least <= value < float("inf"):
        raise ConfigError(field, f"is {shown(value)}, below {least:g} or not finite", value=value)
    if value > checks.DELAY_SECONDS_MAX:
        raise ConfigError(field, f"is {shown(value)}, longer than a hundred years", value=value)


def _check_attempts(value: object) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= MAX_ATTEMPTS_MAX:
        raise ConfigError(
            "retry max_attempts",
            f"is {shown(value)}, not an integer within 1 to {MAX_ATTEMPTS_MAX}",
            value=value,
        )
