"""Claimed jobs: how the answer to a claim is read, and which arguments stay text."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

if TYPE_CHECKING:
    from collections.abc import Collection


class RawKinds(NamedTuple):
    """The kinds whose handlers take arguments as text, and the queues where their jobs are
    expected.

    A job in any other queue is read right too; its claim is then read twice.
    """

    names: Collection[str] = ()
    queues: Collection[str] = ()


NO_RAW_KINDS: Final = RawKinds()


class ClaimedJob(msgspec.Struct, array_like=True):
    """One claimed row, as ``forebay._job_json()`` and ``forebay._keyed_json()`` write it.

    The fields after ``pauses`` are in the order of ``sql/schema/fragments/job_columns.sql``.

    Attributes:
        enqueued_micros, expires_micros: microseconds since 1970; an expiry of None means 30 days
            after the enqueue.
        args: the arguments as decoded JSON; of a large claim as text, until ``decode_args``.
        attempt, pauses: None is none.
        offset: its place in the batch, from 1.
        size: about how many characters the job had in the answer to its claim.
    """

    seq: int
    kind: str
    enqueued_micros: int
    args: Any
    job_id: int = 0
    ordering_key: str | None = None
    expires_micros: int | None = None
    attempt: int | None = None
    pauses: int | None = None
    max_attempts: int | None = None
    tag: str | None = None
    correlation_id: str | None = None
    headers: dict[str, str] | None = None
    limit_key: str | None = None
    offset: int = 0
    size: int = 0

    @property
    def is_text(self) -> bool:
        """Whether the arguments are not decoded yet."""
        return type(self.args) is msgspec.Raw

    def decode_args(self) -> None:
        """Decode the arguments if they are text."""
        self.args = decoded_args(self.args)

    @property
    def attempts_used(self) -> int:
        """Attempts before this claim."""
        return self.attempt or 0

    @property
    def enqueued_at(self) -> datetime:
        """The time of the transaction that enqueued it."""
        return _instant(self.enqueued_micros)

    @property
    def expires_at(self) -> datetime:
        """The time from which it is no longer started."""
        if self.expires_micros is None:
            return _instant(self.enqueued_micros + _EXPIRES_AFTER_MICROS)
        return _instant(self.expires_micros)


class RawJob(ClaimedJob, array_like=True):
    """One claimed row whose handler takes the arguments as text; they are never decoded for it."""

    args: msgspec.Raw

    @property
    def is_text(self) -> bool:
        """False: nothing is left to decode for the handler."""
        return False

    def plain(self, *, later: bool) -> ClaimedJob:
        """Return the same row for a handler that takes no text.

        With ``later`` its arguments stay text until ``decode_args``.
        """
        # A copy: the view would keep the whole answer in memory.
        args = self.args.copy() if later else decoded_args(self.args)
        values = {name: getattr(self, name) for name in self.__struct_fields__}
        return ClaimedJob(**{**values, "args": args, "size": len(bytes(self.args)) if later else 0})


def raw_args(args: Any) -> msgspec.Raw:
    """Return arguments as JSON text; those of a test are decoded."""
    return args if type(args) is msgspec.Raw else msgspec.Raw(msgspec.json.encode(args))


def decoded_args(args: Any) -> Any:
    """Return arguments decoded; a number beyond the range of floats becomes infinite."""
    if type(args) is not msgspec.Raw:
        return args
    try:
        return msgspec.json.decode(args)
    except msgspec.ValidationError:
        return json.loads(bytes(args))


_EXPIRES_AFTER_MICROS: Final = timedelta(days=30) // timedelta(microseconds=1)


# Jobs of one transaction have the same instant.
@lru_cache(maxsize=1000)
def _instant(micros: int) -> datetime:
    return datetime.fromtimestamp(micros / 1_000_000, UTC)


_CLAIMED: Final = msgspec.json.Decoder(list[ClaimedJob])
_CLAIMED_TEXTS: Final = msgspec.json.Decoder(list[RawJob])

#: A longer answer is not decoded as a whole: that would stop the event loop, and take twenty times
#: the memory of the text.
_DECODED_AT_ONCE: Final = 262_144


def claimed_jobs(
    text: str | None, raw: RawKinds = NO_RAW_KINDS, *, queue: str = ""
) -> list[ClaimedJob]:
    """Decode the answer to a claim from a queue: one JSON array for each job, without an
    enclosing array.

    The arguments of raw kinds stay text. Those of other kinds in a large answer stay text until
    their jobs start. A malformed row, which only the owner of the schema can write, becomes a job
    without arguments: it ends as a dead letter, and the others of its claim run.
    """
    if text is None:
        return []
    try:
        jobs = _decoded(text, raw, queue)
    except msgspec.ValidationError:
        # A number is beyond the range of floats; the standard decoder makes it infinite. Or a row
        # is malformed.
        items = msgspec.json.decode(f"[{text}]", type=list[msgspec.Raw])
        jobs = [_converted(item, raw.names) for item in items]
    size = len(text) // len(jobs)
    for offset, job in enumerate(jobs, 1):
        job.offset = offset
        job.size = job.size or size
        job.job_id = job.job_id or job.seq
    return jobs


def _decoded(text: str, raw: RawKinds, queue: str) -> list[ClaimedJob]:
    is_large = len(text) > _DECODED_AT_ONCE
    if not is_large and queue not in raw.queues:
        jobs = _CLAIMED.decode(f"[{text}]")
        if not raw.names or not any(job.kind in raw.names for job in jobs):
            return jobs
    texts: list[RawJob] = _CLAIMED_TEXTS.decode(f"[{text}]")
    if not is_large:
        return [job if job.kind in raw.names else job.plain(later=False) for job in texts]
    return [_copied(job) if job.kind in raw.names else job.plain(later=True) for job in texts]


def _copied(job: RawJob) -> RawJob:
    # As in ``plain``.
    job.args = job.args.copy()
    job.size = len(bytes(job.args))
    return job


def _converted(item: msgspec.Raw, raw_kinds: Collection[str]) -> ClaimedJob:
    values = json.loads(bytes(item))
    try:
        job = msgspec.convert(values, ClaimedJob)
        return msgspec.json.decode(item, type=RawJob) if job.kind in raw_kinds else job
    except msgspec.ValidationError:
        seq, kind, enqueued_micros, *_ = values
        job_id, ordering_key = (values[place] if len(values) > place else None for place in (4, 5))
        return ClaimedJob(seq, kind, enqueued_micros, None, job_id or seq, ordering_key)
