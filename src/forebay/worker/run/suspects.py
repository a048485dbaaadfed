"""Runs suspects: jobs of a worker that died. Such a job may have killed it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from forebay.errors import LeaseLost
from forebay.model.text import logger
from forebay.ops import protocol
from forebay.worker.ground.held import job_of

if TYPE_CHECKING:
    from forebay.arguments.kinds import Kind
    from forebay.db.session import Session
    from forebay.model.job import Job
    from forebay.worker.ground.held import HeldJob
    from forebay.worker.run.children import Children
    from forebay.worker.run.executor import Executor
    from forebay.worker.run.reporter import Outcomes

log = logger("forebay.worker")


class Suspects:
    """Runs each suspect alone in a child process, or in this process if child processes are not
    available.

    Owns the running suspects. It guarantees that the start of a suspect is recorded before the
    suspect runs, and that a suspect without a recorded start is released without using an attempt.

    After a crash the recorded starts remain: when the lease is revoked, these suspects have used an
    attempt.

    Args:
        session: the connection for claims.
        children: the child processes.
        executor: provides the slots.
        outcomes: receives the outcomes.
        group: name of the group, as the jobs show it.
    """

    def __init__(
        self,
        session: Session,
        children: Children,
        executor: Executor,
        outcomes: Outcomes,
        group: str,
    ) -> None:
        self._session = session
        self._children = children
        self._executor = executor
        self._outcomes = outcomes
        self._group = group
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def is_idle(self) -> bool:
        """Whether no suspect runs in a child process."""
        return not self._tasks

    async def start(self, held: HeldJob) -> None:
        """Run a suspect that was claimed alone in its batch."""
        prepared = self._executor.prepare(held)
        if prepared is None:
            return
        if not self._children.available:
            # It runs in this process, beside other jobs. If it kills the process, that still uses
            # an attempt.
            try:
                await self._record_start(held)
            except LeaseLost:
                raise
            except Exception as error:
                self._release(held, error)
                raise
            self._executor.take([held])
            return
        self._executor.reserve()
        kind, _item = prepared
        job = job_of(held, kind, self._group)
        task = asyncio.create_task(self._run(held, kind, job))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def stop(self) -> None:
        """Interrupt running suspects and kill their child processes."""
        for task in list(self._tasks):
            task.cancel()
        await self._children.kill_running()

    async def _record_start(self, held: HeldJob) -> None:
        batch = held.batch
        await self._session.run(protocol.start_suspect(batch.lease.lease_id, batch.claim_no))

    async def _run(self, held: HeldJob, kind: Kind, job: Job) -> None:
        lease = held.lease
        try:
            held.begin()
            await self._record_start(held)
            answer = await self._children.run(held, kind, job)
            if held.ended or lease.lost:
                return
            held.ended = True
            held.child = answer.child
            if answer.settled:
                self._outcomes.settled_by_handler(held, answer.ended)
            elif answer.lease_lost:
                self._outcomes.lease_lost(lease)
            elif answer.ended is not None:
                answer.ended.offset = held.row.offset
                self._outcomes.end(held, answer.ended, solo=answer.solo)
            else:
                self._outcomes.done([held])
        except LeaseLost:
            self._outcomes.lease_lost(lease)
        except Exception as error:
            self._release(held, error)
        finally:
            self._executor.release()

    def _release(self, held: HeldJob, error: Exception) -> None:
        """Give a suspect back that did not start: the database is unavailable, or refuses, as with
        a full disk.
        """
        log.warning("suspect %s released: %s", held.row.job_id, error)
        if not held.ended:
            held.ended = True
            self._outcomes.end(held, protocol.Ended(held.row.offset, "released", after=1.0))
