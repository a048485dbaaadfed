"""Measurements and alerts."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

import msgspec

from forebay.errors import ConfigError
from forebay.model.alerts import Alert, AlertChange
from forebay.model.keys import KeyInfo
from forebay.ops.operation import Operation, ResultRows, scalar
from forebay.ops.records import rows_as
from forebay.watch.rules import CLEAR_SECONDS, WITHIN_SECONDS, checked_threshold

if TYPE_CHECKING:
    from collections.abc import Iterable

#: Most alerts that one check records.
ALERTS_MAX: Final = 1000

#: An alert from a row ``a``.
_ALERT: Final = "to_jsonb(a) || jsonb_build_object('group', a.group_name)"


def measurements(*, with_counters: bool = True) -> Operation[dict[str, Any]]:
    """Return the call that reads everything that alerts and metrics are made of.

    Args:
        with_counters: False leaves out the counters by kind, which alerts do not need.
    """
    return Operation(
        "select forebay.measurements(%(within)s, %(counters)s)::text",
        lambda rows: json.loads(scalar(rows)),
        {"within": WITHIN_SECONDS, "counters": with_counters},
    )


def probe_write() -> Operation[dict[str, str] | None]:
    """Return the call that finds out whether a write succeeds now.

    Its result is None if it does, else ``sqlstate`` and ``message`` of what failed: the part
    ``write_failed`` of what the rules judge.
    """
    return Operation(
        "select p.failed_sqlstate, p.failed_message from forebay.probe_write() p",
        lambda rows: (
            None if rows[0][0] is None else {"sqlstate": rows[0][0], "message": rows[0][1]}
        ),
    )


def measurements_with_keys(
    keys: int,
) -> Operation[tuple[dict[str, Any], list[KeyInfo] | None]]:
    """Return the call that reads the measurements and the keys that jobs wait for, in one
    statement.

    Args:
        keys: most keys; 0 reads none, and their list is None. It visits every key.
    """
    if not keys:
        alone = measurements()
        return Operation(alone.sql, lambda rows: (alone.decode(rows), None), alone.params)
    return Operation(
        "select forebay.measurements(%(within)s)::text, array(select to_jsonb(k)::text"
        " from forebay.keys(most => %(keys)s::integer) with ordinality k order by k.ordinality)",
        lambda rows: (
            json.loads(rows[0][0]),
            rows_as(KeyInfo, [(text,) for text in rows[0][1]]),
        ),
        {"within": WITHIN_SECONDS, "keys": keys},
    )


def record_alerts(found: Iterable[Alert]) -> Operation[list[AlertChange]]:
    """Return the call that records a check; its result is what fired or cleared.

    See ``may_record``.
    """
    rows = [
        {
            "code": alert.code,
            "subject": alert.subject,
            "group": alert.group,
            "severity": alert.severity,
            "problem": alert.problem,
            "hint": alert.hint,
            "since": None if alert.since is None else alert.since.timestamp(),
            "for": alert.for_seconds,
        }
        for alert in found
    ]
    return Operation(
        f"select jsonb_build_object('act', a.act, 'alert', {_ALERT})::text"
        " from forebay.record_alerts_v1(%(found)s::jsonb, %(clear)s) a",
        lambda rows: rows_as(AlertChange, rows),
        {"found": json.dumps(rows[:ALERTS_MAX]), "clear": CLEAR_SECONDS},
    )


def may_record() -> Operation[bool]:
    """Return the call that tells whether this role may record a check."""
    return Operation(
        (
            "select pg_catalog.has_function_privilege('forebay.record_alerts_v1(jsonb, double "
            "precision)', 'execute')"
        ),
        scalar,
    )


def alerts(*, with_pending: bool = False) -> Operation[list[Alert]]:
    """Return the call that lists the alerts that fire, and with ``with_pending`` what has not
    lasted long enough.
    """
    return Operation(
        f"select ({_ALERT})::text from forebay.alerts(%(pending)s) a",
        _alerts,
        {"pending": with_pending},
    )


def drop_ballast() -> Operation[int]:
    """Return the call that gives back the room kept for a full disk; its result is in bytes."""
    return Operation("select forebay.drop_ballast()", scalar)


def set_threshold(
    name: str, value: float | None, *, queue: str | None = None, tag: str | None = None
) -> Operation[float | None]:
    """Return the call that sets a threshold; without a value the next more general one holds.

    Its result is the value before.
    """
    if value is not None and not 0 <= value <= 1e15:
        raise ConfigError("threshold", f"{name} is {value:g}, not a number from 0")
    return Operation(
        "select forebay.set_threshold(%(name)s, %(value)s::double precision, %(queue)s, %(tag)s)",
        scalar,
        {"name": checked_threshold(name), "value": value, "queue": queue, "tag": tag},
    )


def thresholds() -> Operation[list[dict[str, Any]]]:
    """Return the call that lists the thresholds that differ from the defaults."""
    return Operation(
        "select (forebay.measurements(60) operator(pg_catalog.->) 'thresholds')::text",
        lambda rows: json.loads(scalar(rows)),
    )


def _alerts(rows: ResultRows) -> list[Alert]:
    return [msgspec.convert(json.loads(text), Alert) for (text,) in rows]
