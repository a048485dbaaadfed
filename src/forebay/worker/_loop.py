"""The event loop around a worker, for a thread or process that does nothing else.

``asyncio.run`` waits at its end for every task, and for ever for a handler that ignores its
cancellation: the process would not end, and nothing would restart it.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Coroutine

T = TypeVar("T")

log = logging.getLogger("forebay.worker")

#: How long what is left on the loop may take to end.
_LEFT_OVER_SECONDS = 1.0


def run_to_the_end(main: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine in a new event loop; leave behind what does not end when it is cancelled."""
    loop = asyncio.new_event_loop()
    try:
        asyncio.set_event_loop(loop)
        return loop.run_until_complete(main)
    finally:
        try:
            _end_tasks(loop)
            loop.run_until_complete(loop.shutdown_asyncgens())
        finally:
            asyncio.set_event_loop(None)
            loop.close()


def _end_tasks(loop: asyncio.AbstractEventLoop) -> None:
    tasks = asyncio.all_tasks(loop)
    for task in tasks:
        task.cancel()
    if not tasks:
        return
    _, left = loop.run_until_complete(asyncio.wait(tasks, timeout=_LEFT_OVER_SECONDS))
    if left:
        log.error("%s handlers ignored their cancellation and are left behind", len(left))
    for task in left:
        # They are known to be pending; what the garbage collector would say of them helps nobody.
        task._log_destroy_pending = False  # type: ignore[attr-defined]  # noqa: SLF001
