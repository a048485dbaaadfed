"""Outcomes that cannot be recorded, whatever the reason: each ends its own job.

Invariant: "an outcome that cannot be recorded ends its job, and waits for nothing", see
docs/design/worker.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from forebay.errors import OutcomeRefused, shown
from forebay.model.text import logger
from forebay.ops import protocol
from forebay.ops.protocol import Ended
from forebay.ops.sendable import sendable_json

if TYPE_CHECKING:
    from forebay.ops.operation import Operation
    from forebay.ops.protocol import Flush, FlushStatus
    from forebay.worker.ground.held import Batch, Lease

log = logger("forebay.worker")


class Unsendable(Ended):
    """The end of a job whose outcome the database cannot be told: a dead letter."""

    __slots__ = ()

    def __init__(self, ended: Ended, error: BaseException) -> None:
        why = OutcomeRefused("outcome", f"cannot be recorded: {shown(error)}")
        super().__init__(
            ended.offset,
            "dead",
            reason="permanent",
            error={"type": "forebay.errors.OutcomeRefused", "message": str(why), "traceback": ""},
            holds_key=ended.holds_key is True or msgspec.UNSET,
        )


def settlement(lease: Lease, items: list[tuple[Batch, Flush]]) -> Operation[list[FlushStatus]]:
    """Return the call that settles these flushes.

    A job whose outcome has no JSON form ends as a dead letter: the others, and the job itself, must
    not wait for a call that can never be made.
    """
    flushes = [flush for _, flush in items]
    try:
        return protocol.settle(lease.lease_id, flushes)
    except MemoryError:
        raise
    except Exception:
        for batch, flush in items:
            for place, ended in enumerate(flush.ended):
                if (error := _unsendable(ended)) is not None:
                    _give_up(batch, flush, place, error)
        return protocol.settle(lease.lease_id, flushes)


def _unsendable(ended: Ended) -> Exception | None:
    try:
        sendable_json(ended)
    except MemoryError:
        raise
    except Exception as error:
        return error
    return None


def _give_up(batch: Batch, flush: Flush, place: int, error: Exception) -> None:
    ended = flush.ended[place]
    log.error(
        "the outcome of job %s of batch %s cannot be recorded, the job becomes a dead letter: %s",
        ended.offset, flush.claim_no, shown(error),
    )  # fmt: skip
    flush.ended[place] = Unsendable(ended, error)
    if not isinstance(flush.children, msgspec.UnsetType):
        offsets = batch.child_offsets
        kept = [child for child in flush.children if offsets.get(child.job_id) != ended.offset]
        flush.children = kept or msgspec.UNSET


def without_bad_data(batch: Batch, flush: Flush, error: Exception) -> list[tuple[Batch, Flush]]:
    """Return what to write in place of a flush with a value that the database refuses: its parts,
    so that the others are written; for one outcome alone, a dead letter. Empty: that was refused,
    too.
    """
    if len(flush.ended) + (flush.done != []) > 1:
        return [(batch, part) for part in batch.divided(flush)]
    if not flush.ended or isinstance(flush.ended[0], Unsendable):
        return []
    _give_up(batch, flush, 0, error)
    flush.counters = msgspec.UNSET
    return [(batch, flush)]
