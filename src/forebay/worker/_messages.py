"""The messages between a worker and its child processes: JSON, each after its length."""

from __future__ import annotations

import asyncio
import json
from dataclasses import asdict
from typing import Any

import msgspec

from forebay.config import WorkerSettings
from forebay.ops.protocol import ClaimedJob, Ended, ReadyLane
from forebay.worker._log_format import LogFormat


class Start(msgspec.Struct):
    """What a child needs before its first job. ``module`` is the name of a module or the path of a script."""

    module: str
    attribute: str
    is_script: bool
    path: list[str]
    dsn: str
    name: str
    group: str
    settings: dict[str, Any]
    is_pooled: bool = False
    #: Level and format of the log; None: the application configures it.
    log: tuple[str, LogFormat] | None = None


class Work(msgspec.Struct):
    """One job to run, or several for one call of a batch handler. ``offsets``: their positions in their batch."""

    lease_id: int
    claim_no: int
    rows: list[ClaimedJob]
    offsets: list[int]
    lane: ReadyLane


def decode_work(message: bytes) -> Work:
    """Decode a message with jobs; a number beyond the range of floats becomes infinite."""
    try:
        return msgspec.json.decode(message, type=Work)
    except msgspec.ValidationError:
        return msgspec.convert(json.loads(message), Work)


class ChildReport(msgspec.Struct):
    """How the job at an offset ended: done, or as ``ended`` says; or an error of the child.

    With ``settled`` its handler's transaction has settled it so.

    With ``progress`` the job still runs, and this is its progress.
    """

    offset: int = 0
    settled: bool = False
    lease_lost: bool = False
    solo: bool = False
    ended: Ended | None = None
    progress: tuple[float, str] | None = None
    counters: list[dict[str, Any]] = []
    ready: bool = False
    broken: str | None = None
    #: Set by the parent: the child died, and which of its several jobs killed it is unknown.
    died: bool = False


class Stop(msgspec.Struct):
    """Ask the running handler to stop: the job was cancelled."""

    job_id: int


async def receive(reader: asyncio.StreamReader) -> bytes:
    """Read one message."""
    size = int.from_bytes(await reader.readexactly(4), "big")
    return await reader.readexactly(size)


def framed(message: bytes) -> bytes:
    """Return a message after its length."""
    return len(message).to_bytes(4, "big") + message


def settings_of(settings: WorkerSettings) -> dict[str, Any]:
    """Return the settings for a child: those of its parent, with one slot."""
    return {**asdict(settings), "concurrency": 1, "processes": None}
