"""When what was measured is an alert: pure rules on ``forebay.measurements()``, for every queue
and for the database.

A1 to A3 have the meaning that they have for mirrors, see ``forebay.watch.mirror_rules``. The rules
decide what is wrong now; the database keeps since when, and an alert fires when its condition has
lasted ``for_seconds``.

Shown by: tests/watch/test_alerts.py, tests/cli/test_status.py.
"""

from __future__ import annotations

import shlex
from collections import Counter
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from forebay.errors import ConfigError, InvalidJob
from forebay.model.alerts import Alert
from forebay.model.endpoints import DELIVERIES
from forebay.model.text import counted, human_bytes
from forebay.policy.cron import Timing
from forebay.policy.retry import human_duration
from forebay.watch.commands import known_app, worker_command
from forebay.watch.endpoint_rules import full_text, groups_command
from forebay.watch.mirror_rules import too_few_completed_text, too_many_wait_text
from forebay.watch.snapshot_rules import of_snapshot
from forebay.watch.watched import THRESHOLDS, Watched
from forebay.watch.write_hints import write_hint

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

#: Seconds of the period to which ``completed``, ``lately`` and ``missed`` refer.
WITHIN_SECONDS: Final = 900.0

#: An alert clears when its condition was false for this long.
CLEAR_SECONDS: Final = 120.0

#: The setting of a worker that leaves schedules to others.
SCHEDULES_OFF: Final = "--schedules off"

#: A segment that was emptied before an export had written it is an alert for this long.
_MISSED_SECONDS: Final = 86_400.0

#: As many overdue jobs are counted; ``forebay._measured_overdue`` reads no more.
_OVERDUE_MAX: Final = 1_000

#: The queues of published events and of deliveries, which no application serves.
_DELIVERING: Final = ("forebay.publish", DELIVERIES)


def alerts_of_all(data: Mapping[str, Any]) -> list[Alert]:
    """Return every condition that holds now, whether or not it has lasted long enough.

    Args:
        data: what ``forebay.measurements(within_seconds => 900)`` returned.
    """
    watched = Watched(data)
    found: list[Alert] = []
    for queue in data["queues"]:
        found += _of_queue(watched, queue)
    found += _of_dead_letters(watched)
    rules_of_sorts = (
        _of_overdue,
        _of_lost_workers,
        _of_endpoints,
        _of_full_endpoints,
        _of_breakers,
        _of_mirrors,
        _of_schedules,
        _of_database,
        _of_space,
    )
    for rules in rules_of_sorts:
        found += rules(watched)
    return found


def checked_threshold(name: str) -> str:
    """Return the name of a threshold.

    Raises:
        ConfigError: no rule has it.
    """
    if name not in THRESHOLDS:
        raise ConfigError(
            "threshold", f"{name} is unknown", hint=f"One of {', '.join(THRESHOLDS)}."
        )
    return name


def _of_queue(watched: Watched, facts: Mapping[str, Any]) -> Iterator[Alert]:
    queue, group = facts["queue"], facts["group"]
    never_worked = watched.is_new and facts["claimed_at"] is None
    created_at = facts["created_at"] or watched.at
    yield from _few_completed(
        watched, facts, never_worked=never_worked or watched.at - created_at < WITHIN_SECONDS
    )
    most = watched.threshold("waiting_most", queue)
    if watched.exceeds(facts["ready"], most, "A2", queue, group):
        yield Alert(
            code="A2",
            subject=queue,
            group=group,
            problem=too_many_wait_text(facts["ready"], int(most)),
            hint=(
                f"More jobs are enqueued than completed: see `forebay queues list`; add workers "
                f"for queue {queue}."
            ),
            for_seconds=watched.threshold("waiting_for", queue),
        )
    oldest = facts["oldest_ready_at"]
    late = max(watched.threshold("oldest_ready", queue), watched.tick_seconds(queue, group))
    if (
        facts["paused_at"] is None
        and not never_worked
        and oldest is not None
        and watched.exceeds(watched.at - oldest, late, "oldest", queue, group)
    ):
        yield Alert(
            code="oldest",
            subject=queue,
            group=group,
            problem=f"the oldest ready job waits for {human_duration(watched.at - oldest)}",
            hint=(
                f"Add workers for queue {queue}, or see what its workers do: "
                "`forebay workers list`."
            ),
            since=watched.instant(oldest + late),
        )
    if (
        facts["ready"]
        and not facts["is_served"]
        and facts["paused_at"] is None
        and not never_worked
    ):
        command = (
            "forebay deliver"
            if queue in _DELIVERING
            else worker_command(known_app(watched.data, queue, group), queue, group)
        )
        yield Alert(
            code="unserved",
            subject=queue,
            group=group,
            severity="error",
            problem=f"{counted(facts['ready'], 'job')} ready, and no worker serves the queue",
            hint=f"Start a worker: `{command}`.",
            # No worker has claimed since, and the queue had a job for one.
            since=_later(watched, facts["oldest_ready_at"], facts["claimed_at"]),
            for_seconds=watched.threshold("unserved_for", queue),
        )


def _of_overdue(watched: Watched) -> Iterator[Alert]:
    """Jobs whose time has come and that nothing has made ready: any worker does, of all queues."""
    due = watched.data["overdue"]
    is_expected = not watched.is_new or any(q["claimed_at"] for q in watched.data["queues"])
    if not due or not is_expected:
        return
    oldest = min(one["due_at"] for one in due)
    late = watched.any_tick_seconds()
    if watched.at - oldest <= late:
        return
    if any(worker["is_alive"] for worker in watched.data["workers"]):
        hint = "Workers make them ready, and fall behind: see `forebay doctor`."
    else:
        hint = (
            f"Start a worker: `{worker_command(known_app(watched.data))}`. Any worker makes the "
            "due jobs of all queues ready."
        )
    yield Alert(
        code="overdue",
        severity="error",
        problem=overdue_text(due, watched.at),
        hint=hint,
        since=watched.instant(oldest + late),
        for_seconds=watched.threshold("overdue_for"),
    )


def overdue_text(due: Sequence[Mapping[str, Any]], at: float) -> str:
    """Return how many jobs are due and not ready, of which queues, and since when.

    Args:
        due: the part ``overdue`` of the measurements, which is not empty.
        at: the time of the measurements.
    """
    jobs = sum(one["jobs"] for one in due)
    some = counted(jobs, "job") if jobs < _OVERDUE_MAX else f"{_OVERDUE_MAX:,} or more jobs"
    queues = [one["queue"] for one in due if one["queue"]]
    shown = ", ".join(queues[:3]) + (f" and {len(queues) - 3:,} more" if queues[3:] else "")
    of = f" of {'queue' if len(queues) == 1 else 'queues'} {shown}" if queues else ""
    return (
        f"{some}{of} {'is' if jobs == 1 else 'are'} due and not ready yet, the oldest for "
        f"{human_duration(at - min(one['due_at'] for one in due))}"
    )


def _later(watched: Watched, *times: float | None) -> datetime | None:
    """Return the latest of some times; None if the first is unknown."""
    return watched.instant(max(at or 0.0 for at in times)) if times[0] is not None else None


def _few_completed(
    watched: Watched, facts: Mapping[str, Any], *, never_worked: bool
) -> Iterator[Alert]:
    """A1: below the least number, or none at all although jobs are ready."""
    queue, completed, completed_at = facts["queue"], facts["completed"], facts["completed_at"]
    least = watched.threshold("completed_least", queue)
    stalls = (
        facts["ready"] > 0
        and completed == 0
        and facts["paused_at"] is None
        and not watched.tick_seconds(queue, facts["group"])
    )
    if never_worked or not (completed < least or stalls):
        return
    if facts["paused_at"] is not None:
        hint = f"Queue {queue} is paused: `forebay queues resume {queue}`."
    elif open_keys := watched.open_breakers(queue):
        hint = (
            f"{counted(open_keys, 'limit key')} of queue {queue} with an open breaker, whose jobs "
            f"wait for a probe: `forebay keys list --queue {queue}`."
        )
    elif facts["ready"]:
        hint = (
            f"{counted(facts['ready'], 'job')} ready: does a worker serve queue {queue}, and "
            f"do its jobs succeed? See `forebay queues list`."
        )
    else:
        hint = (
            "No job is ready: check that jobs are enqueued. A regular job that does nothing "
            "proves that jobs still complete."
        )
    yield Alert(
        code="A1",
        subject=queue,
        group=facts["group"],
        severity="error",
        problem=too_few_completed_text(
            completed,
            int(least),
            WITHIN_SECONDS,
            None if completed_at is None else watched.at - completed_at,
        ),
        hint=hint,
        for_seconds=0.0 if completed < least else watched.threshold("stalled_for", queue),
    )


def _of_dead_letters(watched: Watched) -> Iterator[Alert]:
    """A3, and dead letters that become more; by queue, with the thresholds of their tags."""
    for queue in sorted({dead["queue"] for dead in watched.data["dead"]}):
        lines = [dead for dead in watched.data["dead"] if dead["queue"] == queue]
        over = [
            dead
            for dead in lines
            if dead["dead"] > watched.threshold("dead_most", queue, dead["tag"])
        ]
        if over:
            kinds = ", ".join(sorted({dead["kind"] for dead in over})[:3])
            yield Alert(
                code="A3",
                subject=queue,
                problem=f"{counted(sum(dead['dead'] for dead in over), 'dead letter')} of {kinds}",
                hint=f"See why: `{groups_command(queue)}`; redrive or purge them.",
            )
        lately = sum(dead["lately"] for dead in lines)
        most = watched.threshold("dead_lately_most", queue)
        if watched.exceeds(lately, most, "dead-growing", queue):
            yield Alert(
                code="dead-growing",
                subject=queue,
                severity="error",
                problem=(
                    f"{counted(lately, 'job')} died within {human_duration(WITHIN_SECONDS)}, "
                    f"more than {most:,.0f}"
                ),
                hint=f"Something fails for good: `{groups_command(queue)}`.",
            )


def _of_lost_workers(watched: Watched) -> Iterator[Alert]:
    lost = watched.data["lost_workers"]
    if not lost or len(lost) <= watched.threshold("lost_most"):
        return
    held: Counter[str] = Counter()
    for worker in lost:
        held.update(worker["kinds"])
    kinds = ", ".join(f"{jobs:,} {kind}" for kind, jobs in held.most_common(3))
    yield Alert(
        code="lost-workers",
        severity="error",
        problem=(
            f"{counted(len(lost), 'worker')} lost {_when(watched, lost)}; "
            f"{'it' if len(lost) == 1 else 'they'} held {kinds or 'no job'}"
        ),
        hint="See what they held and what became of it: `forebay workers list --ended`.",
        since=watched.instant(lost[0]["ended_at"]),
    )


def _when(watched: Watched, lost: Sequence[Mapping[str, Any]]) -> str:
    """Return when workers were lost, as times that stay true while the alert is shown."""
    first, last = (f"{watched.instant(lost[place]['ended_at']):%H:%M:%S}" for place in (0, -1))
    return f"at {last} UTC" if first == last else f"from {first} to {last} UTC"


def _of_full_endpoints(watched: Watched) -> Iterator[Alert]:
    for endpoint in watched.data["endpoints"]:
        if (endpoint["is_full"] or endpoint["is_overfull"]) and not endpoint["is_disabled"]:
            name = endpoint["endpoint"]
            problem, hint = full_text(name, drops=endpoint["is_overfull"])
            yield Alert(
                code="endpoint-full", subject=name, severity="error", problem=problem, hint=hint
            )


def _of_endpoints(watched: Watched) -> Iterator[Alert]:
    for endpoint in watched.data["endpoints"]:
        if endpoint["breaker"] == "closed" or endpoint["is_disabled"]:
            continue
        yield Alert(
            code="breaker",
            subject=endpoint["endpoint"],
            problem=(
                f"the breaker of endpoint {endpoint['endpoint']} is open, "
                f"{watched.next_probe(endpoint['probe_at'])}: "
                f"{endpoint['error'] or 'no error was recorded'}"
            ),
            hint=(
                f"See `forebay endpoints show {endpoint['endpoint']}`; deliveries wait until a "
                f"probe succeeds."
            ),
            since=watched.instant(endpoint["opened_at"]),
            for_seconds=watched.threshold("breaker_for"),
        )


def _of_breakers(watched: Watched) -> Iterator[Alert]:
    for facts in watched.data["breakers"]:
        queue, newest = facts["queue"], facts["newest"]
        most = watched.threshold("breakers_most", queue)
        if not watched.exceeds(facts["open"], most, "breaker", queue):
            continue
        shown = [
            f"{one['key']} ({watched.next_probe(one['probe_at'])}): "
            f"{one['error'] or 'no error was recorded'}"
            for one in newest
        ]
        if facts["open"] > len(newest):
            shown.append(f"and {facts['open'] - len(newest):,} more")
        key = shlex.quote(newest[0]["key"])
        yield Alert(
            code="breaker",
            subject=queue,
            problem=(
                f"{counted(facts['open'], 'limit key')} of queue {queue} with an open breaker: "
                + "; ".join(shown)
            ),
            hint=(
                f"Their jobs wait until a probe succeeds. `forebay keys show {queue} "
                f"--limit-key {key}` tells more; `forebay keys reset {queue} --limit-key {key}` "
                f"lets them run at once; retrying ones keep their time."
            ),
            since=watched.instant(facts["opened_at"]),
            for_seconds=watched.threshold("breaker_for", queue),
        )


def _of_mirrors(watched: Watched) -> Iterator[Alert]:
    app = known_app(watched.data)
    for mirror in watched.data["mirrors"]:
        name = mirror["mirror"]
        if mirror["breakers"]:
            first = mirror["breakers"][0]
            yield Alert(
                code="breaker",
                subject=name,
                problem=(
                    f"the breaker of mirror {name} is open in {first['who']}: "
                    f"{first['why'] or 'no reason was given'}"
                ),
                hint=f"A store is unreachable: `forebay mirror status {app} {name}`.",
                for_seconds=watched.threshold("breaker_for"),
            )
        left = (mirror["drift"] or 0) - (mirror["repaired"] or 0)
        if left > watched.threshold("drift_most"):
            yield Alert(
                code="drift",
                subject=name,
                problem=f"the last audit found {counted(left, 'difference')} that no job repairs",
                hint=f"Run `forebay mirror audit {app} {name} --repair`.",
                since=watched.instant(mirror["audited_at"]),
            )


def _of_schedules(watched: Watched) -> Iterator[Alert]:
    late = max(watched.threshold("schedule_late"), watched.tick_seconds(None))
    workers = watched.data["workers"]
    # A tick may come once a day: an instant that it leaves undecided is an alert by itself.
    is_decided = any(w["is_alive"] and w["schedules"] for w in workers) or any(
        tick["schedules"] for tick in watched.data["ticks"]
    )
    # An installation that is being set up has no worker yet.
    is_expected = not watched.is_new or any(q["claimed_at"] for q in watched.data["queues"])
    for schedule in watched.data["schedules"]:
        if schedule["is_paused"] or not schedule["is_declared"]:
            continue
        name = schedule["schedule"]
        problem, since = _of_schedule(watched, schedule, late)
        if problem is not None:
            yield Alert(
                code="schedule",
                subject=name,
                severity="error",
                problem=problem,
                hint=(
                    "Workers and ticks decide schedules: does one run? See "
                    f"`forebay schedules show {name}`."
                ),
                since=since,
            )
        elif not is_decided and is_expected:
            yield Alert(
                code="schedule",
                subject=name,
                severity="error",
                problem="no worker decides this schedule",
                hint=(
                    f"Start a worker without {SCHEDULES_OFF}: "
                    f"`{worker_command(known_app(watched.data))}`; or run ticks."
                ),
                for_seconds=watched.threshold("undecided_for"),
            )


def _of_schedule(
    watched: Watched, schedule: Mapping[str, Any], late: float
) -> tuple[str | None, datetime | None]:
    if schedule["problem"]:
        return f"cannot be used: {schedule['problem']}", None
    if schedule["missed"]:
        return (
            (
                f"{counted(schedule['missed'], 'instant')} missed within "
                f"{human_duration(WITHIN_SECONDS)}"
            ),
            None,
        )
    decided_to = watched.instant(schedule["decided_to"])
    if decided_to is None:
        return None, None
    try:
        timing = Timing(
            schedule["cron"],
            schedule["every"],
            schedule["tz"],
            watched.instant(schedule["starts_at"]),
        )
        instant = next(timing.after(decided_to), None)
    except InvalidJob as error:
        return f"cannot be used: {error.message}", None
    if instant is None or watched.at - instant.timestamp() <= late:
        return None, None
    waits = human_duration(watched.at - instant.timestamp())
    return f"its instant of {instant:%Y-%m-%d %H:%M:%S} UTC is {waits} late", instant


def _of_database(watched: Watched) -> Iterator[Alert]:
    facts = watched.data["database"]
    yield from of_snapshot(watched, facts)
    if watched.exceeds(facts["dead_rows"], watched.threshold("dead_rows_most"), "dead-rows"):
        yield Alert(
            code="dead-rows",
            problem=f"{facts['dead_rows']:,} dead rows in the tables of the schema",
            hint=(
                "Autovacuum does not keep up, or a snapshot keeps it from removing them: "
                "`forebay doctor`."
            ),
        )
    for export in facts["exports"]:
        yield from _of_export(watched, export)
    for duty in facts["duties"]:
        yield Alert(
            code="maintenance",
            subject=duty["duty"],
            problem=(
                f"{duty['duty']} "
                f"{'is behind' if duty['error'] is None else 'fails: ' + duty['error']}"
            ),
            hint="See `forebay doctor`: maintenance, locks and snapshots.",
            since=watched.instant(duty["since"]),
            for_seconds=watched.threshold("maintenance_for"),
        )
    least = watched.threshold("reserve_share") * facts["reserve_rows"]
    if facts["numbers_left"] is not None and facts["numbers_left"] < least:
        yield Alert(
            code="reserve",
            severity="error",
            problem=(
                f"{facts['numbers_left']:,} numbers left in the existing segments: when they "
                f"are used up, every enqueue fails"
            ),
            hint=(
                "Start a worker, which creates segments; or do it now: "
                "`select forebay.extend_v1();`"
            ),
        )


def _of_export(watched: Watched, export: Mapping[str, Any]) -> Iterator[Alert]:
    """Segments wait for it, or one was emptied before it was written."""
    name, missed_at, due_at = export["export"], export["missed_at"], export["due_at"]
    if missed_at is not None and watched.at - missed_at < _MISSED_SECONDS:
        yield Alert(
            code="export",
            subject=name,
            severity="error",
            problem=(
                f"{counted(export['missed'], 'segment')} emptied before export {name} had "
                f"written them"
            ),
            hint=(
                f"Run `forebay exports run {name} DIRECTORY` more often, or create it with a "
                f"longer --hold."
            ),
            since=watched.instant(missed_at),
        )
    elif due_at is not None and watched.at - due_at > watched.threshold("export_late"):
        left = due_at + export["hold_hours"] * 3600 - watched.at
        yield Alert(
            code="export",
            subject=name,
            problem=f"{counted(export['due'], 'segment')} past retention and not written;"
            f" the oldest is emptied in {human_duration(max(left, 0.0))}",
            hint=f"Run `forebay exports run {name} DIRECTORY`.",
            since=watched.instant(due_at),
        )


def _of_space(watched: Watched) -> Iterator[Alert]:
    """Whether a write succeeds, and the size of the database against its limit, if it has one."""
    failed = watched.data.get("write_failed")
    if failed is not None:
        yield Alert(
            code="writes",
            severity="error",
            problem=f"every write fails: {failed['message']} (SQLSTATE {failed['sqlstate']})",
            hint=write_hint(failed["sqlstate"], watched.data["space"]["ballast_bytes"]),
        )
    most, space = watched.threshold("database_bytes_most"), watched.data["space"]
    size, growth = space["database_bytes"], space["growth_bytes"] or 0.0
    if not most or size is None:
        return
    hint = (
        "Let retention delete earlier: `select forebay.configure('retention_days', N);` or enlarge"
        " the disk, then `forebay thresholds set database_bytes_most BYTES`."
    )
    if watched.exceeds(size, most, "size"):
        yield Alert(
            code="size",
            severity="error",
            problem=f"the database has {human_bytes(size)}; its limit is {human_bytes(most)}",
            hint=hint,
        )
    elif growth > 0 and (most - size) / growth * 86_400 < watched.threshold("full_within"):
        yield Alert(
            code="size",
            problem=(
                f"the database has {human_bytes(size)}, grows by {human_bytes(growth)} a day, and"
                f" reaches its limit of {human_bytes(most)} in"
                f" {human_duration(max(most - size, 0.0) / growth * 86_400)}"
            ),
            hint=hint,
        )
