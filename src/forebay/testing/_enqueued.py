"""Assertions about jobs, inside the transaction that enqueued them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

from forebay.app import Handler
from forebay.db.drivers import AsyncConnection, SyncConnection, run, run_async
from forebay.model.doors import declaring_door
from forebay.model.text import counted
from forebay.ops import jobs

if TYPE_CHECKING:
    from collections.abc import Mapping

    from forebay.model.status import JobStatus

Kind: TypeAlias = "Handler[..., ..., Any] | str | None"


@declaring_door
def enqueued(
    conn: SyncConnection,
    kind: Kind = None,
    *,
    queue: str | None = None,
    args: Mapping[str, Any] | None = None,
) -> list[JobStatus]:
    """Return the jobs that the connection's transaction sees, including those it enqueued,
    oldest first.

    Args:
        conn: the connection of the test, or of the code under test.
        kind: a handler or the name of its kind; None for any.
        queue: only jobs of this queue.
        args: only jobs with these arguments; further arguments of a job are ignored.

    Only the newest 1,000 jobs are examined.
    """
    return _matching(run(conn, _newest(kind, queue)), args)


@declaring_door
def assert_enqueued(
    conn: SyncConnection,
    kind: Kind = None,
    *,
    queue: str | None = None,
    args: Mapping[str, Any] | None = None,
    count: int | None = None,
) -> list[JobStatus]:
    """Assert that jobs like these are enqueued, and return them, oldest first.

    Args:
        conn: the connection to use.
        kind: a handler or the name of its kind; None for any.
        queue: only jobs of this queue.
        args: only jobs with these arguments, among others.
        count: the exact number; None for at least one.

    Raises:
        AssertionError: there are none, or a different number; the message lists the existing jobs.
    """
    everything = run(conn, _newest(None, None))
    return _asserted(everything, run(conn, _newest(kind, queue)), kind, args, count)


@declaring_door
def assert_not_enqueued(
    conn: SyncConnection,
    kind: Kind = None,
    *,
    queue: str | None = None,
    args: Mapping[str, Any] | None = None,
) -> None:
    """Assert that no job like this is enqueued.

    Raises:
        AssertionError: there is one; the message lists the existing jobs.
    """
    assert_enqueued(conn, kind, queue=queue, args=args, count=0)


@declaring_door
async def enqueued_async(
    conn: AsyncConnection,
    kind: Kind = None,
    *,
    queue: str | None = None,
    args: Mapping[str, Any] | None = None,
) -> list[JobStatus]:
    """Do as ``enqueued``, on an asynchronous connection."""
    return _matching(await run_async(conn, _newest(kind, queue)), args)


@declaring_door
async def assert_enqueued_async(
    conn: AsyncConnection,
    kind: Kind = None,
    *,
    queue: str | None = None,
    args: Mapping[str, Any] | None = None,
    count: int | None = None,
) -> list[JobStatus]:
    """Do as ``assert_enqueued``, on an asynchronous connection."""
    everything = await run_async(conn, _newest(None, None))
    return _asserted(everything, await run_async(conn, _newest(kind, queue)), kind, args, count)


@declaring_door
async def assert_not_enqueued_async(
    conn: AsyncConnection,
    kind: Kind = None,
    *,
    queue: str | None = None,
    args: Mapping[str, Any] | None = None,
) -> None:
    """Do as ``assert_not_enqueued``, on an asynchronous connection."""
    await assert_enqueued_async(conn, kind, queue=queue, args=args, count=0)


def _newest(kind: Kind, queue: str | None) -> Any:
    return jobs.jobs(kind=_name(kind), queue=queue, limit=jobs.LIST_MAX)


def _name(kind: Kind) -> str | None:
    return kind.kind.name if isinstance(kind, Handler) else kind


def _matching(found: list[JobStatus], args: Mapping[str, Any] | None) -> list[JobStatus]:
    wanted = {} if args is None else args
    return [
        job
        for job in reversed(found)
        if all(name in job.args and job.args[name] == value for name, value in wanted.items())
    ]


def _asserted(
    everything: list[JobStatus],
    found: list[JobStatus],
    kind: Kind,
    args: Mapping[str, Any] | None,
    count: int | None,
) -> list[JobStatus]:
    matching = _matching(found, args)
    if matching if count is None else len(matching) == count:
        return matching
    wanted = "at least one job" if count is None else counted(count, "job")
    like = f" of kind {_name(kind)}" if kind is not None else ""
    like += f" with {dict(args)}" if args else ""
    seen = [f"  {job.kind} {dict(job.args)} in queue {job.queue}" for job in everything]
    lines = "\n".join(seen[:50]) or "  none"
    raise AssertionError(f"{wanted}{like} expected, {len(matching)} found; all jobs:\n{lines}")
