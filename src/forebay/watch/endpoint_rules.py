"""Sentences of alerts about endpoints."""

from __future__ import annotations

from forebay.model.endpoints import DELIVERIES


def full_text(name: str, *, drops: bool) -> tuple[str, str]:
    """Return the problem and the hint of an endpoint that is full.

    Args:
        name: of the endpoint.
        drops: its events are dropped, and not refused.
    """
    problem = (
        f"as many deliveries wait for endpoint {name} as its max_waiting allows: events are "
        f"{'dropped' if drops else 'refused'}"
    )
    hint = (
        f"See what holds it with `forebay endpoints show {name}`. Raise --max-waiting with "
        f"`forebay endpoints alter {name}`"
    )
    if drops:
        later = f"`forebay endpoints replay {name} --since TIME` delivers what was dropped."
        return problem, f"{hint}; then {later}"
    return problem, f"{hint}, or set --when-full drop."


def groups_command(queue: str) -> str:
    """Return the command that groups the dead letters of a queue; of deliveries by endpoint."""
    return "forebay dead groups" if queue == DELIVERIES else f"forebay dead groups --queue {queue}"
