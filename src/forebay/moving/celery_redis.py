"""Jobs of Celery that wait in Redis: messages of protocol 2 with a body of JSON."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, Final

from forebay.errors import shown
from forebay.moving.found import (
    FoundJob,
    FoundSchedule,
    Refused,
    UnkeptError,
    Work,
    digest_of,
    source_id_of,
)
from forebay.moving.redis_words import list_from_tail, opened, place_of, reading

#: Redis has a list for each of these; the name of the first is that of the queue.
_STEPS: Final = (0, 3, 6, 9)
_SEPARATOR: Final = "\x06\x16"
#: Messages that workers have taken and not acknowledged, among them those with an eta.
_UNACKED: Final = "unacked"
_BODY_PARTS: Final = 3


class CeleryRedis:
    """The messages of a queue.

    Args:
        broker: the address of the Redis.
        queue: the name of the queue.

    Raises:
        ConfigError: no Redis answers there.
    """

    def __init__(self, broker: str, queue: str) -> None:
        self._client = opened(broker, "--broker")
        self._queue = queue
        self.label = f"import celery {place_of(self._client)} {queue}"
        self.farewell = (
            "once all is well here, empty the queue there before a Celery worker starts again: "
            f"celery -A PROJECT purge -Q {queue}"
        )

    def read(self) -> Iterator[FoundSchedule | FoundJob | Refused]:
        """Yield the messages, those first that workers would take first."""
        with reading("--broker"):
            yield from self._messages()

    def _messages(self) -> Iterator[FoundJob | Refused]:
        for step in _STEPS:
            key = f"{self._queue}{_SEPARATOR}{step}" if step else self._queue
            for raw in list_from_tail(self._client, key):
                yield _found(raw)
        for raw in self._client.hvals(_UNACKED):
            try:
                message, _, routing_key = json.loads(raw)
            except (ValueError, TypeError, RecursionError):
                continue
            if routing_key == self._queue:
                yield Refused(
                    name=_name(message),
                    reason="a worker has taken it: stop the Celery workers, which gives it back, "
                    "and import again",
                )


def _found(raw: bytes) -> FoundJob | Refused:
    try:
        message = json.loads(raw)
    except (ValueError, RecursionError):
        return Refused(name=shown(raw[:40]), reason="it is no message of Celery")
    try:
        return _job(message)
    except UnkeptError as error:
        return Refused(name=_name(message), reason=str(error))


def _name(message: Any) -> str:
    headers = message.get("headers") if isinstance(message, Mapping) else None
    if not isinstance(headers, Mapping):
        return shown(message)
    return f"{headers.get('task')} {headers.get('id')}"


def _job(message: Any) -> FoundJob:
    headers = message.get("headers") if isinstance(message, Mapping) else None
    properties = message.get("properties") if isinstance(message, Mapping) else None
    if not isinstance(headers, Mapping) or not isinstance(properties, Mapping):
        raise UnkeptError("it is no message of Celery")
    task, task_id = headers.get("task"), headers.get("id")
    if not isinstance(task, str) or not isinstance(task_id, str):
        raise UnkeptError("it has no task in its headers, as messages of protocol 2 do")
    positional, named, embed = _body(message, properties)
    for name, text in (
        ("chord", "part of a chord"),
        ("chain", "followed by another task (chain)"),
        ("callbacks", "followed by another task (link)"),
        ("errbacks", "followed by another task (link_error)"),
    ):
        if embed.get(name):
            raise UnkeptError(f"it is {text}")
    limits = headers.get("timelimit")
    if any(limits) if isinstance(limits, list) else limits:
        raise UnkeptError("it has a time limit: declare timeout at the kind")
    expires_at = _instant(headers.get("expires"), "expires")
    if expires_at is not None and expires_at <= datetime.now(UTC):
        raise UnkeptError(f"it has expired, at {headers['expires']}")
    priority = properties.get("priority")
    return FoundJob(
        name=_name(message),
        source_id=source_id_of("celery", task_id, _digest(message)),
        work=Work(
            task=task,
            positional=tuple(positional),
            named=named,
            # In Redis 0 goes first, and is what a task without a priority has.
            priority=100 + priority if isinstance(priority, int) and priority else None,
        ),
        run_at=_instant(headers.get("eta"), "eta"),
        expires_at=expires_at,
    )


def _digest(message: Any) -> str:
    """Return a digest of what a message has as long as it waits, also when a worker gives it back.

    An id may be chosen, and be that of several messages; each has another delivery tag, made when
    it was sent.
    """
    headers, properties = message["headers"], message["properties"]
    return digest_of(
        *(str(headers.get(name)) for name in ("id", "task", "eta", "expires", "retries")),
        str(message.get("body")),
        str(properties.get("delivery_tag")),
    )


def _body(message: Any, properties: Any) -> tuple[list[Any], dict[str, Any], dict[str, Any]]:
    if message.get("content-type") != "application/json":
        raise UnkeptError(f"its body is {message.get('content-type')}, not application/json")
    body = message.get("body")
    try:
        if properties.get("body_encoding") == "base64":
            body = base64.b64decode(body)
        parts = json.loads(body)
    except (ValueError, TypeError, RecursionError):
        raise UnkeptError("its body is not JSON") from None
    if not isinstance(parts, list) or len(parts) != _BODY_PARTS:
        raise UnkeptError("its body is not that of protocol 2")
    positional, named, embed = parts
    if not isinstance(positional, list) or not isinstance(named, dict):
        raise UnkeptError("its body is not that of protocol 2")
    return positional, named, embed if isinstance(embed, dict) else {}


def _instant(text: object, name: str) -> datetime | None:
    if text is None:
        return None
    try:
        found = datetime.fromisoformat(str(text))
    except ValueError:
        raise UnkeptError(f"its {name} is {shown(text)}, not a time") from None
    # Celery writes times in UTC unless they have an offset.
    return found.replace(tzinfo=UTC) if found.tzinfo is None else found
