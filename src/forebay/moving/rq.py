"""Jobs of RQ that wait: in a queue, or for their time."""

from __future__ import annotations

import json
import pickle
import zlib
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from forebay.moving.found import (
    FoundJob,
    FoundSchedule,
    Refused,
    UnkeptError,
    Work,
    digest_of,
    source_id_of,
)
from forebay.moving.redis_words import list_from_head, opened, place_of, reading

#: What makes a job more than a call, and what it is then.
_MORE: Final = {
    b"dependency_ids": "waits for other jobs",
    b"success_callback_name": "has a callback",
    b"failure_callback_name": "has a callback",
    b"stopped_callback_name": "has a callback",
    b"webhooks": "has webhooks",
    b"repeats_left": "is repeated",
    b"rate_limit_key": "has a rate limit: declare key_rate at the queue",
}
_PARTS: Final = 4


class Rq:
    """The jobs of a queue.

    Args:
        address: of the Redis.
        queue: the name of the queue.
        trust_pickles: unpickle arguments, which runs any code that a writer of that Redis
            wants.

    Raises:
        ConfigError: no Redis answers there.
    """

    def __init__(self, address: str, queue: str, *, trust_pickles: bool) -> None:
        self._client = opened(address, "--redis")
        self._queue = queue
        self._trust = trust_pickles
        self.label = f"import rq {place_of(self._client)} {queue}"
        self.farewell = (
            "once all is well here, empty the queue there before an RQ worker starts again: "
            f"rq empty {queue}; a job with a time stays in rq:scheduled:{queue}"
        )

    def read(self) -> Iterator[FoundSchedule | FoundJob | Refused]:
        """Yield the jobs in their order, then those that wait for their time or for others."""
        with reading("--redis"):
            yield from self._jobs()

    def _jobs(self) -> Iterator[FoundJob | Refused]:
        for job_id in list_from_head(self._client, f"rq:queue:{self._queue}"):
            yield self._found(job_id, None)
        for job_id, due in self._client.zrange(
            f"rq:scheduled:{self._queue}", 0, -1, withscores=True
        ):
            yield self._found(job_id, due)
        for job_id in self._client.zrange(f"rq:deferred:{self._queue}", 0, -1):
            yield Refused(name=_text(job_id), reason="it waits for other jobs")

    def _found(self, job_id: bytes, due: float | None) -> FoundJob | Refused:
        name = _text(job_id)
        facts = self._client.hgetall(b"rq:job:" + job_id)
        try:
            return self._job(name, facts, None if due is None else _time(due))
        except UnkeptError as error:
            return Refused(name=f"{_text(facts.get(b'description', b''))[:60]} {name}".strip(),
                           reason=str(error))  # fmt: skip

    def _job(self, name: str, facts: Mapping[bytes, bytes], run_at: datetime | None) -> FoundJob:
        if b"data" not in facts:
            raise UnkeptError("its data are gone")
        for field, text in _MORE.items():
            if facts.get(field) not in (None, b"", b"[]"):
                raise UnkeptError(f"it {text}")
        task, instance, positional, named = self._call(facts[b"data"])
        if instance is not None:
            raise UnkeptError("it calls a method of an object")
        expires_at = None
        if facts.get(b"ttl") and facts.get(b"enqueued_at"):
            expires_at = _end(_text(facts[b"enqueued_at"]), _text(facts[b"ttl"]))
            if expires_at <= datetime.now(UTC):
                raise UnkeptError(f"it has expired, at {expires_at.isoformat()}")
        return FoundJob(
            name=f"{task} {name}",
            # An id may be chosen, and be that of another job later, or in another Redis.
            source_id=source_id_of(
                "rq", name, digest_of(name, facts[b"data"], facts.get(b"created_at"))
            ),
            work=Work(task=task, positional=tuple(positional), named=named),
            run_at=run_at,
            expires_at=expires_at,
        )

    def _call(self, data: bytes) -> tuple[str, Any, Any, Any]:
        try:
            data = zlib.decompress(data)
        except zlib.error:
            pass  # RQ has written it without compression, too.
        try:
            parts = json.loads(data)
        except (ValueError, RecursionError):
            parts = self._unpickled(data)
        if not isinstance(parts, (list, tuple)) or len(parts) != _PARTS:
            raise UnkeptError("its data are not those of a call")
        task, instance, positional, named = parts
        if (
            not isinstance(task, str)
            or not isinstance(positional, (list, tuple))
            or not isinstance(named, dict)
        ):
            raise UnkeptError("its data are not those of a call")
        return task, instance, positional, named

    def _unpickled(self, data: bytes) -> Any:
        if not self._trust:
            raise UnkeptError(
                "its arguments are a pickle, and to read one runs what its writer wants; if only "
                "your own programs write to that Redis: --trust-pickles"
            )
        try:
            return pickle.loads(data)  # noqa: S301 - the person has said that it is trusted
        except Exception as error:
            raise UnkeptError(f"its pickle cannot be read: {error}") from None


def _time(due: float) -> datetime:
    try:
        return datetime.fromtimestamp(due, UTC)
    except (ValueError, OverflowError, OSError):
        raise UnkeptError(f"its time is {due}") from None


def _end(enqueued_at: str, ttl: str) -> datetime:
    try:
        since = datetime.fromisoformat(enqueued_at)
        since = since.replace(tzinfo=UTC) if since.tzinfo is None else since
        return since + timedelta(seconds=int(ttl))
    except (ValueError, OverflowError):
        raise UnkeptError(f"its time to live is {ttl} s from {enqueued_at}") from None


def _text(value: bytes) -> str:
    return value.decode(errors="replace")
