"""Ordering keys and limit keys: what waits for them, and why."""

from __future__ import annotations

from typing import Final

from forebay.model import checks
from forebay.model.keys import KeyInfo
from forebay.model.limits import KeyLimits
from forebay.ops.operation import Operation, boolean, scalar
from forebay.ops.records import rows_as

_KEYS: Final = """\
select to_jsonb(k)::text
from forebay.keys(only_queue => %(queue)s, most => %(most)s::integer) with ordinality k
    order by k.ordinality"""

#: Most keys of a list.
KEYS_MAX: Final = 1000

_KEY: Final = """\
select (to_jsonb(k) operator(pg_catalog.||) jsonb_build_object('queue', %(queue)s::text))::text
from forebay.key(
    queue => %(queue)s, ordering_key => %(ordering_key)s, limit_key => %(limit_key)s) k
        order by k.group_name"""


def keys(queue: str | None = None, limit: int = 100) -> Operation[list[KeyInfo]]:
    """Return the call that lists the keys of which jobs wait; it visits every key."""
    return Operation(
        _KEYS,
        lambda rows: rows_as(KeyInfo, rows),
        {"queue": queue, "most": checks.checked_integer(limit, "limit", least=1, most=KEYS_MAX)},
    )


def key(
    queue: str, *, ordering_key: str | None = None, limit_key: str | None = None
) -> Operation[list[KeyInfo]]:
    """Return the call that shows one key, for each group of its queue."""
    return Operation(
        _KEY,
        lambda rows: rows_as(KeyInfo, rows),
        {"queue": queue, "ordering_key": ordering_key, "limit_key": limit_key},
    )


def limit_key(
    queue: str,
    limit_key: str,
    *,
    rate: float | None = None,
    burst: int | None = None,
    concurrency: int | None = None,
    remove: bool = False,
) -> Operation[KeyLimits | None]:
    """Return the call that sets limits of one limit key.

    It returns the previous ones, None for none.
    """
    return Operation(
        "select forebay.limit_key("
        "queue => %(queue)s, limit_key => %(limit_key)s, rate => %(rate)s::double "
        "precision, burst => %(burst)s::integer,"
        " concurrency => %(concurrency)s::integer, remove => %(remove)s::boolean)::text",
        lambda rows: None if scalar(rows) is None else rows_as(KeyLimits, rows)[0],
        {
            "queue": queue,
            "limit_key": limit_key,
            "rate": rate,
            "burst": checks.integer_or_none(burst, "burst"),
            "concurrency": checks.integer_or_none(concurrency, "concurrency"),
            "remove": remove,
        },
    )


def reset_key(queue: str, limit_key: str) -> Operation[bool]:
    """Return the call that closes the breaker of a limit key; it returns whether it was open."""
    return Operation(
        "select forebay.reset_key(queue => %(queue)s, limit_key => %(limit_key)s)",
        boolean,
        {"queue": queue, "limit_key": limit_key},
    )
