"""What is kept of a synchronisation: its counts, samples and audits."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from forebay.model.syncs import AuditRecord, Marks, SyncFacts
from forebay.ops.operation import Operation, ResultRows, nothing, scalar

if TYPE_CHECKING:
    from collections.abc import Mapping


class Question(NamedTuple):
    """Which synchronisation is asked about.

    Attributes:
        name: of the synchronisation.
        queue: of its jobs.
        group: the reader of that queue.
        expires_seconds: how long after it was due a job of it expires.
        marks: what is left out, and what is too many.
    """

    name: str
    queue: str
    group: str
    expires_seconds: float
    marks: Marks

    @property
    def _params(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "queue": self.queue,
            "group": self.group,
            "expires": self.expires_seconds,
            "within": float(self.marks.completed_within),
            "most": self.marks.waiting_most,
            "tags": list(self.marks.bulk_tags),
            "priority": self.marks.bulk_priority,
        }

    def facts(self) -> Operation[SyncFacts]:
        """Return the call that tells all that is known; every waiting job is visited."""
        return Operation(
            "select forebay.sync_status(%(name)s, %(queue)s, %(group)s, %(expires)s, %(within)s, %(most)s,"
            " %(tags)s::text[], %(priority)s)::text",
            lambda rows: msgspec.convert(json.loads(scalar(rows)), SyncFacts),
            self._params,
        )

    def sample(self) -> Operation[None]:
        """Return the call that notes how many jobs are due, unless that was just done, or the role may not."""
        return Operation(
            "select forebay.sample_sync(%(name)s, %(queue)s, %(group)s, %(expires)s, %(tags)s::text[], %(priority)s)"
            " where has_function_privilege("
            "'forebay.sample_sync(text, text, text, double precision, text[], integer)', 'execute')",
            nothing,
            self._params,
        )


def sync_audits(name: str, limit: int) -> Operation[list[AuditRecord]]:
    """Return the call that lists the newest audits, newest first."""
    return Operation(
        "select forebay.sync_audits(%(name)s, %(limit)s)::text",
        lambda rows: msgspec.convert(json.loads(scalar(rows)), list[AuditRecord]),
        {"name": name, "limit": limit},
    )


def note_direct(tally: Mapping[str, Any], who: str) -> Operation[None]:
    """Return the call that keeps what direct writes counted."""
    return Operation(
        "select forebay.note_direct(%(tally)s::jsonb, %(who)s)",
        nothing,
        {"tally": json.dumps(tally), "who": who},
    )


def note_audit(name: str, found: Mapping[str, Any]) -> Operation[int | None]:
    """Return the call that keeps what an audit found; its number, or None where the role may not."""
    return Operation(
        "select forebay.note_audit(%(name)s, %(found)s::jsonb)"
        " where has_function_privilege('forebay.note_audit(text, jsonb)', 'execute')",
        _number,
        {"name": name, "found": json.dumps(found)},
    )


def note_repair(audit_id: int, jobs: int) -> Operation[None]:
    """Return the call that notes how many jobs were enqueued for what an audit had found."""
    return Operation(
        "select forebay.note_repair(%(audit)s, %(jobs)s)",
        nothing,
        {"audit": audit_id, "jobs": jobs},
    )


def _number(rows: ResultRows) -> int | None:
    return rows[0][0] if rows else None
