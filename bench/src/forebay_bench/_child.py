"""The messages of a script of the benchmark, in its process.

``_processes.Script`` is the other end.
"""

from __future__ import annotations

import json
import sys
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator


def commands() -> Iterator[Any]:
    """Report that this process is ready, and yield its commands until the input ends."""
    answer("ready")
    for line in sys.stdin:
        yield json.loads(line)


def answer(value: object) -> None:
    """Answer the process that started this one."""
    sys.stdout.write(json.dumps(value) + "\n")
    sys.stdout.flush()


def sleep_until(moment: float) -> None:
    """Sleep until a moment of the monotonic clock."""
    time.sleep(max(0.0, moment - time.monotonic()))
