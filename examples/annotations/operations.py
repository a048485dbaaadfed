"""What an operator needs to know of the search index: its backlog, its failures, and how far it
differs.
"""

import asyncio
import contextlib
from collections.abc import Iterable
from datetime import timedelta
from typing import Any

import psycopg
from psycopg import AsyncConnection
from psycopg_pool import AsyncConnectionPool, PoolTimeout

from annotations import store
from annotations.app import annotations, app
from annotations.store import NotFoundError
from forebay.errors import DatabaseUnavailable, ForebayError, JobNotFound
from forebay.mirror import Drift

FAILURES_MAX = 20

#: Twice within the time in which a job must be completed, or there is an alert.
_HEARTBEAT_SECONDS = annotations.thresholds.completed_within / 2

_KIND = annotations.handler.kind


async def overview(conn: AsyncConnection[Any]) -> dict[str, Any]:
    """Return backlog, failures, alerts and the last comparison."""
    status = await asyncio.to_thread(annotations.status)
    facts = status.facts
    oldest = facts.oldest_due_at
    return {
        "waiting": facts.waiting - facts.claimed - facts.running,
        "running": facts.claimed + facts.running,
        "oldest_seconds": 0 if oldest is None else max(0,
            round((facts.at - oldest).total_seconds())),
        "alerts": [{"problem": alert.problem, "hint": alert.hint} for alert in status.alerts],
        "failing": facts.tried,
        "dead": facts.dead + facts.expired,
        "failures": await _failures(conn, [stuck.job_id for stuck in facts.stuck]),
        "comparison": facts.audits[0] if facts.audits else None,
    }  # fmt: skip


async def _failures(conn: AsyncConnection[Any], oldest: Iterable[int]) -> list[dict[str, Any]]:
    """Return what failed: the oldest, the newest, and dead letters."""
    client = app.async_client()
    newest = await client.jobs(
        queue=_KIND.queue, kind=_KIND.name, state="retrying", limit=FAILURES_MAX, conn=conn
    )
    found: list[dict[str, Any]] = []
    for job_id in dict.fromkeys([*oldest, *(job.job_id for job in newest)]):
        try:
            (job,) = await client.job(job_id, conn=conn)
            errors = (await client.job_history(job_id, conn=conn))[0].errors
        except JobNotFound:
            continue  # It has ended since.
        found.append(
            _failure(job_id, job.args, len(errors), errors[-1].message if errors else None)
        )
    letters = await client.dead_letters(
        queue=_KIND.queue, kind=_KIND.name, limit=FAILURES_MAX, conn=conn
    )
    for letter in letters:
        error = letter.errors[-1].message if letter.errors else letter.reason
        found.append(_failure(letter.job_id, letter.args, letter.attempt, error, is_dead=True))
    notes = await store.places(conn, [each["id"] for each in found if each["id"] is not None])
    return [each | notes.get(each["id"], {"page": None, "line": None}) for each in found]


def _failure(
    job_id: int, args: Any, attempts: int, error: str | None, *, is_dead: bool = False
) -> dict[str, Any]:
    name = args.get("id")
    return {
        "job": job_id,
        "id": name if isinstance(name, int) else None,
        "attempts": attempts,
        "error": (error or "no message").partition("\n")[0],
        "is_dead": is_dead,
    }


async def retry(conn: AsyncConnection[Any], job_id: int) -> None:
    """Run what failed again now: a dead job by its dead letter, another one by a further job for
    the same annotation.
    """
    client = app.async_client()
    letters = await client.dead_letters(job_id=job_id, kind=_KIND.name, conn=conn)
    if letters:
        await client.redrive(letters[0].dead_id, conn=conn)
        return
    try:
        jobs = await client.job(job_id, conn=conn)
    except JobNotFound:
        jobs = []
    name = jobs[0].args.get("id") if jobs and jobs[0].kind == _KIND.name else None
    if name is None:
        raise NotFoundError(f"there is no failed job {job_id}")
    await annotations.achanged(conn, name, tag="operator.retry", delay=0)


async def heartbeats(pool: AsyncConnectionPool[AsyncConnection[Any]]) -> None:
    """Show that changes get through even while no person makes any, so that silence is an alert."""
    while True:
        with contextlib.suppress(psycopg.OperationalError, PoolTimeout, DatabaseUnavailable):
            async with pool.connection() as conn:
                await annotations.aheartbeat(conn)
        await asyncio.sleep(_HEARTBEAT_SECONDS)


class Comparison:
    """Compares the index with the annotations in the background, one comparison at a time."""

    def __init__(self) -> None:
        self._task: asyncio.Task[None] | None = None
        self.problem: str | None = None

    @property
    def is_running(self) -> bool:
        return self._task is not None and not self._task.done()

    def start(self, *, repair: bool) -> None:
        """Begin, unless one is running. The result is recorded, and ``overview`` returns it."""
        if not self.is_running:
            self.problem = None
            self._task = asyncio.create_task(self._run(repair=repair))

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self, *, repair: bool) -> None:
        try:
            drift: Drift = await asyncio.to_thread(annotations.audit, settle=timedelta(seconds=1))
            if repair and drift.repairable:
                await asyncio.to_thread(annotations.repair, drift)
        except ForebayError as error:
            self.problem = str(error)
