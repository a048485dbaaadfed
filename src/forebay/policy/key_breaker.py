"""The breaker of limit keys that a kind declares, and what of an attempt it counts."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, cast

from forebay._dataclass import dataclass
from forebay.errors import ConfigError, HardTimeout, SoftTimeout, WorkerLost, shown
from forebay.policy.retry import is_exception_type, leaves

if TYPE_CHECKING:
    from collections.abc import Mapping

FAILURES_MAX: Final = 1000

COOLDOWN_MIN: Final = 1.0
COOLDOWN_MAX: Final = 86_400.0

#: What neither the kind nor the database sets. The longest time between two probes holds unless the
#: first is longer.
_BUILT_IN: Final = {
    "breaker_failures": 10,
    "breaker_cooldown_seconds": 30.0,
    "breaker_cooldown_max_seconds": 600.0,
}

#: The attempt was stopped from outside: no handler chose the type.
_STOPPED: Final = (SoftTimeout, HardTimeout, WorkerLost)


@dataclass(frozen=True, slots=True, kw_only=True)
class Breaker:
    """When the jobs of a limit key wait because the key fails.

    After ``failures`` in a row, over all workers, the jobs of the key wait and use no attempt.
    One job at a time runs as a probe: the first after the cooldown, the next ones after twice the
    time each. A success lets the others run.

    An attempt fails if the handler raises, is stopped at a timeout, or its process dies. What is
    permanent, such as ``Dead`` or an exception of ``permanent_on``, shows that the key works, and
    ends the row of failures, like a success. ``Retry``, ``Snooze`` and ``Cancel`` say nothing about
    the key.

    Attributes:
        failures: failures in a row that open the breaker, 1 to 1000; None: as the setting
            ``breaker_failures`` of the database has it, built in 10.
        cooldown: the time from the opening to the first probe, 1 second to a day, in seconds or as
            a timedelta; None: as ``breaker_cooldown_seconds``, built in 30 seconds.
        cooldown_max: the longest time between two probes; None: as
            ``breaker_cooldown_max_seconds``, built in 10 minutes; ``cooldown`` if that is
            longer.
        count_on: count these exception types only; empty means all. Others say nothing about the
            key. Timeouts and processes that die count in any case.

    Raises:
        ConfigError: a value is refused.

    >>> Breaker(failures=5, cooldown=60).cooldown_seconds
    60.0
    """

    failures: int | None = None
    cooldown: float | timedelta | None = None
    cooldown_max: float | timedelta | None = None
    count_on: tuple[type[BaseException], ...] = ()

    def __post_init__(self) -> None:
        if self.failures is not None:
            _check_failures(self.failures)
        first = COOLDOWN_MIN
        if self.cooldown is not None:
            first = _checked_cooldown("cooldown", self.cooldown, least=COOLDOWN_MIN)
        if self.cooldown_max is not None:
            _checked_cooldown("cooldown_max", self.cooldown_max, least=first)
        _check_types(self.count_on)

    @property
    def cooldown_seconds(self) -> float | None:
        """The time from the opening to the first probe; None: as the database has it."""
        return None if self.cooldown is None else _seconds(self.cooldown)

    @property
    def cooldown_max_seconds(self) -> float | None:
        """The longest time between two probes; None: as the database has it."""
        return None if self.cooldown_max is None else _seconds(self.cooldown_max)

    def works(self, error: BaseException, *, is_permanent: bool) -> bool | None:
        """Return what an exception says of the limit key: whether it works, or None for nothing.

        Args:
            error: what ended the attempt.
            is_permanent: whether no retry can help.

        >>> breaker = Breaker(count_on=(ConnectionError,))
        >>> breaker.works(ConnectionRefusedError(), is_permanent=False)
        False
        >>> breaker.works(KeyError(), is_permanent=False)
        >>> breaker.works(KeyError(), is_permanent=True)
        True
        """
        counted = (*_STOPPED, *self.count_on)
        if any(isinstance(leaf, counted) for leaf in leaves(error)):
            return False
        if is_permanent:
            return True
        return None if self.count_on else False


def with_settings(breaker: Breaker, found: Mapping[str, Any]) -> Breaker:
    """Return a breaker with the settings of the database where it has none itself.

    Args:
        breaker: as declared.
        found: the settings that were set.

    >>> with_settings(Breaker(cooldown=60), {"breaker_failures": 3}).failures
    3
    """
    known = {**_BUILT_IN, **found}
    first = breaker.cooldown_seconds
    first = known["breaker_cooldown_seconds"] if first is None else first
    longest = breaker.cooldown_max_seconds
    longest = known["breaker_cooldown_max_seconds"] if longest is None else longest
    return Breaker(
        failures=known["breaker_failures"] if breaker.failures is None else breaker.failures,
        cooldown=float(first),
        cooldown_max=float(max(first, longest)),
        count_on=breaker.count_on,
    )


def checked_breaker(name: str, breaker: object, *, has_key: bool) -> Breaker | None:
    """Return the breaker that a kind declares.

    Args:
        name: the kind.
        breaker: what it declares; None for none.
        has_key: whether its jobs have a limit key.

    Raises:
        ConfigError: it is no breaker, or the jobs have no limit key.
    """
    if breaker is None:
        return None
    if not isinstance(breaker, Breaker):
        raise ConfigError(
            f"kind {name}: breaker",
            f"must be a Breaker, not {shown(breaker)}",
            hint="breaker=Breaker(failures=10, cooldown=30)",
        )
    if not has_key:
        raise ConfigError(
            f"kind {name}: breaker",
            "has no effect without limit_by",
            hint='limit_by=("host",) names the arguments that make the limit key.',
        )
    return breaker


def _seconds(value: float | timedelta) -> float:
    return value.total_seconds() if isinstance(value, timedelta) else float(value)


def _check_failures(value: object) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= FAILURES_MAX:
        raise ConfigError(
            "breaker failures",
            f"is {shown(value)}, not an integer within 1 to {FAILURES_MAX}",
            value=value,
        )


def _check_types(value: object) -> None:
    if not isinstance(value, tuple) or not all(map(is_exception_type, value)):
        raise ConfigError(
            "breaker count_on", f"is {shown(value)}, not a tuple of exception types", value=value
        )


def _checked_cooldown(name: str, value: object, *, least: float) -> float:
    if isinstance(value, timedelta):
        value = value.total_seconds()
    # A bool is an int to Python, and NaN fails every comparison.
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not (is_number and least <= cast("float", value) <= COOLDOWN_MAX):
        raise ConfigError(
            f"breaker {name}",
            f"is {shown(value)}, not a time within {least:g} to {COOLDOWN_MAX:g} s",
            value=value,
        )
    return float(cast("float", value))
