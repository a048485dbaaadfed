"""The audit of a drain: read back what the far side accepted before, and send again what it has
lost since.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Final

from forebay._dataclass import dataclass
from forebay.db.own import run_own_async
from forebay.model.text import logger
from forebay.ops import drains
from forebay.sinks import Message, Sent, message_id

if TYPE_CHECKING:
    from collections.abc import Sequence

    from forebay.ops.drains import Proof
    from forebay.sinks import Sink

log = logger("forebay.drain")

_PAGE: Final = 1000

#: How long a sink may take to open or to read a page.
_CALL_SECONDS: Final = 60.0


@dataclass(frozen=True, slots=True)
class DrainAudit:
    """What an audit found.

    Attributes:
        read: messages whose proof was read.
        there: of these, what the far side has.
        unknown: of these, what the far side cannot tell about, such as consumed ones.
        lost: of these, what the far side accepted and does not have.
        resent: lost messages that were enqueued again. The others are no longer in the log, or
            another audit was faster.
        seconds: how long it took.
    """

    read: int
    there: int
    unknown: int
    lost: int
    resent: int
    seconds: float


async def audit(
    dsn: str, name: str, queue: str, group: str, sink: Sink, *, repair: bool
) -> DrainAudit:
    """Audit the proofs of a drain, a page at a time.

    A page is one transaction, so an audit that ends early has sent again what it found until then,
    and the next one begins anew.

    Raises:
        SinkUnavailable: the far side cannot be read now.
        GroupNotFound: no drain has served the queue yet.
        DatabaseUnavailable: no connection, or it was lost.
    """
    began = time.monotonic()
    read = there = unknown = lost = resent = 0
    after: Proof | None = None
    async with asyncio.timeout(_CALL_SECONDS):
        await sink.open()
    try:
        while page := await run_own_async(dsn, drains.proofs(queue, group, after, _PAGE)):
            after = page[-1]
            async with asyncio.timeout(_CALL_SECONDS):
                found = await sink.seen([_sent(one, queue, group) for one in page])
            missing = [one for one, is_there in zip(page, found, strict=True) if is_there is False]
            read += len(page)
            there += sum(is_there is True for is_there in found)
            unknown += sum(is_there is None for is_there in found)
            lost += len(missing)
            if missing and repair:
                resent += await _resend(dsn, name, queue, group, missing)
    finally:
        await sink.close()
    return DrainAudit(read, there, unknown, lost, resent, time.monotonic() - began)


async def _resend(dsn: str, name: str, queue: str, group: str, missing: Sequence[Proof]) -> int:
    count = await run_own_async(dsn, drains.resend(name, queue, group, missing))
    log.warning(
        "drain %s: %d accepted messages are lost; sending %d again", name, len(missing), count
    )
    return count


def _sent(one: Proof, queue: str, group: str) -> Sent:
    """Return what identifies a message on the far side; the rest of it is not needed there."""
    message = Message(
        id=message_id(one.job_id, one.enqueued_at, group),
        job_id=one.job_id,
        kind="",
        queue=queue,
        body=b"",
        enqueued_at=one.enqueued_at,
    )
    for _ in range(one.generation):
        message = message.after_loss()
    return Sent(message, one.proof)
