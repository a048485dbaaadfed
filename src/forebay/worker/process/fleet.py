"""Several workers in one process."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

from forebay.worker.process._health import FleetHealth
from forebay.worker.process._metrics import exporter_of
from forebay.worker.process.probes import answer_probes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from forebay.config import WorkerSettings
    from forebay.worker.ground.stats import Stats
    from forebay.worker.process.worker import Worker


async def run_workers(
    workers: Sequence[Worker], settings: WorkerSettings, *, until_idle: bool = False
) -> list[Stats]:
    """Run several workers in this process until all have stopped; return what each did.

    If one ends with an error, the others are stopped and the error is raised. If an operator asks
    one to stop, all stop. The process is ready while all of them are.

    Args:
        workers: those to run; the process answers probes for them.
        settings: where the process answers probes.
        until_idle: each ends when it has nothing to do.
    """

    def stop_all() -> None:
        for worker in workers:
            worker.stop()

    for worker in workers:
        worker.answers_probes = False
        worker.on_asked = stop_all
    async with contextlib.AsyncExitStack() as stack:
        health = FleetHealth([worker.health for worker in workers])
        exporter = exporter_of(workers[0].dsn, health, [worker.stats for worker in workers])
        await stack.enter_async_context(
            answer_probes(health, workers[0].name, settings.health, exporter.atext)
        )
        running = [asyncio.create_task(each.run(until_idle=until_idle)) for each in workers]
        done, _ = await asyncio.wait(running, return_when=asyncio.FIRST_EXCEPTION)
        if any(task.exception() for task in done):
            stop_all()
            await asyncio.wait(running)
        return [task.result() for task in running]
