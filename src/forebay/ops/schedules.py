"""Schedules: create, list, pause, run, and what a scheduler calls."""

from __future__ import annotations

import json
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec

from forebay._dataclass import dataclass
from forebay.arguments.json_guard import encode_args
from forebay.model import checks
from forebay.model.schedules import (
    Occurrence,
    PlannedInstant,
    Schedule,
    ScheduleBackfill,
    ScheduleDifference,
    ScheduleStatus,
)
from forebay.ops.operation import Operation, ResultRows, boolean, nothing, number, scalar
from forebay.ops.records import rows_as
from forebay.policy.cron import checked_timing

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

Created = Literal["created", "changed", "unchanged"]

#: Most instants of a preview, of a backfill, and of one decision.
INSTANTS_MAX: Final = 10_000

_CREATE: Final = """\
select forebay.create_schedule(
    %(name)s, %(kind)s, cron => %(cron)s,
        every => make_interval(secs => %(every)s::double precision), tz => %(tz)s,
    args => %(args)s::jsonb, queue => %(queue)s, priority => %(priority)s::integer,
        overlap => %(overlap)s, missed => %(missed)s,
    jitter => make_interval(secs => %(jitter)s::double precision),
        catch_up => make_interval(secs => %(catch_up)s::double precision),
    missed_max => %(missed_max)s::integer, starts_at => %(starts_at)s::timestamptz,
        options => %(options)s::jsonb,
    pause_on_failure => %(pause_on_failure)s::boolean)"""


class Definition(msgspec.Struct, frozen=True, kw_only=True):
    """What a scheduler knows of a schedule."""

    schedule_id: int
    name: str
    revision: int
    cron: str | None
    every: float | None
    tz: str
    starts_at: datetime
    decided_to: datetime
    catch_up: float
    missed_max: int
    has_problem: bool


@dataclass(frozen=True, slots=True)
class Schedules:
    """The time of the database, and the schedules; None: as with the earlier digest."""

    server_time: datetime
    digest: str
    definitions: list[Definition] | None


@dataclass(frozen=True, slots=True)
class Fired:
    """What became of a decision; see ``forebay.fire_v1``."""

    status: Literal["decided", "stale", "busy", "paused"]
    enqueued: int
    decided_to: datetime | None


def create_schedule(schedule: Schedule) -> Operation[Created]:
    """Return the call that creates or changes a schedule.

    Raises:
        InvalidJob: the expression or the zone is not valid.
    """
    facts = schedule_facts(schedule)
    return Operation(
        _CREATE,
        scalar,
        facts
        | {
            "args": encode_args(schedule.args),
            "options": json.dumps(facts["options"]),
        },
    )


def apply_schedules(
    app: str, schedules: Iterable[Schedule], *, overwrite: bool = False, dry_run: bool = False
) -> Operation[list[ScheduleDifference]]:
    """Return the call that applies declared schedules, or with ``dry_run`` only compares them,
    behind the same locks.

    Raises:
        InvalidJob: one is not a schedule.
    """
    return Operation(
        "select to_jsonb(d)::text from forebay.apply_schedules(app => %(app)s, schedules "
        "=> %(schedules)s::jsonb,"
        " overwrite => %(overwrite)s::boolean, dry_run => %(dry_run)s::boolean) d",
        lambda rows: rows_as(ScheduleDifference, rows),
        {
            "app": app,
            "schedules": _declared(schedules),
            "overwrite": overwrite,
            "dry_run": dry_run,
        },
    )


def compare_schedules(
    app: str, schedules: Iterable[Schedule], *, overwrite: bool = False
) -> Operation[list[ScheduleDifference]]:
    """Return the call that compares declared schedules; a reader may make it.

    Raises:
        InvalidJob: one is not a schedule.
    """
    return Operation(
        "select to_jsonb(d)::text from forebay.compare_schedules(app => %(app)s, schedules "
        "=> %(schedules)s::jsonb, overwrite => %(overwrite)s::boolean) d",
        lambda rows: rows_as(ScheduleDifference, rows),
        {"app": app, "schedules": _declared(schedules), "overwrite": overwrite},
    )


def _declared(schedules: Iterable[Schedule]) -> str:
    items = [
        json.dumps(schedule_facts(each))[:-1] + f', "args": {encode_args(each.args)}}}'
        for each in checks.checked_items(schedules, Schedule, "schedules", "schedule")
    ]
    return f"[{','.join(items)}]"


def schedule_facts(schedule: Schedule) -> dict[str, Any]:
    """Return a definition without its arguments, with times in seconds.

    Raises:
        InvalidJob: the expression or the zone is not valid.
    """
    every = None if schedule.every is None else checks.checked_seconds(schedule.every, "every")
    checked_timing(schedule.cron, every, schedule.tz)
    return {
        "name": schedule.name,
        "kind": schedule.kind,
        "cron": schedule.cron,
        "every": every,
        "tz": schedule.tz,
        "queue": schedule.queue,
        "priority": schedule.priority,
        "overlap": schedule.overlap,
        "missed": schedule.missed,
        "jitter": schedule.jitter,
        "catch_up": schedule.catch_up,
        "missed_max": schedule.missed_max,
        "starts_at": checks.instant_text(schedule.starts_at, "starts_at"),
        "options": dict(schedule.options),
        "pause_on_failure": schedule.pause_on_failure,
    }


def drop_schedule(name: str) -> Operation[bool]:
    """Return the call that drops a schedule; it returns whether there was one."""
    return Operation("select forebay.drop_schedule(%(name)s)", boolean, {"name": name})


def pause_schedule(name: str, note: str | None = None) -> Operation[bool]:
    """Return the call that pauses a schedule; it returns whether that changed anything."""
    return Operation(
        "select forebay.pause_schedule(%(name)s, %(note)s)", boolean, {"name": name, "note": note}
    )


def resume_schedule(name: str) -> Operation[bool]:
    """Return the call that resumes a schedule; it returns whether it was paused."""
    return Operation("select forebay.resume_schedule(%(name)s)", boolean, {"name": name})


def run_schedule(name: str) -> Operation[int]:
    """Return the call that enqueues a job of a schedule now; it returns the id."""
    return Operation("select forebay.run_schedule(%(name)s)", number, {"name": name})


def schedules(name: str | None = None) -> Operation[list[ScheduleStatus]]:
    """Return the call that lists the schedules, or the one of a name."""
    return Operation(
        "select to_jsonb(s)::text from forebay.schedules(%(name)s) s order by s.name",
        lambda rows: rows_as(ScheduleStatus, rows),
        {"name": name},
    )


def schedule_history(
    name: str, limit: int, before: datetime | None = None
) -> Operation[list[Occurrence]]:
    """Return the call that lists decisions of a schedule, newest first."""
    return Operation(
        "select to_jsonb(h)::text from forebay.schedule_history(%(name)s, "
        "%(limit)s::integer, %(before)s::timestamptz) h"
        " order by h.scheduled_for desc",
        lambda rows: rows_as(Occurrence, rows),
        {
            "name": name,
            "limit": checks.integer_or_none(limit, "limit"),
            "before": checks.instant_text(before, "before"),
        },
    )


def schedule_starts(name: str, instants: Sequence[datetime]) -> Operation[list[PlannedInstant]]:
    """Return the call that tells when the jobs of instants start, and what was decided about
    them.
    """
    return Operation(
        (
            "select to_jsonb(p)::text from forebay.schedule_starts(%(name)s, "
            "%(instants)s::timestamptz[]) p order by p.scheduled_for"
        ),
        lambda rows: rows_as(PlannedInstant, rows),
        {"name": name, "instants": _array(instants)},
    )


def backfill_schedule(
    name: str, instants: Sequence[datetime], revision: int, token: str | None
) -> Operation[ScheduleBackfill]:
    """Return the call that enqueues, or without a token counts, jobs of past instants."""
    return Operation(
        (
            "select b.jobs, b.token from forebay.backfill_schedule(%(name)s, "
            "%(instants)s::timestamptz[], %(revision)s::integer, %(token)s) b"
        ),
        lambda rows: ScheduleBackfill(jobs=rows[0][0], token=rows[0][1], is_done=token is not None),
        {"name": name, "instants": _array(instants), "revision": revision, "token": token},
    )


# --- of schedulers ---


def read_schedules(digest: str | None) -> Operation[Schedules]:
    """Return the call that reads the definitions, if they changed since a digest."""
    return Operation(
        (
            "select to_json(r.server_time) operator(pg_catalog.#>>) '{}', r.digest, r.schedules"
            " from forebay.schedules_v1(%(digest)s::text) r"
        ),
        _schedules,
        {"digest": digest},
    )


def fire(
    definition: Definition, instants: Sequence[datetime], older: datetime | None
) -> Operation[Fired]:
    """Return the call that decides instants of a schedule."""
    return Operation(
        "select f.status, f.enqueued, to_json(f.decided_to) operator(pg_catalog.#>>) '{}' from "
        "forebay.fire_v1(%(id)s::bigint, %(revision)s::integer,"
        " %(decided_to)s::timestamptz, %(instants)s::timestamptz[], %(older)s::timestamptz) f",
        _fired,
        {
            "id": definition.schedule_id,
            "revision": definition.revision,
            "decided_to": definition.decided_to.isoformat(),
            "instants": _array(instants),
            "older": None if older is None else older.isoformat(),
        },
    )


def record_problem(definition: Definition, problem: str | None) -> Operation[None]:
    """Return the call that records why a scheduler cannot use a schedule."""
    return Operation(
        (
            "select forebay.schedule_problem_v1(%(id)s::bigint, %(revision)s::integer, "
            "%(problem)s::text)"
        ),
        nothing,
        {"id": definition.schedule_id, "revision": definition.revision, "problem": problem},
    )


def _schedules(rows: ResultRows) -> Schedules:
    ((server_time, digest, found),) = rows
    return Schedules(
        datetime.fromisoformat(server_time),
        digest,
        None if found is None else msgspec.json.decode(found, type=list[Definition]),
    )


def _fired(rows: ResultRows) -> Fired:
    ((status, enqueued, decided_to),) = rows
    return Fired(
        status, enqueued, None if decided_to is None else datetime.fromisoformat(decided_to)
    )


def _array(instants: Sequence[datetime]) -> str:
    return "{" + ",".join(each.isoformat() for each in instants) + "}"
