"""When a failed delivery is tried again: presets and lists of delays."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal

from forebay._dataclass import dataclass
from forebay.errors import ConfigError, shown
from forebay.policy.backoff import jittered
from forebay.policy.retry import RetryPolicy, human_duration

_MINUTE: Final = 60.0
_HOUR: Final = 3600.0

#: The presets by name: delays in seconds.
PRESETS: Final[dict[str, tuple[float, ...]]] = {
    "standard": (
        5.0, 5 * _MINUTE, 30 * _MINUTE,
        2 * _HOUR, 5 * _HOUR, 10 * _HOUR, 14 * _HOUR, 20 * _HOUR, 24 * _HOUR,
    ),
    "ulak": (10.0, 20.0, 40.0, 80.0, 160.0, 300.0, 300.0, 300.0, 300.0),
}  # fmt: skip

DELAYS_MAX: Final = 100
DELAY_SECONDS_MAX: Final = 30 * 24 * _HOUR

#: Each delay is lengthened by at most this part of it, so that deliveries that failed together do
#: not return together.
_LONGER: Final = 0.1


@dataclass(frozen=True, slots=True)
class Retries:
    """The delays between the tries of a delivery.

    Attributes:
        delays: in seconds; there is one try more than delays.
        jitter: how the delays are random: ``"longer"`` by up to 10 %, ``"shorter"`` by up to half,
            as a policy has them, or ``"none"``.

    >>> str(Retries(PRESETS["standard"])), str(Retries(()))
    ('10 tries over 75 h 35 min', '1 try')
    """

    delays: tuple[float, ...]
    jitter: Literal["longer", "shorter", "none"] = "longer"

    @property
    def tries(self) -> int:
        """How often a delivery is tried."""
        return len(self.delays) + 1

    @property
    def total(self) -> float:
        """Seconds from the first failure to the last try, without random parts and the tries
        themselves.
        """
        return sum(self.delays)

    def __str__(self) -> str:
        """Return it as text."""
        if not self.delays:
            return "1 try"
        return f"{self.tries} tries over {_exact_duration(self.total)}"

    def delay_seconds(self, attempt: int, draw: float, after: float | None = None) -> float | None:
        """Return how long to wait after a failed try, or None if it was the last one.

        Args:
            attempt: the number of the failed try, from 1.
            draw: a random number from 0 to 1, for the random part.
            after: what the endpoint asked for, which replaces the delay; it never becomes shorter.

        >>> twice = Retries((10.0, 60.0))
        >>> twice.delay_seconds(1, 0.5), twice.delay_seconds(2, 0.0, after=5.0)
        (10.5, 5.0)
        >>> twice.delay_seconds(3, 0.0) is None
        True
        >>> [Retries((10.0,), way).delay_seconds(1, 0.0) for way in ("shorter", "none")]
        [5.0, 10.0]
        """
        if attempt > len(self.delays):
            return None
        delay = self.delays[attempt - 1] if after is None else after
        if self.jitter == "none":
            return delay
        if self.jitter == "shorter" and after is None:
            return jittered(delay, draw)
        return delay * (1 + _LONGER * draw)


def _exact_duration(seconds: float) -> str:
    """Return a duration in its two largest units.

    >>> _exact_duration(272_105), _exact_duration(1510), _exact_duration(7200), _exact_duration(2.5)
    ('75 h 35 min', '25 min 10 s', '2 h', '2.5 s')
    """
    for size, unit, small, small_unit in ((_HOUR, "h", _MINUTE, "min"), (_MINUTE, "min", 1.0, "s")):
        if seconds >= size:
            rest = int(seconds % size // small)
            return f"{int(seconds // size)} {unit}" + (f" {rest} {small_unit}" if rest else "")
    return human_duration(seconds)


def as_retries(value: Any) -> Retries:
    """Return the retries of a setting: the name of a preset, a list of delays in seconds, or a
    policy.

    A policy is a ``RetryPolicy`` or its JSON form; or a dict with ``delays`` and ``jitter``, for a
    list without a random part.

    Raises:
        ConfigError: the preset is unknown, a delay is not within 0 to 30 days, or the policy is
            refused.

    >>> as_retries("ulak").tries, as_retries([1, 2.5]).delays
    (10, (1.0, 2.5))
    >>> str(as_retries({"max_retries": 3, "backoff": "fixed", "base_delay": 60}))
    '4 tries over 3 min'
    >>> as_retries({"delays": [10, 60], "jitter": False})
    Retries(delays=(10.0, 60.0), jitter='none')
    """
    if isinstance(value, RetryPolicy):
        value = value.as_json()
    if isinstance(value, Mapping):
        return _of_object(value)
    if isinstance(value, str):
        if value not in PRESETS:
            raise ConfigError(
                "retry",
                f"names the unknown preset {shown(value)}",
                value=value,
                hint=f"Presets: {', '.join(PRESETS)}. Or give a list of delays in seconds.",
            )
        return Retries(PRESETS[value])
    if not isinstance(value, list | tuple) or len(value) > DELAYS_MAX:
        raise ConfigError(
            "retry",
            (
                f"is {shown(value)}, neither the name of a preset, a policy nor a list of at most "
                f"{DELAYS_MAX} delays"
            ),
            value=value,
        )
    for delay in value:
        is_number = isinstance(delay, int | float) and not isinstance(delay, bool)
        if not (is_number and 0 <= delay <= DELAY_SECONDS_MAX):
            raise ConfigError(
                "retry",
                (
                    f"has the delay {shown(delay)}, not a number of seconds from 0 to "
                    f"{DELAY_SECONDS_MAX:.0f} (30 days)"
                ),
                value=value,
            )
    return Retries(tuple(float(delay) for delay in value))


def _of_object(value: Mapping[str, Any]) -> Retries:
    if "delays" not in value:
        policy = RetryPolicy.from_json(value)
        return Retries(tuple(policy.delays()), "shorter" if policy.jitter else "none")
    if not isinstance(value["delays"], list | tuple):
        raise ConfigError("retry", f"has the delays {shown(value['delays'])}, not a list")
    jitter = value.get("jitter", True)
    if not isinstance(jitter, bool):
        raise ConfigError("retry", f"has the jitter {shown(jitter)}, not True or False")
    for name in value:
        if name not in ("delays", "jitter"):
            raise ConfigError("retry", f"has {shown(name)} beside delays")
    return Retries(as_retries(value["delays"]).delays, "longer" if jitter else "none")
