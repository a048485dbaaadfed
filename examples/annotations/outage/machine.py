"""How much of the machine other programs use: with a busy machine, slow requests say nothing
about the service.

Linux counts the time of all processors in /proc/stat, and the time of each process. What is busy
and not ours is of others; time that a hypervisor gives to other guests counts as theirs. On other
systems it is not known.
"""

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

#: From this share of all processors on the machine counts as busy.
BUSY_FROM = 0.15


@dataclass(frozen=True, slots=True)
class Use:
    """Processor seconds up to a moment: of all processors, of those the busy ones, of those
    ours.
    """

    all: float
    busy: float
    ours: float


class Machine:
    """Looks at the processors.

    Args:
        pids: our processes. Their descendants are ours too, and so are this process and its
            descendants.
    """

    def __init__(self, pids: Iterable[int]) -> None:
        self._roots = [os.getpid(), *pids]

    def use(self) -> Use | None:
        """Return the use so far; None where the system does not report it."""
        try:
            line = Path("/proc/stat").read_text(encoding="ascii").partition("\n")[0]
        except OSError:
            return None
        # user nice system idle iowait irq softirq steal; the rest is contained in these.
        ticks = [int(value) for value in line.split()[1:9]]
        per_second = os.sysconf("SC_CLK_TCK")
        all_, idle = sum(ticks), ticks[3] + ticks[4]
        ours = sum(_ticks(pid) for pid in _tree(self._roots))
        return Use(all_ / per_second, (all_ - idle) / per_second, ours / per_second)


def share_of_others(first: Use | None, last: Use | None) -> float | None:
    """Return the share of all processors that others used between two looks.

    None if it is not known.
    """
    if first is None or last is None or last.all <= first.all:
        return None
    others = (last.busy - first.busy) - (last.ours - first.ours)
    return round(max(0.0, others / (last.all - first.all)), 3)


def _tree(roots: Iterable[int]) -> set[int]:
    found: set[int] = set()
    waiting = list(roots)
    while waiting:
        pid = waiting.pop()
        if pid not in found:
            found.add(pid)
            waiting += _children(pid)
    return found


def _children(pid: int) -> list[int]:
    try:
        # Each thread has the children that it started.
        listed = [
            path.read_text(encoding="ascii")
            for path in Path(f"/proc/{pid}/task").glob("*/children")
        ]
    except OSError:
        return []  # It has ended.
    return [int(child) for text in listed for child in text.split()]


def _ticks(pid: int) -> int:
    """Return the processor time of a process and of its ended children."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    except OSError:
        return 0
    return sum(int(value) for value in fields[11:15])
