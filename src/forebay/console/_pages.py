"""The pages: what each reads. A page returns the facts of its template, or the path of another.

A page runs the operations that the command line runs, and contains no SQL.
"""

from __future__ import annotations

import math
from collections import defaultdict
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import urlencode

from forebay.console._request import (
    ROWS,
    instant_in,
    needed_in,
    part_of,
    text_in,
    whole_in,
)
from forebay.console._window import SPANS, window_of
from forebay.errors import ConfigError, EndpointNotFound
from forebay.guard.holder_query import holders
from forebay.model.change import JobFilter
from forebay.model.job import JobState
from forebay.model.limits import Limits
from forebay.model.stats import STATS_BOUNDS
from forebay.ops import (
    archive,
    dead,
    endpoints,
    events,
    keys,
    mirrors,
    publishing,
    queues,
    schedules,
    stats,
    subjects,
    workers,
)
from forebay.policy.cron import Timing
from forebay.policy.keys import key_answer
from forebay.watch.marks import marks
from forebay.watch.top import percentile
from forebay.watch.where import where

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Sequence

    from starlette.requests import Request

    from forebay.console._source import Source
    from forebay.console._window import Window
    from forebay.model.schedules import ScheduleStatus
    from forebay.model.stats import StatsSample

Facts = dict[str, Any]

#: Holders of an old snapshot or a lock.
_HOLDERS_MAX: Final = 10

#: Problems that the overview shows at once.
_PROBLEMS: Final = 10

#: Mirrors that a page shows at once, each with a read of its audits.
_MIRRORS: Final = 10

#: Rows of the log that one page of a search reads: some hundredths of a second.
_BUDGET: Final = 50_000

#: The same where a text is looked for in each of them.
_TEXT_BUDGET: Final = 15_000

#: Jobs whose state one page of a search asks for: as long.
_STATES: Final = 100

#: Columns of a list of jobs that a person can choose, beside the number of the job.
COLUMNS: Final = (
    "state", "queue", "kind", "arguments", "attempt", "enqueued", "due or ended", "group",
    "priority", "tag", "correlation id", "ordering key", "limit key", "unique key", "endpoint",
    "worker", "claimed at", "ended at", "expires at",
)  # fmt: skip

#: Those of them that a list without a choice shows.
DEFAULT_COLUMNS: Final = COLUMNS[:7]

#: Numbers of a histogram: one more than bounds.
_BUCKETS: Final = len(STATS_BOUNDS) + 1

#: Points of which the last, of a step that is not over, is left out.
_OVER_LEAST: Final = 3

#: Points of a curve.
_POINTS_MAX: Final = 120


class Page(NamedTuple):
    """One page.

    Attributes:
        path: below the name of the database.
        title: in the navigation; empty: it is reached from another page.
        key: the letter that follows ``g`` on the keyboard; empty for none.
        template: its file.
        read: reads the facts of the template, or returns the path of another page.
        is_shared: it shows only what the sampler has read, so each person gets one of a sample.
    """

    path: str
    title: str
    key: str
    template: str
    read: Callable[[Source, Request], Awaitable[Facts | str]]
    is_shared: bool = False


async def _overview(source: Source, request: Request) -> Facts:
    found = await source.overview()
    problems = await source.problems()
    now = [one for one in problems if one.state == "holds"]
    samples = list(source.samples)
    return {
        "section": "Overview",
        "age": source.age_seconds,
        "problems": part_of(request, now, "problem", _PROBLEMS),
        "others": [one for one in problems if one.state != "holds"],
        "errors": sum(one.severity == "error" for one in now),
        "overview": found,
        "queues": part_of(
            request,
            sorted(found.queues, key=lambda one: (-one.ready - one.claimed, one.queue)),
            "queue",
        ),
        "data": source.data,
        "courses": source.courses,
        "lasts": samples[-1].at - samples[0].at,
        "marks": await source.marks(),
        "curves": [
            ("jobs waiting", [one.waiting for one in samples], "number"),
            ("jobs done a second", [one.done for one in samples], "rate"),
            ("dead rows", [one.dead_rows for one in samples], "number"),
            ("oldest transaction", [one.snapshot_seconds for one in samples], "duration"),
        ],
    }


async def _queue(source: Source, request: Request) -> Facts:
    name = needed_in(request, "queue")
    window = window_of(request)
    overview = await source.overview()
    loads = [one for one in overview.queues if one.queue == name]
    series = await source.read(stats.stats_series(window.step, window.since, window.until, name))
    counted = await source.read(stats.stats(name))
    limits = await source.read(queues.limits(name))
    times, curves = _curves(series, window)
    happened = await source.happenings(times[0], name, window.until) if times else []
    return {
        "section": "Overview",
        "name": name,
        "is_missing": not loads and not counted,
        "age": source.age_seconds,
        "loads": loads,
        "problems": [
            one for one in await source.problems() if one.subject == name and one.state == "holds"
        ],
        "limits": limits[0].limits if limits else Limits(),
        "settings": await source.read(queues.queue_settings(name)),
        "kinds": _by(counted, "kind"),
        "tags": _by(counted, "tag"),
        "priorities": _by(counted, "priority"),
        "window": window,
        "spans": list(SPANS),
        "times": times,
        "curves": curves,
        "marks": marks(happened, times),
    }


def _by(counted: Iterable[Any], field: str) -> list[Facts]:
    """Return the sums of counters for each value of a field, most work first."""
    sums: dict[Any, Facts] = {}
    for one in counted:
        row = sums.setdefault(
            getattr(one, field),
            defaultdict(int, waits=[0] * _BUCKETS, durations=[0] * _BUCKETS),
        )
        for name in ("scheduled", "ready", "claimed", "retrying", "done", "failed", "dead",
                     "expired", "wait_ms", "duration_ms"):  # fmt: skip
            row[name] += getattr(one, name)
        for name in ("waits", "durations"):
            row[name] = [a + b for a, b in zip(row[name], getattr(one, name), strict=True)]
    rows = [
        {
            "value": value,
            **row,
            "wait_p95": _p95(row["waits"], row["wait_ms"]),
            "duration_p95": _p95(row["durations"], row["duration_ms"]),
        }
        for value, row in sums.items()
    ]
    return sorted(rows, key=lambda row: (-row["ready"] - row["done"], str(row["value"])))[:ROWS]


def _p95(counts: Sequence[int], total_ms: int) -> float | None:
    found = percentile(STATS_BOUNDS, counts, total_ms, 0.95)
    return None if found is None else found / 1000


def _curves(
    series: Sequence[StatsSample], window: Window
) -> tuple[list[datetime], list[tuple[str, list[float | None], str]]]:
    """Return times and curves of a queue from its samples: sums over kinds, tags, priorities.

    What was counted is a mean of each step. The present step is not over, so it is not shown.
    """
    moments: dict[datetime, list[StatsSample]] = defaultdict(list)
    for one in series:
        moments[one.at].append(one)
    at = sorted(moments)
    size = max(1, math.ceil(len(at) / _POINTS_MAX))
    parts = [[s for m in at[n : n + size] for s in moments[m]] for n in range(0, len(at), size)]
    ends = [at[min(n + size, len(at)) - 1] for n in range(0, len(at), size)]
    last = [moments[end] for end in ends]

    def p95(counts: str, total: str) -> list[float | None]:
        return [
            _p95(
                [sum(column) for column in zip(*(getattr(s, counts) for s in part), strict=True)],
                sum(getattr(s, total) for s in part),
            )
            for part in parts
        ]

    def means(name: str) -> list[float | None]:
        found: list[float | None] = [
            sum(getattr(s, name) for s in part) / len({s.at for s in part}) for part in parts
        ]
        is_over = window.until is not None or window.step == "second" or len(found) < _OVER_LEAST
        return found if is_over else [*found[:-1], None]

    each = "an hour" if window.step == "hour" else f"a {window.step}"
    return ends, [
        ("jobs ready", [sum(s.ready for s in part) for part in last], "number"),
        (f"enqueued {each}", means("enqueued"), "rate"),
        (f"done {each}", means("done"), "rate"),
        (f"failed attempts {each}", means("failed"), "rate"),
        ("wait, p95", p95("waits", "wait_ms"), "duration"),
        ("handler, p95", p95("durations", "duration_ms"), "duration"),
    ]


async def _jobs(source: Source, request: Request) -> Facts:
    names = ("queue", "kind", "tag", "correlation_id", "ordering_key", "limit_key", "subject",
             "endpoint", "unique_key")  # fmt: skip
    given: Facts = {name: text_in(request, name) for name in names}
    given["enqueued_after"] = instant_in(request, "enqueued_after")
    given["enqueued_before"] = instant_in(request, "enqueued_before")
    left = {name: value for name, value in given.items() if value is not None}
    state = text_in(request, "state")
    contains = text_in(request, "contains")
    chosen = request.query_params.getlist("column")
    if unknown := set(chosen) - set(COLUMNS):
        raise ConfigError(
            "column",
            f"is {min(unknown)!r}, not the name of a column",
            hint=f"Columns are {', '.join(COLUMNS)}.",
        )
    found = await source.read(
        archive.search(
            which=JobFilter(**left) if left else None,
            state=state,
            contains=contains,
            limit=ROWS,
            before=whole_in(request, "before"),
            budget=_TEXT_BUDGET if contains else _BUDGET,
            states=_STATES,
        )
    )
    return {
        "section": "Jobs",
        "found": found,
        "names": names,
        "states": [str(one) for one in JobState],
        "asked": _STATES if state else None,
        "is_filtered": bool(left or state or contains),
        "columns": COLUMNS,
        "chosen": [one for one in COLUMNS if one in chosen],
    }


async def _job(source: Source, request: Request) -> Facts:
    what = needed_in(request, "what")
    found = await source.read(where(what))
    described = [one for one in found.jobs if one.job_id == found.job_id]
    return {
        "section": "Jobs",
        "what": what,
        "is_missing": not described,
        "found": found,
        "described": described,
        "others": [one for one in found.jobs if one.job_id != found.job_id],
        "histories": {one.group: one for one in found.histories},
        "flows": {one.group: one for one in found.flows},
        "explanations": {one.group: one for one in found.explanations},
    }


async def _failures(source: Source, request: Request) -> Facts:
    queue, kind, endpoint = (text_in(request, name) for name in ("queue", "kind", "endpoint"))
    groups = await source.read(dead.dead_groups(queue, kind, None, endpoint))
    end = datetime.now(UTC).replace(second=0, microsecond=0)
    series = await source.minutes(end - timedelta(minutes=59), queue)
    courses = None if series is None else _courses(series, end)
    return {
        "section": "Failures",
        "groups": part_of(request, groups),
        "total": sum(one.jobs for one in groups),
        "courses": courses and [one for one in courses if kind in (None, one[1])],
        "rows": ROWS,
    }


def _courses(series: Iterable[StatsSample], end: datetime) -> list[tuple[str, str, list[int], int]]:
    """Return queue, kind, failed attempts of each minute, and deaths; most failures first.

    A death is a failed attempt too, the last one.

    Args:
        series: samples of minutes, at most an hour older than ``end``.
        end: the beginning of the present minute.
    """
    minutes: dict[tuple[str, str], list[int]] = {}
    deaths: dict[tuple[str, str], int] = defaultdict(int)
    for one in series:
        if one.failed or one.dead:
            # A sample is at the end of its minute, that of the present minute is now.
            place = 59 + math.ceil((one.at - end).total_seconds() / 60)
            failed = minutes.setdefault((one.queue, one.kind), [0] * 61)
            failed[min(60, max(0, place))] += one.failed + one.dead
            deaths[one.queue, one.kind] += one.dead
    found = [(*name, failed, deaths[name]) for name, failed in minutes.items()]
    return sorted(found, key=lambda one: (-sum(one[2]), one[:2]))


async def _cause(source: Source, request: Request) -> Facts:
    cause = needed_in(request, "cause")
    groups = await source.read(dead.dead_groups(None, None, cause, None))
    letters = await source.read(
        dead.dead_letters(
            redriven="any", limit=ROWS, before=whole_in(request, "before"), cause=cause
        )
    )
    return {
        "section": "Failures",
        "cause": cause,
        "is_missing": not letters,
        "groups": groups,
        "letters": letters,
        "rows": ROWS,
    }


async def _workers(source: Source, request: Request) -> Facts:
    since = datetime.now(UTC) - timedelta(days=1)
    return {
        "section": "Workers",
        "workers": part_of(request, await source.read(workers.workers(5))),
        "ended": await source.read(workers.ended_workers(since, 100)),
    }


async def _keys(source: Source, request: Request) -> Facts:
    queue = text_in(request, "queue")
    now = datetime.now(UTC)
    found = await source.read(keys.keys(queue, 100))
    return {
        "section": "Keys",
        "keys": [(one, key_answer(one, now)) for one in found],
        "limits": part_of(request, await source.read(queues.limits(queue))),
    }


async def _schedules(source: Source, request: Request) -> Facts:
    found = part_of(request, await source.read(schedules.schedules(None)), "schedule")
    return {
        "section": "Schedules",
        "schedules": found._replace(rows=[(one, _next_of(one, 1)) for one in found.rows]),
        "counts": part_of(request, await source.read(subjects.subject_counts(None)), "subject"),
    }


def _next_of(one: ScheduleStatus, many: int) -> list[datetime]:
    """Return the next instants of a schedule; none if it is paused or its expression is bad."""
    if one.paused_at is not None or one.problem is not None:
        return []
    timing = Timing(one.cron, one.every, one.tz, one.starts_at)
    return list(timing.between(one.server_time, None, many))


async def _schedule(source: Source, request: Request) -> Facts:
    name = needed_in(request, "name")
    (found,) = await source.read(schedules.schedules(name)) or (None,)
    return {
        "section": "Schedules",
        "name": name,
        "is_missing": found is None,
        "schedule": found,
        "next": [] if found is None else _next_of(found, 5),
        "history": (
            [] if found is None else await source.read(schedules.schedule_history(name, ROWS, None))
        ),
    }


async def _subjects(source: Source, request: Request) -> Facts:
    queue = needed_in(request, "queue")
    found = await source.read(
        subjects.subjects(queue, text_in(request, "state"), text_in(request, "after"), ROWS)
    )
    return {
        "section": "Schedules",
        "queue": queue,
        "subjects": found,
        "rows": ROWS,
        "counts": await source.read(subjects.subject_counts(queue)),
    }


async def _subject(source: Source, request: Request) -> Facts:
    queue, name = needed_in(request, "queue"), needed_in(request, "name")
    found = await source.read(subjects.subject(queue, name))
    return {
        "section": "Schedules",
        "queue": queue,
        "name": name,
        "subject": found,
        "is_missing": found is None,
        "history": await source.read(subjects.subject_history(queue, name, ROWS)) if found else [],
    }


async def _endpoints(source: Source, request: Request) -> Facts:
    return {
        "section": "Endpoints",
        "endpoints": part_of(request, await source.read(endpoints.endpoints()), "endpoint"),
        "types": part_of(request, await source.read(publishing.event_types()), "type"),
    }


async def _endpoint(source: Source, request: Request) -> Facts:
    name = needed_in(request, "name")
    try:
        found = await source.read(endpoints.endpoint(name))
    except EndpointNotFound:
        return {"section": "Endpoints", "name": name, "is_missing": True, "endpoint": None}
    deliveries = await source.read(
        archive.search(
            which=JobFilter(endpoint=name),
            state=None,
            contains=None,
            limit=20,
            before=None,
            budget=_BUDGET,
        )
    )
    return {
        "section": "Endpoints",
        "name": name,
        "endpoint": found,
        "subscriptions": await source.read(publishing.subscriptions(name)),
        "deliveries": deliveries.jobs,
        "groups": await source.read(dead.dead_groups(None, None, None, name)),
    }


async def _mirrors(source: Source, request: Request) -> Facts:
    await source.overview()
    shown = part_of(request, source.data["mirrors"], most=_MIRRORS)
    names = sorted({one["mirror"] for one in shown.rows})
    audits = {name: await source.read(mirrors.mirror_audits(name, 5)) for name in names}
    return {
        "section": "Mirrors",
        "age": source.age_seconds,
        "mirrors": shown,
        "audits": audits,
    }


async def _database(source: Source, _request: Request) -> Facts:
    await source.overview()
    found = await source.read(holders())
    return {
        "section": "Database",
        "holders": sorted(found, key=lambda one: (-one.age, -(one.seconds or 0)))[:_HOLDERS_MAX],
        "age": source.age_seconds,
        "database": source.data["database"],
        "space": source.data["space"],
        "settings": await source.read(queues.settings()),
    }


async def _doctor(source: Source, request: Request) -> Facts:
    examined = await source.doctor.examined()
    return {
        "section": "Database",
        "age": examined.age_seconds,
        "compared": examined.compared_seconds,
        "findings": part_of(request, list(examined.found)),
    }


async def _events(source: Source, request: Request) -> Facts:
    found = await source.read(
        events.events(
            queue=text_in(request, "queue"),
            act=text_in(request, "act"),
            since=instant_in(request, "since"),
            until=instant_in(request, "until"),
            limit=ROWS,
        )
    )
    return {"section": "Events", "events": found, "rows": ROWS}


async def _find(_source: Source, request: Request) -> str:
    what = (text_in(request, "q") or "").strip()
    return f"job?{urlencode({'what': what})}" if what else ""


#: Every page, in the order of the navigation.
PAGES: Final = (
    Page("/", "Overview", "o", "overview.html", _overview, is_shared=True),
    Page("/jobs", "Jobs", "j", "jobs.html", _jobs),
    Page("/failures", "Failures", "f", "failures.html", _failures),
    Page("/workers", "Workers", "w", "workers.html", _workers),
    Page("/keys", "Keys", "k", "keys.html", _keys),
    Page("/schedules", "Schedules", "s", "schedules.html", _schedules),
    Page("/endpoints", "Endpoints", "e", "endpoints.html", _endpoints),
    Page("/mirrors", "Mirrors", "m", "mirrors.html", _mirrors),
    Page("/database", "Database", "d", "database.html", _database),
    Page("/events", "Events", "v", "events.html", _events),
    Page("/queue", "", "", "queue.html", _queue),
    Page("/job", "", "", "job.html", _job),
    Page("/cause", "", "", "cause.html", _cause),
    Page("/schedule", "", "", "schedule.html", _schedule),
    Page("/subjects", "", "", "subjects.html", _subjects),
    Page("/subject", "", "", "subject.html", _subject),
    Page("/endpoint", "", "", "endpoint.html", _endpoint),
    Page("/doctor", "", "", "doctor.html", _doctor),
    Page("/find", "", "", "", _find),
)
