"""The messages between a worker and its child processes: JSON, each after its length."""

from __future__ import annotations

import asyncio
import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import msgspec

from forebay.config import WorkerSettings
from forebay.ops.claimed import ClaimedJob, RawJob
from forebay.ops.flows import ChildEnd
from forebay.ops.protocol import Ended, ReadyLane
from forebay.worker.ground.log_format import LogFormat

if TYPE_CHECKING:
    from collections.abc import Collection


class Start(msgspec.Struct):
    """What a child needs before its first job.

    ``module`` is the name of a module or the path of a script.
    """

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
    """One job to run, or several for one call of a batch handler. ``offsets``: their positions in
    their batch.
    """

    lease_id: int
    claim_no: int
    rows: list[ClaimedJob]
    offsets: list[int]
    lane: ReadyLane
    #: The settings of the database that the worker follows.
    settings: dict[str, Any] = {}


class RawWork(Work):
    """Jobs whose handler takes the arguments as text."""

    rows: list[RawJob]  # type: ignore[assignment]  # nothing is added to it


def decode_work(message: bytes, raw_kinds: Collection[str] = ()) -> Work:
    """Decode a message with jobs; arguments of raw kinds stay text.

    In arguments of other kinds a number beyond the range of floats becomes infinite.
    """
    if raw_kinds:
        work = msgspec.json.decode(message, type=RawWork)
        # A row without arguments, which is malformed, is no object; it ends as that of any handler.
        if work.rows[0].kind in raw_kinds and all(bytes(r.args)[:1] == b"{" for r in work.rows):
            return work
    try:
        return msgspec.json.decode(message, type=Work)
    except msgspec.ValidationError:
        return msgspec.convert(json.loads(message), Work)


class ChildReport(msgspec.Struct):
    """How the job at an offset ended: done, or as ``ended`` says; or an error of the child.

    If ``settled`` is true, the transaction of its handler has settled it.

    If ``progress`` is set, the job still runs, and this is its progress.
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
    #: What the parent of the job learns of its end, if it is the child of a flow.
    child: ChildEnd | None = None
    #: Set by the parent: the child died, and which of its several jobs killed it is unknown.
    died: bool = False

    @property
    def spoils(self) -> bool:
        """Whether the child must not be reused: its handler may still run, or it ran out of
        memory.
        """
        error = self.ended.error if self.ended is not None else None
        kind = error["type"].rpartition(".")[2] if error is not None else None
        return kind in {"HardTimeout", "MemoryError"}


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
    return {**asdict(settings), "concurrency": 1, "processes": None, "given": []}
