"""Many idle workers in one process: they cost the server as much as the same number of processes.

Started by the scenario ``latency``: the address, and how many. Each worker has its connections, its
lease, its heartbeats and its maintenance; only the interpreter is shared, so that two hundred fit
into a small machine.
"""

from __future__ import annotations

import asyncio
import logging
import sys

from forebay.config import WorkerSettings
from forebay.worker import Worker
from forebay_bench._child import answer
from forebay_bench.jobs import app


async def work(dsn: str, count: int) -> None:
    """Start this number of workers, report it, and stop them when the standard input ends."""
    settings = WorkerSettings(queue="pickup")
    workers = [Worker(app._internals, dsn, settings=settings) for _ in range(count)]
    tasks = []
    for worker in workers:
        tasks.append(asyncio.create_task(worker.run()))
        await worker.started.wait()
    answer("ready")
    await asyncio.to_thread(sys.stdin.read)
    for worker in workers:
        worker.stop_now()
    await asyncio.gather(*tasks)


def main() -> None:
    """Run as the scenario commands."""
    logging.basicConfig(level=logging.WARNING)
    asyncio.run(work(sys.argv[1], int(sys.argv[2])))


if __name__ == "__main__":
    main()
