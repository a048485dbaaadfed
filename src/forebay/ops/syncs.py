"""What is kept of a synchronisation: its counts, samples and audits."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import msgspec

from forebay.model.syncs import AuditRecord, Marks, SyncFacts
from forebay.ops.operation import Operation, Rows, nothing, scalar

if TYPE_CHECKING:
    from collections.abc import Mapping


def sync_facts(
    name: str, *, queue: str, group: str, expires_seconds: float, marks: Marks
) -> Operation[SyncFacts]:
    """Return the call that tells all that is known of a synchronisation; every waiting job is visited."""
    return Operation(
        "select forebay.sync_status(%(name)s, %(queue)s, %(group)s, %(expires)s, %(within)s, %(most)s,"
        " %(tags)s::text[], %(priority)s)::text",
        lambda rows: msgspec.convert(json.loads(scalar(rows)), SyncFacts),
        {
            "name": name,
            "queue": queue,
            "group": group,
            "expires": float(expires_seconds),
            "within": float(marks.completed_within),
            "most": marks.waiting_most,
            "tags": list(marks.bulk_tags),
            "priority": marks.bulk_priority,
        },
    )


def sync_audits(name: str, limit: int) -> Operation[list[AuditRecord]]:
    """Return the call that lists the newest audits, newest first."""
    return Operation(
        "select forebay.sync_audits(%(name)s, %(limit)s)::text",
        lambda rows: msgspec.convert(json.loads(scalar(rows)), list[AuditRecord]),
        {"name": name, "limit": limit},
    )


def sample_sync(
    name: str, *, queue: str, group: str, expires_seconds: float, marks: Marks
) -> Operation[None]:
    """Return the call that notes how many jobs are due, unless that was just done, or the role may not."""
    return Operation(
        "select forebay.sample_sync_v1(%(name)s, %(queue)s, %(group)s, %(expires)s, %(tags)s::text[], %(priority)s)"
        " where has_function_privilege('forebay.sample_sync_v1(text, text, text, double precision, text[], integer)',"
        " 'execute')",
        nothing,
        {
            "name": name,
            "queue": queue,
            "group": group,
            "expires": float(expires_seconds),
            "tags": list(marks.bulk_tags),
            "priority": marks.bulk_priority,
        },
    )


def note_sync(tally: Mapping[str, Any], who: str) -> Operation[None]:
    """Return the call that keeps what direct writes counted."""
    return Operation(
        "select forebay.note_sync_v1(%(tally)s::jsonb, %(who)s)",
        nothing,
        {"tally": json.dumps(tally), "who": who},
    )


def note_audit(name: str, found: Mapping[str, Any]) -> Operation[int | None]:
    """Return the call that keeps what an audit found; its number, or None where the role may not."""
    return Operation(
        "select forebay.note_audit_v1(%(name)s, %(found)s::jsonb)"
        " where has_function_privilege('forebay.note_audit_v1(text, jsonb)', 'execute')",
        _number,
        {"name": name, "found": json.dumps(found)},
    )


def note_repair(audit_id: int, jobs: int) -> Operation[None]:
    """Return the call that notes how many jobs were enqueued for what an audit had found."""
    return Operation(
        "select forebay.note_repair_v1(%(audit)s, %(jobs)s)",
        nothing,
        {"audit": audit_id, "jobs": jobs},
    )


def _number(rows: Rows) -> int | None:
    return rows[0][0] if rows else None
