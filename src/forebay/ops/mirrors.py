"""The records of a mirror: its counters, samples and audits."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from forebay.model.mirrors import AuditRecord, MirrorFacts, Thresholds
from forebay.ops.operation import Operation, ResultRows, nothing, scalar

if TYPE_CHECKING:
    from collections.abc import Mapping


class StatusQuery(NamedTuple):
    """The mirror of a status query.

    Attributes:
        name: the mirror's name.
        queue: the queue of its jobs.
        group: the consumer group of that queue.
        expires_seconds: time between a job's due time and its expiry.
        thresholds: the thresholds of the alerts.
    """

    name: str
    queue: str
    group: str
    expires_seconds: float
    thresholds: Thresholds

    @property
    def _params(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "queue": self.queue,
            "group": self.group,
            "expires": self.expires_seconds,
            "within": float(self.thresholds.completed_within),
            "most": self.thresholds.waiting_most,
            "tags": list(self.thresholds.bulk_tags),
            "priority": self.thresholds.bulk_priority,
        }

    def facts(self) -> Operation[MirrorFacts]:
        """Return the call that reads all facts; it visits every waiting job."""
        return Operation(
            "select forebay.mirror_status(%(name)s, %(queue)s, %(group)s, %(expires)s, "
            "%(within)s, %(most)s,"
            " %(tags)s::text[], %(priority)s)::text",
            lambda rows: msgspec.convert(json.loads(scalar(rows)), MirrorFacts),
            self._params,
        )

    def sample(self) -> Operation[None]:
        """Return the call that records how many jobs are due.

        It does nothing right after a sample or without the right.
        """
        return Operation(
            "select forebay.sample_mirror(%(name)s, %(queue)s, %(group)s, %(expires)s, "
            "%(tags)s::text[], %(priority)s)"
            " where has_function_privilege("
            "'forebay.sample_mirror(text, text, text, double precision, text[], integer)', "
            "'execute')",
            nothing,
            self._params,
        )


def mirror_audits(name: str, limit: int) -> Operation[list[AuditRecord]]:
    """Return the call that lists the newest audits, newest first."""
    return Operation(
        "select forebay.mirror_audits(%(name)s, %(limit)s)::text",
        lambda rows: msgspec.convert(json.loads(scalar(rows)), list[AuditRecord]),
        {"name": name, "limit": limit},
    )


def record_direct(counters: Mapping[str, Any], who: str) -> Operation[None]:
    """Return the call that records the counters of direct writes."""
    return Operation(
        "select forebay.record_direct(%(counters)s::jsonb, %(who)s)",
        nothing,
        {"counters": json.dumps(counters), "who": who},
    )


def slow_direct_writes(name: str) -> Operation[float | None]:
    """Return the call that tells which fraction of the latest direct writes was slow.

    It returns None without any.
    """
    return Operation("select forebay.slow_direct_writes(%(name)s)", scalar, {"name": name})


def record_audit(name: str, found: Mapping[str, Any]) -> Operation[int | None]:
    """Return the call that records the findings of an audit.

    It returns the id, or None if the role lacks the right.
    """
    return Operation(
        "select forebay.record_audit(%(name)s, %(found)s::jsonb)"
        " where has_function_privilege('forebay.record_audit(text, jsonb)', 'execute')",
        _number,
        {"name": name, "found": json.dumps(found)},
    )


def record_repair(audit_id: int, jobs: int) -> Operation[None]:
    """Return the call that records how many repair jobs were enqueued for an audit."""
    return Operation(
        "select forebay.record_repair(%(audit)s, %(jobs)s)",
        nothing,
        {"audit": audit_id, "jobs": jobs},
    )


def _number(rows: ResultRows) -> int | None:
    return rows[0][0] if rows else None
