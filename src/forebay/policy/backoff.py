"""How long to wait before the next attempt, or the next connection."""

from __future__ import annotations

import math
from typing import Final, Literal, get_args

Strategy = Literal["fixed", "linear", "exponential", "polynomial"]

STRATEGIES: Final[tuple[str, ...]] = get_args(Strategy)

#: The power of "polynomial": cubic, between linear and exponential over the first dozen attempts.
POLYNOMIAL_POWER: Final = 3

#: The longest wait between two attempts to connect, before jitter.
RECONNECT_SECONDS_MAX: Final = 1.0

#: Exponents beyond this would overflow a double; every cap is reached long before.
_EXPONENT_MAX: Final = 1000


def backoff_seconds(
    attempt: int,
    *,
    strategy: Strategy,
    base_seconds: float,
    cap_seconds: float,
    increment_seconds: float | None = None,
) -> float:
    """Return the wait after a failed attempt, before jitter.

    fixed: base; linear: base + increment * (n-1); exponential: base * 2**(n-1); polynomial: base *
    n**3; none more than the cap.

    Args:
        attempt: number of the attempt that failed, from 1.
        strategy: one of ``STRATEGIES``.
        base_seconds: the wait after the first attempt, above 0.
        cap_seconds: the longest wait, at least ``base_seconds``.
        increment_seconds: of linear; None means the base, so that the waits are base * n.

    Raises:
        ValueError: the attempt is below 1.

    >>> [backoff_seconds(n, strategy="exponential", base_seconds=5, cap_seconds=60)
    ...  for n in (1, 2, 3, 4, 5, 5000)]
    [5.0, 10.0, 20.0, 40.0, 60.0, 60.0]
    """
    if attempt < 1:
        raise ValueError(f"attempt must be at least 1, not {attempt}")
    match strategy:
        case "fixed":
            factor = 1.0
        case "linear":
            more = base_seconds if increment_seconds is None else increment_seconds
            factor = 1.0 + (attempt - 1) * more / base_seconds
        case "exponential":
            factor = 2.0 ** min(attempt - 1, _EXPONENT_MAX)
        case "polynomial":
            factor = float(attempt) ** POLYNOMIAL_POWER
    return min(float(base_seconds) * factor, float(cap_seconds))


def jittered(seconds: float, u: float) -> float:
    """Return a wait spread over the upper half of ``seconds``.

    Jobs that failed together must not come back together. Each keeps at least half its wait, so
    that the total time over which a job is retried has a useful lower bound. Of the variants in M.
    Brooker, "Exponential Backoff And Jitter" (AWS Architecture Blog, 2015) this is "equal jitter".

    Args:
        seconds: the full wait.
        u: a draw from [0, 1).

    >>> jittered(60.0, 0.0), jittered(60.0, 0.5)
    (30.0, 45.0)
    """
    return seconds / 2 + u * seconds / 2


def reconnect_seconds(
    failures: int, u: float, *, cap_seconds: float = RECONNECT_SECONDS_MAX
) -> float:
    """Return the wait before connecting again: 0.1 s, doubled by each failure, then jittered.

    The cap is low, because jobs wait for the first connection after an outage, and an attempt that
    is refused costs little.

    Args:
        failures: failed attempts in a row, from 1.
        u: a draw from [0, 1).
        cap_seconds: the longest wait.

    >>> reconnect_seconds(1, 0.0), reconnect_seconds(50, 0.5)
    (0.05, 0.75)
    """
    full = backoff_seconds(
        max(failures, 1), strategy="exponential", base_seconds=0.1, cap_seconds=cap_seconds
    )
    return jittered(full, u)


def unknown_kind_seconds(times: int, u: float) -> float:
    """Return how long a job of an unknown kind is postponed.

    It starts at 5 s, because a rolling deploy soon starts a worker with the handler. It grows to 10
    minutes, because a job whose code was removed must not keep the workers busy. The
    number of times is unlimited.

    Args:
        times: how often the job has been postponed, including this time, from 1.
        u: a draw from [0, 1).

    >>> unknown_kind_seconds(1, 0.0), unknown_kind_seconds(40, 0.5)
    (2.5, 450.0)
    """
    full = backoff_seconds(
        max(times, 1), strategy="exponential", base_seconds=5.0, cap_seconds=600.0
    )
    return jittered(full, u)


def total_seconds(
    attempts: int,
    *,
    strategy: Strategy,
    base_seconds: float,
    cap_seconds: float,
    increment_seconds: float | None = None,
) -> float:
    """Return the sum of the waits between this many attempts, before jitter.

    >>> total_seconds(4, strategy="fixed", base_seconds=10, cap_seconds=60)
    30.0
    """
    total = 0.0
    for attempt in range(1, attempts):
        wait = backoff_seconds(
            attempt,
            strategy=strategy,
            base_seconds=base_seconds,
            cap_seconds=cap_seconds,
            increment_seconds=increment_seconds,
        )
        if wait >= cap_seconds:
            # Every later wait equals the cap; a policy may allow thousands of attempts.
            return total + cap_seconds * (attempts - attempt)
        total += wait
    return total if math.isfinite(total) else cap_seconds * attempts
