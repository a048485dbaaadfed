"""What a worker tells the database of itself: once with each lease, and its memory with each
heartbeat.
"""

from __future__ import annotations

import importlib.metadata
import os
import socket
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable

    from forebay.worker.ground.common import Common


_QUEUES_MAX: Final = 100
_TEXT_MAX: Final = 200


def identity(
    common: Common, location: tuple[str, str, bool] | None, *, schedules: bool = True
) -> Callable[[], dict[str, Any]]:
    """Return a function that describes this process; its age counts from now.

    Args:
        common: settings, group and queues of the worker, and the title that stands where an app
            without a location has its name.
        location: of the app.
        schedules: whether it decides the instants of schedules.
    """
    settings, title = common.settings, common.app.title
    began = time.monotonic()
    app = title if location is None else f"{location[0]}:{location[1]}"
    described = {
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "group": common.group,
        "queues": list(common.weights)[:_QUEUES_MAX],
        "app": app and (app[:_TEXT_MAX] if location is None else app[-_TEXT_MAX:]),
        "app_version": settings.app_version and settings.app_version[:_TEXT_MAX],
        "version": _version(),
        "concurrency": settings.slots,
        "processes": settings.processes,
        "schedules": schedules,
    }
    return lambda: (
        described
        | {
            # forebay.ticks() knows by it that no worker stays.
            "until_idle": common.until_idle,
            "uptime_seconds": round(time.monotonic() - began, 3),
        }
    )


def resident_kb() -> int | None:
    """Return the resident memory of this process in kibibytes.

    The result is None where the system does not report it.
    """
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") // 1024
    except (OSError, ValueError, IndexError):
        return None


def _version() -> str | None:
    try:
        return importlib.metadata.version("forebay")
    except importlib.metadata.PackageNotFoundError:
        return None
