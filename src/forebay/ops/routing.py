"""Calls of routers: expansion of events, activation of subscriptions, replays."""

from __future__ import annotations

from typing import TYPE_CHECKING

from forebay._dataclass import dataclass
from forebay.ops.operation import Operation, boolean

if TYPE_CHECKING:
    from collections.abc import Sequence

    from forebay.ops.operation import ResultRows


@dataclass(frozen=True, slots=True)
class Routed:
    """What became of claimed events.

    Attributes:
        deliveries: how many were written.
        unknown: jobs whose kind is not an event type.
        missing: jobs that no open lease has.
    """

    deliveries: int
    unknown: frozenset[int]
    missing: frozenset[int]


def route(job_ids: Sequence[int]) -> Operation[Routed]:
    """Return the call that expands claimed events to deliveries."""
    return Operation(
        "select r.deliveries, r.unknown, r.missing from forebay.route_v1(%(job_ids)s::bigint[]) r",
        _routed,
        {"job_ids": list(job_ids)},
    )


def activate(subscription_id: int) -> Operation[bool]:
    """Return the call that does a step of an activation.

    It returns whether the subscription is active, or gone.
    """
    return Operation("select forebay.activate_v1(%(id)s::bigint)", boolean, {"id": subscription_id})


def replay_step(replay_id: int) -> Operation[bool]:
    """Return the call that does a step of a replay; it returns whether it is over."""
    return Operation("select forebay.replay_step_v1(%(id)s::bigint)", boolean, {"id": replay_id})


def _routed(rows: ResultRows) -> Routed:
    ((deliveries, unknown, missing),) = rows
    return Routed(deliveries, frozenset(unknown), frozenset(missing))
