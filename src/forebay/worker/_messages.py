"""What a worker and its children say to each other: JSON, each message with its length before it."""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from typing import Any

import msgspec

from forebay.config import WorkerSettings
from forebay.ops.protocol import ClaimedJob, Ended, ReadyLane


class Start(msgspec.Struct):
    """What a child needs to know before its first job. ``module`` is a module's name or a script's path."""

    module: str
    attribute: str
    is_script: bool
    path: list[str]
    dsn: str
    name: str
    group: str
    settings: dict[str, Any]
    is_pooled: bool = False


class Work(msgspec.Struct):
    """One job to run, or several for one call of a batch handler. ``offsets``: their places in their batch."""

    lease_id: int
    claim_no: int
    rows: list[ClaimedJob]
    offsets: list[int]
    lane: ReadyLane


class ChildReport(msgspec.Struct):
    """How the job at an offset ended: done, in its own transaction (settled), or otherwise; or what is wrong with the child.

    With ``progress`` it goes on, and is so far.
    """

    offset: int = 0
    settled: bool = False
    lease_lost: bool = False
    solo: bool = False
    ended: Ended | None = None
    progress: tuple[float, str] | None = None
    tallies: list[dict[str, Any]] = []
    ready: bool = False
    broken: str | None = None
    #: Not sent by a child: it died, and nobody knows of which of several jobs.
    died: bool = False


class Stop(msgspec.Struct):
    """Ask the running handler to stop: the job was cancelled."""

    job_id: int


async def receive(reader: asyncio.StreamReader) -> bytes:
    """Read one message."""
    size = int.from_bytes(await reader.readexactly(4), "big")
    return await reader.readexactly(size)


def framed(message: bytes) -> bytes:
    """Return a message with its length before it."""
    return len(message).to_bytes(4, "big") + message


def settings_of(settings: WorkerSettings) -> dict[str, Any]:
    """Return a child's settings: its parent's, with one slot."""
    return {**asdict(settings), "concurrency": 1}
