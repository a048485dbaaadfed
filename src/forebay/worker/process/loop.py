"""The event loop around a worker, for a thread or process that does nothing else.

At its end ``asyncio.run`` waits for every task, and without a limit for a handler that ignores its
cancellation: the process would not exit, and no supervisor would restart it.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, TypeVar

from forebay.model.text import logger

if TYPE_CHECKING:
    from collections.abc import Coroutine

T = TypeVar("T")

log = logger("forebay.worker")

#: How long remaining tasks may take to end.
_LEFT_OVER_SECONDS = 1.0


def run_to_the_end(main: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine in a new event loop.

    At the end, abandon tasks that ignore their cancellation.
    """
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
        log.error("%s handlers ignored their cancellation and are abandoned", len(left))
    for task in left:
        # These tasks are known to be pending: suppress the warning of the garbage collector.
        task._log_destroy_pending = False  # type: ignore[attr-defined]  # noqa: SLF001
