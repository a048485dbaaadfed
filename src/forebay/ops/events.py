"""The event log: what operators did, and who acts."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final, TypeVar

from forebay._actor import ACTOR
from forebay.model import checks
from forebay.model.events import Event
from forebay.ops.operation import Operation, nothing
from forebay.ops.records import rows_as

if TYPE_CHECKING:
    from datetime import datetime

T = TypeVar("T")

#: Most rows of a list of events.
EVENTS_MAX: Final = 10_000

_SET_ACTOR: Final = "select pg_catalog.set_config('forebay.actor', %(forebay_actor)s, true)"

_EVENTS: Final = """\
select to_jsonb(e)::text
from forebay.events(only_queue => %(queue)s, only_act => %(act)s, since => %(since)s::timestamptz,
                    until => %(until)s::timestamptz, most => %(limit)s::integer) e"""


def actor() -> Operation[None] | None:
    """Return the call that names who acts in the current transaction; None if no name was given."""
    name = ACTOR.get()
    return None if not name else Operation(_SET_ACTOR, nothing, {"forebay_actor": name[:200]})


def with_actor(operation: Operation[T]) -> Operation[T]:
    """Return the operation preceded by the call that names who acts, as one message of several
    statements.
    """
    named = actor()
    if named is None or operation.outside_block:
        return operation
    return replace(
        operation, sql=f"{named.sql}; {operation.sql}", params={**operation.params, **named.params}
    )


def events(
    *,
    queue: str | None = None,
    act: str | None = None,
    since: datetime | None = None,
    until: datetime | None = None,
    limit: int = 50,
) -> Operation[list[Event]]:
    """Return the call that lists what operators did, newest first."""
    return Operation(
        _EVENTS,
        lambda rows: rows_as(Event, rows),
        {
            "queue": queue,
            "act": act,
            "since": checks.instant_text(since, "since"),
            "until": checks.instant_text(until, "until"),
            "limit": checks.checked_integer(limit, "limit", least=1, most=EVENTS_MAX),
        },
    )
