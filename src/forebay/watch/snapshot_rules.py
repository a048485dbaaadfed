"""When an open transaction is an alert, and what is known where it cannot be seen.

PostgreSQL shows since when the transaction of another role is open to members of
``pg_read_all_stats`` only. ``forebay.measurements()`` runs as the schema's owner.

Shown by: tests/cli/test_unseen_sessions.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from forebay.model.alerts import UNSEEN_AGE_MOST, Alert
from forebay.model.text import counted
from forebay.policy.retry import human_duration

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from forebay.watch.watched import Watched


def of_snapshot(watched: Watched, facts: Mapping[str, Any]) -> Iterator[Alert]:
    """A transaction that is open for too long, as far as the schema's owner sees transactions."""
    held = max(float(facts["snapshot_seen_seconds"]), float(facts["prepared_seconds"]))
    unseen = facts["snapshot_unseen_age"]
    if watched.exceeds(held, watched.threshold("snapshot_for"), "snapshot"):
        yield Alert(
            code="snapshot",
            problem=f"a transaction has been open for {human_duration(held)}",
            hint="It keeps dead rows of all tables: `forebay guard` names it, and can end it.",
            since=watched.instant(watched.at - held),
        )
    elif unseen is not None and (watched.is_open("snapshot") or unseen >= UNSEEN_AGE_MOST):
        yield Alert(
            code="snapshot",
            problem=(
                f"a transaction is open whose age {facts['owner']} may not see:"
                f" {counted(unseen, 'transaction')} began since"
            ),
            hint=f"To see its age: `{grant_to_see(facts)}`; `forebay guard` names it.",
        )


def grant_to_see(facts: Mapping[str, Any]) -> str:
    """Return the statement that lets the schema's owner see the age of all transactions.

    Args:
        facts: the part ``database`` of the measurements.
    """
    return f"grant pg_read_all_stats to {facts['owner']};"
