"""The maintenance that worker processes do, for scenarios that use the protocol without a
worker.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from typing import TYPE_CHECKING

from forebay.db.session import Session
from forebay.worker import Maintenance

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextlib.contextmanager
def maintenance(dsn: str) -> Iterator[None]:
    """Run all duties of a worker's maintenance in a thread, at a worker's intervals, while the
    block runs.
    """
    loop = asyncio.new_event_loop()
    stop = asyncio.Event()

    async def run() -> None:
        session = Session(dsn, name="forebay bench maintenance", lock_timeout="1s")
        duties = asyncio.create_task(Maintenance(session).run())
        await stop.wait()
        duties.cancel()
        await asyncio.gather(duties, return_exceptions=True)
        await session.close()

    def serve() -> None:
        with asyncio.Runner(loop_factory=lambda: loop) as runner:
            runner.run(run())

    thread = threading.Thread(target=serve, name="maintenance")
    thread.start()
    try:
        yield
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join()
