"""Limits of a call in a child process: memory and processor time, counted and enforced by the
kernel.

``setrlimit(2)``. The limits are set before each call, relative to what the process has used so far,
so that a child can be reused. Memory: RLIMIT_DATA, the writable private memory, which Linux
enforces completely since 4.7; an allocation beyond the limit fails, in Python with MemoryError.
Processor time: RLIMIT_CPU, whose SIGXCPU ends the process, also inside C code.
"""

from __future__ import annotations

import contextlib
import math
import resource
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from forebay.arguments.kinds import Kind

_STATUS: Final = Path("/proc/self/status")


def limit_resources(kind: Kind) -> None:
    """Set the limits of a kind for the next call; remove limits that the kind does not have."""
    memory = None if kind.memory_bytes is None else _used_bytes() + int(kind.memory_bytes)
    _set(resource.RLIMIT_DATA, memory)
    seconds = None
    if kind.cpu_seconds is not None:
        seconds = math.ceil(time.process_time() + kind.cpu_seconds)
    _set(resource.RLIMIT_CPU, seconds)


def _set(which: int, soft: int | None) -> None:
    _, hard = resource.getrlimit(which)
    wanted = resource.RLIM_INFINITY if soft is None else soft
    if hard != resource.RLIM_INFINITY and not 0 <= wanted <= hard:
        wanted = hard
    # On a system without this limit the handler runs without it.
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(which, (wanted, hard))


def _used_bytes() -> int:
    """Return the bytes that the kernel counts for RLIMIT_DATA now.

    The result is 0 where the kernel does not report them.
    """
    with contextlib.suppress(OSError):
        for line in _STATUS.read_text(encoding="ascii").splitlines():
            if line.startswith("VmData:"):
                return int(line.split()[1]) * 1024
    return 0
