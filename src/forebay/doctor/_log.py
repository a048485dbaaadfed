"""The log: reserve, segments, leases, queues, overdue jobs, breakers."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any, Final

from forebay.doctor._finding import Finding, Level
from forebay.model.text import counted, human_bytes
from forebay.ops.operation import Operation
from forebay.policy.retry import human_duration
from forebay.sql import latest_version
from forebay.watch.commands import known_app, worker_command
from forebay.watch.rules import overdue_text

if TYPE_CHECKING:
    from collections.abc import Mapping

    from forebay.ops.operation import ResultRows

#: A queue with waiting jobs and no claim for this long is not served.
_UNSERVED_SECONDS: Final = 10.0

#: The finding about such a queue has the code of the alert about it.
_UNSERVED: Final = "unserved"

#: Segments past their retention for which the doctor looks up what holds them, oldest first, and
#: how many it shows.
_SEGMENTS_READ_MAX: Final = 200
_SEGMENTS_SHOWN_MAX: Final = 3

#: The queues of published events and of deliveries, which no application serves.
_DELIVERING: Final = ("forebay.publish", "forebay.deliver")

#: A queue with this many waiting jobs is worth a finding even if it is served.
_DEEP_JOBS: Final = 1_000_000

#: So has the finding about due jobs that are still scheduled or retrying.
_OVERDUE: Final = "overdue"


def cluster() -> Operation[list[Finding]]:
    """Whether the data belongs to this cluster."""
    return Operation(
        "select c.system_identifier::text, c.database_oid::text, s.system_identifier::text,"
        "       d.oid::text"
        " from pg_control_system() s, pg_database d,"
        "      (select * from forebay.cluster order by cluster_no desc limit 1) c"
        " where d.datname = current_database()",
        _judge_cluster,
    )


def _judge_cluster(rows: ResultRows) -> list[Finding]:
    if not rows:
        return [
            Finding(
                "cluster",
                Level.ERROR,
                "the schema does not record its cluster",
                "Restore table forebay.cluster from the source of the data.",
            )
        ]
    ((recorded_cluster, recorded_database, actual, actual_database),) = rows
    facts = {
        "recorded": {"system_identifier": recorded_cluster, "database_oid": recorded_database},
        "actual": {"system_identifier": actual, "database_oid": actual_database},
    }
    if (recorded_cluster, recorded_database) == (actual, actual_database):
        return [
            Finding("cluster", Level.OK, f"schema belongs to this cluster, {actual}", facts=facts)
        ]
    origin = (
        f"cluster {recorded_cluster}"
        if recorded_cluster != actual
        else "another database of this cluster"
    )
    return [
        Finding(
            "cluster",
            Level.ERROR,
            f"this log was copied or restored from {origin}: no job runs until you decide",
            "`forebay adopt --resume` runs the waiting jobs, `forebay adopt --discard` drops them.",
            facts,
        )
    ]


_RESERVE_SQL: Final = """
with tail as (
    select coalesce(pg_sequence_last_value('forebay.log_seq'), 0) as last)
select t.last, (select max(s.hi) from forebay.segment s),
       (select count(*) from forebay.segment s where s.removed_at is null and s.lo <= t.last),
       (select s.value::bigint from forebay.setting s where s.name = 'segment_rows'),
       (select s.value::bigint from forebay.setting s where s.name = 'reserve_rows'),
       p.seq, extract(epoch from clock_timestamp() - p.enqueued_at)::float8
from tail t
left join lateral (
    -- When recent numbers were drawn. A retry keeps the time of its job and would mislead.
    select l.seq, l.enqueued_at from forebay.log l
    where l.seq >= greatest(t.last - 100000, 1) and l.seq < greatest(t.last - 100000, 1) + 2000
      and l.job_id is null
    order by l.seq limit 1) p on true
"""


def reserve() -> Operation[list[Finding]]:
    """How many numbers remain for which a segment exists."""
    return Operation(_RESERVE_SQL, _judge_reserve)


def _judge_reserve(rows: ResultRows) -> list[Finding]:
    ((last, end, used, segment_rows, reserve_rows, since, seconds),) = rows
    left = (end or 1) - 1 - last
    rate = (last - since) / seconds if since is not None and seconds and last > since else None
    lasts = left / rate if rate else None
    facts = {
        "numbers_left": left,
        "last_number": last,
        "segments_in_use": used,
        "numbers_per_second": None if rate is None else round(rate, 3),
        "seconds_left": None if lasts is None else round(lasts),
    }
    what = f"{left:,} numbers left in the existing segments"
    if lasts is not None and rate is not None:
        per_time = f"{rate:,.0f}/s" if rate >= 1 else f"{rate * 3600:,.0f}/h"
        length = human_duration(lasts) if lasts < 4e7 else "more than a year"
        what += f", enough for {length} at the recent rate of {per_time}"
    remedy = "Start a worker, which creates segments; or do it now: select forebay.extend_v1();"
    if left < segment_rows / 2 or (lasts is not None and lasts < 3600):
        what += ": when they are used up, every enqueue fails"
        return [Finding("reserve", Level.ERROR, what, remedy, facts)]
    if left < reserve_rows / 2 or (lasts is not None and lasts < 86_400):
        what += ": no worker creates segments ahead"
        return [Finding("reserve", Level.WARNING, what, remedy, facts)]
    return [Finding("reserve", Level.OK, what, facts=facts)]


_RETENTION_SQL: Final = """
with used as (
    select s.segment_id, s.lo, s.hi, f.sealed_at,
           pg_total_relation_size(format('forebay.log_%%s', s.segment_id)::regclass) as bytes
    from forebay.segment s left join forebay.seal f using (segment_id)
    where s.removed_at is null and s.lo <= coalesce(pg_sequence_last_value('forebay.log_seq'), 0)),
total as (
    select count(*) as segments, coalesce(sum(bytes), 0)::bigint as bytes,
           (select value::bigint from forebay.setting where name = 'retention_days') as days,
           (select value::bigint from forebay.setting where name = 'retention_bytes') as bytes_max,
           (select count(*) from forebay.segment where removed_at is not null) as emptied
    from used)
select t.segments, t.bytes, t.days, t.bytes_max, t.emptied, u.segment_id, u.bytes,
       extract(epoch from clock_timestamp() - u.sealed_at)::float8,
       case when u.segment_id is not null then forebay.segment_held_by(u.segment_id) end
from total t
left join lateral (
    select u.* from used u
    where u.sealed_at is not null
      and (u.sealed_at < clock_timestamp() - make_interval(days => t.days::integer)
           or t.bytes > t.bytes_max)
    order by u.segment_id limit %(most)s) u on true
"""


def retention() -> Operation[list[Finding]]:
    """Segments past their age or beyond the total size that cannot be emptied, and the reason."""
    return Operation(_RETENTION_SQL, _judge_retention, {"most": _SEGMENTS_READ_MAX})


def _judge_retention(rows: ResultRows) -> list[Finding]:
    segments, size, days, size_max, emptied = rows[0][:5]
    facts: dict[str, Any] = {
        "segments": segments,
        "bytes": size,
        "retention_days": days,
        "retention_bytes": size_max,
        "emptied": emptied,
    }
    found = []
    for _, _, _, _, _, segment, segment_bytes, seconds, held_by in rows:
        if segment is None or held_by is None:
            continue
        found.append(
            Finding(
                "retention",
                Level.WARNING,
                f"segment {segment} ({human_bytes(segment_bytes)}, full for"
                f" {human_duration(seconds)}) cannot be emptied: {held_by}",
                _retention_remedy(held_by),
                {"segment": segment, "bytes": segment_bytes, "held_by": held_by},
            )
        )
    if len(found) > _SEGMENTS_SHOWN_MAX:
        rest = counted(len(found) - _SEGMENTS_SHOWN_MAX, "more segment")
        found[_SEGMENTS_SHOWN_MAX:] = [
            Finding("retention", Level.WARNING, f"{rest} cannot be emptied", None, facts)
        ]
    if found:
        return found
    waiting = sum(row[5] is not None for row in rows)
    what = f"{counted(segments, 'segment')} in use, {human_bytes(size)}"
    if waiting:
        return [
            Finding(
                "retention",
                Level.NOTICE,
                f"{what}; {counted(waiting, 'segment')} can be emptied and will be",
                "A running worker empties them.",
                facts,
            )
        ]
    return [Finding("retention", Level.OK, what, facts=facts)]


def _retention_remedy(held_by: str) -> str:
    if held_by.startswith("queue "):
        return "Start a worker for that queue; or cancel its jobs if they are no longer needed."
    if held_by.startswith("worker "):
        return "Wait for the job, or cancel it: `forebay jobs list --state running` shows it."
    if held_by.startswith("export "):
        return "See exports: the segment waits until it is written, up to the limit of the export."
    return "Find the holder of the oldest snapshot under snapshots."


_LEASES_SQL: Final = """
select l.lease_id, l.worker, extract(epoch from clock_timestamp() - l.opened_at)::float8,
       extract(epoch from clock_timestamp() - h.heartbeat_at)::float8, l.suspect_seconds,
           l.lease_seconds,
       coalesce(j.jobs, 0)::bigint,
       case when l.details ->> 'interface' = 'sql' then 0 else l.version end,
       extract(epoch from clock_timestamp() - k.ended_at)::float8
from (select max(t.ended_at) as ended_at from forebay.ticks() t) k
left join forebay.lease l on l.closed_at is null
left join lateral (select b.heartbeat_at from forebay.heartbeat b
                   where b.lease_id = l.lease_id order by b.heartbeat_at desc limit 1) h on true
left join lateral (
    select sum(cardinality(b.seqs) - s.settled) as jobs
    from (select i.floor from forebay.batch i
          where i.lease_id = l.lease_id order by i.claim_no desc limit 1) f
    join forebay.batch b on b.lease_id = l.lease_id and b.claim_no >= f.floor
    cross join lateral (
        select case when bool_or(t.offsets is null) then cardinality(b.seqs)
                    else coalesce(sum(cardinality(t.offsets)), 0) end as settled
        from forebay.settlement t where t.lease_id = b.lease_id and t.claim_no = b.claim_no) s) j
            on true
order by h.heartbeat_at
"""


def leases() -> Operation[list[Finding]]:
    """Which workers are alive, and which fell silent while they held jobs."""
    return Operation(_LEASES_SQL, _judge_leases)


def _judge_leases(rows: ResultRows) -> list[Finding]:
    found = []
    alive = []
    others = []
    for lease, worker, _, silent, suspect_seconds, lease_seconds, jobs, version, _ in rows:
        if lease is None:  # no worker; the row tells of ticks only
            continue
        facts = {
            "lease": lease,
            "worker": worker,
            "silent_seconds": silent,
            "jobs": jobs,
            "version": version,
        }
        # An idle worker sends a heartbeat less often.
        if silent is not None and silent <= (suspect_seconds if jobs else lease_seconds):
            alive.append((worker, jobs))
            # 0: its functions keep their meaning over versions.
            if version not in (0, latest_version()):
                others.append((worker, version))
            continue
        length = "since it started" if silent is None else f"for {human_duration(silent)}"
        what = f"worker {worker} has been silent {length}, with {counted(jobs, 'job')}"
        if silent is not None and silent <= lease_seconds:
            what += f"; its jobs are recovered after {human_duration(lease_seconds)} at the latest"
            found.append(Finding("workers", Level.NOTICE, what, None, facts))
        else:
            remedy = "Start a worker, which takes over the jobs. No live worker could."
            found.append(
                Finding(
                    "workers",
                    Level.WARNING if jobs else Level.NOTICE,
                    what + ("; no worker took them over" if jobs else ""),
                    remedy if jobs else None,
                    facts,
                )
            )
    facts = {
        "alive": [{"worker": worker, "jobs": jobs} for worker, jobs in alive],
        "silent": len(found),
    }
    found += _of_another_version(others)
    if alive:
        running = sum(jobs for _, jobs in alive)
        what = f"{counted(len(alive), 'worker')} alive, holding {counted(running, 'job')}"
        found.append(Finding("workers", Level.OK, what, facts=facts))
    else:
        what = "no worker is running"
        ticked = rows[0][-1]  # in each row
        if ticked is not None:
            what += f"; the last tick ended {human_duration(ticked)} ago"
        found.append(Finding("workers", Level.NOTICE, what, None, facts))
    return found


def _of_another_version(others: list[tuple[str, int | None]]) -> list[Finding]:
    """Return the finding about the live workers of another schema version, if there are some."""
    if not others:
        return []
    listed = ", ".join(f"{worker} ({version or 'unknown'})" for worker, version in others[:5])
    if len(others) > 5:
        listed += f" and {len(others) - 5} more"
    return [
        Finding(
            "workers",
            Level.NOTICE,
            f"{counted(len(others), 'worker')} of another schema version than this library's"
            f" {latest_version()}: {listed}",
            (
                "Both versions can run side by side; post migrations wait until the last "
                "older worker ends."
            ),
            {"others": [{"worker": worker, "version": version} for worker, version in others]},
        )
    ]


_QUEUES_SQL: Final = """
select d.queue, d.group_name, sum(d.ready)::bigint, sum(d.scheduled)::bigint,
    sum(d.claimed)::bigint,
       sum(d.running)::bigint, sum(d.retrying)::bigint, sum(d.cancelled)::bigint,
       max(extract(epoch from clock_timestamp() - case when g.resume_at <= clock_timestamp()
           then null else g.paused_at end))::float8,
       min(extract(epoch from clock_timestamp() - c.claimed_at))::float8,
       exists (select from forebay.lease l
               join lateral (select h.heartbeat_at from forebay.heartbeat h
                   where h.lease_id = l.lease_id
                             order by h.heartbeat_at desc limit 1) h on true
               where l.closed_at is null
                 and h.heartbeat_at > clock_timestamp() - make_interval(secs => l.lease_seconds)),
       (select count(*) from forebay.breaker b where b.queue = d.queue and b.opened_at is not null),
       exists (select from forebay.ticks() t
               where t.expected_by > clock_timestamp()
                 and t.group_name = d.group_name and d.queue = any (t.queues))
from forebay.depth() d
left join forebay.queue_group g on g.queue = d.queue and g.name = d.group_name
left join lateral (
    select max(b.claimed_at) as claimed_at
    from (select distinct i.lane from forebay.lane i where i.queue = d.queue) i
    cross join lateral (select b.claimed_at from forebay.batch b
                        where b.group_id = g.group_id and b.lane = i.lane and b.lease_id is not null
                        order by b.no desc limit 1) b) c on true
group by d.queue, d.group_name
order by 3 desc, 1, 2
"""


def queues() -> Operation[list[Finding]]:
    """Queues with waiting jobs that no worker claims."""
    return Operation(_QUEUES_SQL, _judge_queues)


def judge_measured_queues(data: Mapping[str, Any]) -> list[Finding]:
    """Return what ``queues`` finds, from measurements: without a count of all that waits."""
    now = data["at"]
    alive = any(worker["is_alive"] for worker in data["workers"])
    broken = {each["queue"]: each["open"] for each in data["breakers"]}

    def ago(at: float | None) -> float | None:
        return None if at is None else max(0.0, now - at)

    return _judge_queues(
        [
            (
                *(one[name] for name in _COUNTED),
                ago(one["paused_at"]),
                ago(one["claimed_at"]),
                alive,
                broken.get(one["queue"], 0),
                any(
                    tick["expected_by"] > now
                    and tick["group"] == one["group"]
                    and one["queue"] in tick["queues"]
                    for tick in data["ticks"]
                ),
            )
            for one in sorted(
                data["queues"], key=lambda one: (-one["ready"], one["queue"], one["group"] or "")
            )
        ]
    )


#: The first columns of the rows, as measurements name them.
_COUNTED: Final = (
    "queue", "group", "ready", "scheduled", "claimed", "running", "retrying", "cancelled",
)  # fmt: skip


def _judge_queues(rows: ResultRows) -> list[Finding]:
    found = []
    facts = []
    for (
        queue,
        group,
        ready,
        scheduled,
        claimed,
        running,
        retrying,
        cancelled,
        paused,
        last_claim,
        alive,
        open_breakers,
        is_ticked,
    ) in rows:
        facts.append(
            {
                "queue": queue,
                "group": group,
                "scheduled": scheduled,
                "ready": ready,
                "claimed": claimed,
                "running": running,
                "retrying": retrying,
                "cancelled": cancelled,
                "paused": paused is not None,
            }
        )
        name = f"queue {queue}" if group in (None, "default") else f"queue {queue}, group {group}"
        if not ready:
            continue
        waits = f"{name}: {counted(ready, 'job')} ready"
        if ready >= _DEEP_JOBS:
            remedy = (
                f"Add workers; or refuse new jobs: forebay queues limit {queue} --max-waiting N"
            )
            found.append(Finding("queues", Level.WARNING, waits, remedy, facts[-1]))
        if paused is not None:
            what = f"{waits}, paused for {human_duration(paused)}"
            remedy = f"`forebay queues resume {queue}` resumes it."
            found.append(Finding("queues", Level.NOTICE, what, remedy, facts[-1]))
        elif last_claim is None or last_claim > _UNSERVED_SECONDS:
            last = "ever" if last_claim is None else f"for {human_duration(last_claim)}"
            remedy = _worker_remedy(queue)
            if is_ticked:
                what = f"{waits}, which this or the next tick runs"
                found.append(Finding("queues", Level.NOTICE, what, None, facts[-1]))
            elif not alive:
                found.append(
                    Finding(
                        _UNSERVED,
                        Level.WARNING,
                        f"{waits} and no worker is running",
                        remedy,
                        facts[-1],
                    )
                )
            elif claimed or running:
                found.append(
                    Finding(
                        "queues",
                        Level.NOTICE,
                        f"{waits}, {claimed:,} claimed, {running:,} running, no claim {last}:"
                        " its workers are busy",
                        "To go faster, add workers or raise --concurrency.",
                        facts[-1],
                    )
                )
            else:
                check, what = _UNSERVED, f"{waits}, and no worker has claimed from it {last}"
                if queue == "forebay.deliver":
                    check, what = "queues", f"{waits}, none of them claimed {last}"
                    remedy = (
                        "Endpoints are disabled, paused, or have an open breaker:"
                        f" `forebay endpoints list`. Otherwise: {remedy}"
                    )
                elif open_breakers:
                    keys = counted(open_breakers, "limit key")
                    check = "queues"
                    what = f"{waits}, none of them claimed {last}; {keys} with an open breaker"
                    remedy = (
                        f"Their jobs wait for a probe: `forebay keys list --queue {queue}`."
                        f" Otherwise: {remedy}"
                    )
                found.append(Finding(check, Level.WARNING, what, remedy, facts[-1]))
    if found:
        return found
    names = ("scheduled", "ready", "claimed", "running", "retrying")
    sums = ", ".join(f"{sum(fact[name] for fact in facts):,} {name}" for name in names)
    what = f"{counted(len({row[0] for row in rows}), 'queue')}: {sums}"
    return [Finding("queues", Level.OK, what, facts={"queues": facts})]


def _worker_remedy(queue: str) -> str:
    if queue in _DELIVERING:
        return (
            "Start a router and a deliverer: forebay deliver, or forebay worker module:app "
            "--endpoints"
        )
    return f"Start a worker: forebay worker module:app --queue {queue}"


_OVERDUE_SQL: Final = """
select json_build_object('overdue', m.data operator(pg_catalog.->) 'overdue',
                         'apps', m.data operator(pg_catalog.->) 'apps'),
       (m.data operator(pg_catalog.->>) 'at')::float8,
       exists (select from forebay.ticks() t where t.alone and t.expected_by > clock_timestamp())
from (select forebay.measurements(60, false) as data) m
"""


def overdue() -> Operation[list[Finding]]:
    """Scheduled and retrying jobs whose time has come and that no worker has made ready."""
    return Operation(_OVERDUE_SQL, _judge_overdue)


def _judge_overdue(rows: ResultRows) -> list[Finding]:
    ((data, at, is_ticked),) = rows
    due = data["overdue"]
    if not due:
        return [Finding("scheduled", Level.OK, "none is overdue", facts={"overdue": 0})]
    what = overdue_text(due, at)
    facts = {
        "overdue": sum(one["jobs"] for one in due),
        "seconds": at - min(one["due_at"] for one in due),
        "queues": [one["queue"] for one in due if one["queue"]],
    }
    if is_ticked:
        return [Finding("scheduled", Level.NOTICE, f"{what}: a tick makes them ready", None, facts)]
    remedy = (
        f"Start a worker: `{worker_command(known_app(data))}`. Any worker makes the due jobs of "
        "all queues ready."
    )
    return [Finding(_OVERDUE, Level.WARNING, what, remedy, facts)]


_BREAKERS_SQL: Final = """
select b.queue, b.key, b.error, extract(epoch from b.probe_at - clock_timestamp())::float8,
       count(*) over ()
from forebay.breaker b
left join forebay.endpoint e on b.queue = 'forebay.deliver' and e.name = b.key
where b.opened_at is not null and e.disabled_at is null
order by b.queue <> 'forebay.deliver', b.opened_at desc, b.queue, b.key limit 10
"""


def breakers() -> Operation[list[Finding]]:
    """Endpoints and limit keys of which nothing runs but probes."""
    return Operation(_BREAKERS_SQL, _judge_breakers)


def _judge_breakers(rows: ResultRows) -> list[Finding]:
    found = []
    for queue, key, error, seconds, _ in rows:
        probe = "next probe now" if seconds <= 0 else f"next probe in {human_duration(seconds)}"
        what = f"breaker open, {probe}: {error or 'no error was recorded'}"
        if queue == "forebay.deliver":
            what = f"endpoint {key}: {what}"
            remedy = (
                f"Mend its cause; then forebay endpoints reset {key} sends what waits, and forebay"
                f" jobs retry --endpoint {key} what is retrying."
            )
            facts = {"endpoint": key}
        else:
            what = f"limit key {key} of queue {queue}: {what}"
            name = shlex.quote(key)
            remedy = (
                f"Mend its cause; then forebay keys reset {queue} --limit-key {name} runs the"
                f" jobs that wait, and forebay jobs retry --queue {queue} --limit-key {name} those"
                " that are retrying."
            )
            facts = {"queue": queue, "limit_key": key}
        found.append(Finding("breakers", Level.WARNING, what, remedy, facts))
    if rows and rows[0][4] > len(rows):
        more = counted(rows[0][4] - len(rows), "more open breaker")
        found.append(Finding("breakers", Level.WARNING, more, "See them: forebay keys list"))
    return found or [Finding("breakers", Level.OK, "none is open")]
