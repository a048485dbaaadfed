"""The audit of a drain: proofs of what it sent, and messages that are sent again."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from forebay.ops.operation import Operation, ResultRows, scalar

if TYPE_CHECKING:
    from collections.abc import Sequence

_PROOFS: Final = """\
select p.job_id, p.enqueued_at, p.kept_until, p.proof::text
from forebay.proofs_v1(%(queue)s, %(group)s, %(until)s::timestamptz, %(job_id)s::bigint,
    %(most)s::integer) p"""

_RESEND: Final = """\
select forebay.resend_v1(%(drain)s, %(queue)s, %(group)s, %(job_ids)s::bigint[],
    %(enqueued_at)s::timestamptz[])"""


class Proof(NamedTuple):
    """What the far side answered about a message.

    Attributes:
        job_id: of its job.
        enqueued_at: when the job was enqueued.
        kept_until: when the proof is deleted.
        proof: what the far side told.
        generation: of the message that was accepted.
    """

    job_id: int
    enqueued_at: datetime
    kept_until: datetime
    proof: str | None
    generation: int


def proofs(queue: str, group: str, after: Proof | None, most: int) -> Operation[list[Proof]]:
    """Return the call that reads a page of proofs, in the order in which they end."""

    def decode(rows: ResultRows) -> list[Proof]:
        found = []
        for job_id, enqueued_at, kept_until, text in rows:
            value: dict[str, Any] = msgspec.json.decode(text)
            found.append(
                Proof(
                    job_id, enqueued_at, kept_until, value["proof"], int(value.get("generation", 0))
                )
            )
        return found

    return Operation(
        _PROOFS,
        decode,
        {
            "queue": queue,
            "group": group,
            "until": None if after is None else after.kept_until,
            "job_id": None if after is None else after.job_id,
            "most": most,
        },
    )


def resend(drain: str, queue: str, group: str, lost: Sequence[Proof]) -> Operation[int]:
    """Return the call that makes a new job for each lost message, and deletes its proof.

    It returns their number.
    """
    return Operation(
        _RESEND,
        scalar,
        {
            "drain": drain,
            "queue": queue,
            "group": group,
            "job_ids": [one.job_id for one in lost],
            "enqueued_at": [one.enqueued_at for one in lost],
        },
    )
