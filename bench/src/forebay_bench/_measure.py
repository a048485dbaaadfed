"""Turns, medians and spread; CPU time and write-ahead log of the measured work."""

from __future__ import annotations

import contextlib
import math
import os
import statistics
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import psycopg

T = TypeVar("T")

_TRIES: Final = 10

_TICKS_PER_SECOND: Final = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Spread:
    """The values of one engine in several rounds."""

    median: float
    low: float
    high: float
    rounds: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Return the spread of at least one value."""
        return cls(statistics.median(values), min(values), max(values), len(values))


def in_turns(
    engines: Mapping[str, Callable[[], T]],
    rounds: int,
    progress: Callable[[str], None] = lambda _: None,
) -> dict[str, list[T]]:
    """Let each engine run once a round, in alternating order; return what each call returned.

    A temporary disturbance of the machine then affects all engines, and none always runs first.
    """
    found: dict[str, list[T]] = {name: [] for name in engines}
    for number in range(rounds):
        order = list(engines)[:: 1 if number % 2 == 0 else -1]
        for name in order:
            progress(f"round {number + 1} of {rounds}: {name}")
            found[name].append(engines[name]())
    return found


def ratio_of_rounds(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """Return the median of the ratios of equal rounds: steadier than the ratio of the medians.

    In a short turn a stalled disk may let one engine do nothing: the ratio is then infinite. A
    round in which neither engine did anything is left out; if all rounds are left out, the median
    is 0.
    """
    rounds = [(a, b) for a, b in zip(ours, theirs, strict=True) if a or b]
    return statistics.median([a / b if b else math.inf for a, b in rounds] or [0.0])


def percentile(values: Sequence[float], share: float) -> float:
    """Return the value that a share of the values does not exceed (nearest rank)."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def per_second(count: int, work: Callable[[], object]) -> float:
    """Return how many of ``count`` things a second the work did."""
    started = time.perf_counter()
    work()
    return count / (time.perf_counter() - started)


def round_figure(value: float | None, digits: int = 3) -> float | None:
    """Return a figure with this number of significant digits; rates keep whole numbers.

    None for an infinite value, and for none.
    """
    if value is None or math.isinf(value):
        return None
    if abs(value) >= 1000:
        return round(value)
    return float(f"{value:.{digits}g}")


def wal_bytes(conn: psycopg.Connection[Any]) -> int:
    """Return the position of the server's write-ahead log: differences are bytes written by all
    sessions.
    """
    row = conn.execute(
        "select pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')::bigint"
    ).fetchone()
    assert row is not None
    return int(row[0])


def server_cpu_seconds(postmaster_pid: int) -> float | None:
    """Return CPU seconds that a server on this machine used so far, its ended processes included.

    None where the system does not report it (it is read from /proc).
    """
    for _ in range(_TRIES):
        # A process that ends meanwhile is missed here, but its time is added to its parent's.
        with contextlib.suppress(OSError):
            total = _ended_seconds(postmaster_pid) + _own_seconds(postmaster_pid)
            for pid in _children_of(postmaster_pid):
                total += _own_seconds(pid)
            return total
    return None


def process_cpu_seconds(pid: int) -> float | None:
    """Return CPU seconds of a process so far; None where the system does not report it."""
    try:
        return _tick_seconds(pid, 11)
    except OSError:
        return None


def resident_bytes(pid: int) -> int | None:
    """Return the resident memory of a process; None where the system does not report it."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1])
    except OSError:
        return None
    return pages * os.sysconf("SC_PAGE_SIZE")


def _own_seconds(pid: int) -> float:
    # In nanoseconds, but of the first thread alone: PostgreSQL's processes have one. Ticks of 10 ms
    # in each of ten processes would hide what a short run measures.
    with contextlib.suppress(FileNotFoundError):  # A kernel without statistics of its scheduler.
        return int(Path(f"/proc/{pid}/schedstat").read_text(encoding="ascii").split()[0]) / 1e9
    return _tick_seconds(pid, 11)


def _ended_seconds(pid: int) -> float:
    return _tick_seconds(pid, 13)


def _tick_seconds(pid: int, field: int) -> float:
    # Fields after the name in parentheses, which may hold spaces: utime, stime, cutime, cstime are
    # 11 to 14.
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return (int(fields[field]) + int(fields[field + 1])) / _TICKS_PER_SECOND


def _children_of(pid: int) -> list[int]:
    listed = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()
    return [int(child) for child in listed]
