"""The speed of the machine during a measurement.

On a shared machine the speed differs from one second to the next, and between cores: a core whose
hyper-thread sibling works for another guest does little more than half. Two successive turns can
then differ by more than the engines they compare. So each run also reports the time of a loop that
only counts, on each core in turn. It is CPU time: waiting for a core does not lengthen it, but a
slower core does.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import statistics
import threading
import time
from typing import Any, Final, Self

#: Steps of the loop: about a millisecond.
_STEPS: Final = 20_000

_PAUSE_SECONDS: Final = 0.25

#: Ratio of the slowest tenth to the fastest one from which on single turns are not comparable.
_UNSTEADY_FROM: Final = 1.5


class MachineSpeed:
    """Watches in a thread from ``with`` to its end."""

    def __init__(self) -> None:
        self._seconds: list[float] = [_count()]
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="machine speed", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()

    def _watch(self) -> None:
        for core in itertools.cycle(_cores()):
            if self._end.wait(_PAUSE_SECONDS):
                return
            if core is not None:
                # This thread only. If the core was removed meanwhile, the loop runs on another.
                with contextlib.suppress(OSError):
                    os.sched_setaffinity(0, {core})
            self._seconds.append(_count())

    def facts(self) -> dict[str, Any]:
        """Milliseconds of the loop: a tenth took at most ``low_ms``, half at most ``median_ms``,
        a tenth ``high_ms`` or more.

        ``unsteady``: these differ so much that the ratio of two single turns says little.
        """
        found = sorted(self._seconds)
        last = len(found) - 1
        low, high = found[round(last * 0.1)], found[round(last * 0.9)]
        return {
            "low_ms": round(low * 1000, 2),
            "median_ms": round(statistics.median(found) * 1000, 2),
            "high_ms": round(high * 1000, 2),
            "unsteady": high >= _UNSTEADY_FROM * low,
        }


def _cores() -> list[int | None]:
    """Return the cores that this process may use.

    Where the system does not report them, one unknown core.
    """
    return [*os.sched_getaffinity(0)] if hasattr(os, "sched_getaffinity") else [None]


def _count() -> float:
    began = time.thread_time()
    total = 0
    for number in range(_STEPS):
        total += number
    return time.thread_time() - began
