"""Ordering keys and limit keys: what waits for them, and why."""

from __future__ import annotations

from typing import Final

from forebay.model.keys import KeyInfo
from forebay.ops._records import rows_as
from forebay.ops.operation import Operation

_FIELDS: Final = ", ".join(
    f"'{name}', k.{name}"
    for name in (
        "sort", "key", "waiting", "running", "reason", "until", "blocking_jobs", "blocking_workers", "held_by", "first_job_id",
        "pause_at", "resume_at",
    )
)  # fmt: skip

_KEYS: Final = f"""\
select json_build_object('queue', k.queue, 'group', k.group_name, {_FIELDS})::text
from forebay.keys(only_queue => %(queue)s, most => %(most)s::integer) with ordinality k order by k.ordinality"""

_KEY: Final = f"""\
select json_build_object('queue', %(queue)s::text, 'group', k.group_name, {_FIELDS})::text
from forebay.key(
    queue => %(queue)s, ordering_key => %(ordering_key)s, limit_key => %(limit_key)s) k order by k.group_name"""


def keys(queue: str | None = None, limit: int = 100) -> Operation[list[KeyInfo]]:
    """Return the call that lists the keys of which jobs wait; it visits every key."""
    return Operation(_KEYS, lambda rows: rows_as(KeyInfo, rows), {"queue": queue, "most": limit})


def key(
    queue: str, *, ordering_key: str | None = None, limit_key: str | None = None
) -> Operation[list[KeyInfo]]:
    """Return the call that shows one key, for each group of its queue."""
    return Operation(
        _KEY,
        lambda rows: rows_as(KeyInfo, rows),
        {"queue": queue, "ordering_key": ordering_key, "limit_key": limit_key},
    )
