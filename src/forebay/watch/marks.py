"""Marks on curves: deploys, lost workers, alerts and acts, at the time at which they happened."""

from __future__ import annotations

from bisect import bisect_right
from datetime import timedelta
from itertools import pairwise
from typing import TYPE_CHECKING, Final, NamedTuple

from forebay.model.text import counted

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from datetime import datetime

    from forebay.model.events import Event
    from forebay.model.workers import EndedWorker, WorkerOverview

#: What can happen, the worst first, each with its name.
_SORTS: Final = {"lost": "lost worker", "alert": "alert", "deploy": "deploy", "act": "act"}

#: Marks on a curve: at most one more than these.
MARKS_MAX: Final = 30

#: Texts of a mark.
_TEXTS_MAX: Final = 5


class Happening(NamedTuple):
    """Something that happened.

    Attributes:
        sort: ``lost``, ``alert``, ``deploy`` or ``act``.
        text: in a line.
    """

    at: datetime
    sort: str
    text: str


class Mark(NamedTuple):
    """What happened at about the same time.

    Attributes:
        place: from 0, the left end of a curve, to 1.
        sort: of the worst of it.
        title: of one, what happened; of several, how many of each sort: ``2 alerts, 1 act``.
        texts: what happened, at most six lines; the last may say how many more there are.
        at: when the first of it happened.
        since: a second before the first.
        until: a second after the last.
        is_recorded: whether some of it is in the event log, which has no deploys.
    """

    place: float
    sort: str
    title: str
    texts: Sequence[str]
    at: datetime
    since: datetime
    until: datetime
    is_recorded: bool


def happenings(
    events: Iterable[Event],
    workers: Iterable[WorkerOverview],
    ended: Iterable[EndedWorker],
    queue: str | None = None,
) -> list[Happening]:
    """Return what happened, oldest first; with a queue, only workers that serve it count.

    A deploy is the start of a worker with another ``app_version`` than the worker of the same
    application that started before it. A worker without a version says nothing of deploys.
    """
    gone = list(ended)
    found = [
        Happening(one.at, "alert" if one.act.startswith("alerts.") else "act", _of_event(one))
        for one in events
        if one.act != "workers.lost"  # the worker itself says which queues it served
    ]
    for one in gone:
        if one.how in ("lost", "crashed") and _serves(one, queue):
            signal = f" by signal {one.signal}" if one.signal else ""
            found.append(Happening(one.ended_at, "lost", f"{one.worker} {one.how}{signal}"))
    everyone: list[WorkerOverview | EndedWorker] = [*gone, *workers]
    found += _deploys(one for one in everyone if _serves(one, queue))
    return sorted(found)


def _serves(worker: WorkerOverview | EndedWorker, queue: str | None) -> bool:
    return queue is None or worker.queues is None or queue in worker.queues


def _deploys(workers: Iterable[WorkerOverview | EndedWorker]) -> Iterator[Happening]:
    apps: dict[str, list[tuple[datetime, str]]] = {}
    for one in workers:
        if one.app_version is not None:
            apps.setdefault(one.app or "", []).append((one.started_at, one.app_version))
    for app, starts in apps.items():
        for (_, before), (at, version) in pairwise(sorted(starts)):
            if version != before:
                yield Happening(at, "deploy", f"{app} {version}, after {before}".strip())


def _of_event(event: Event) -> str:
    if event.act.startswith("alerts."):
        place = " ".join(part for part in (event.kind, event.queue) if part)
        return f"{place} {event.act.removeprefix('alerts.')}: {event.detail or ''}"[:200]
    what = (event.queue, event.kind, event.subject_id and str(event.subject_id), event.detail)
    parts = [event.act, *(part for part in what if part), f"by {event.actor or event.role}"]
    return " ".join(parts)[:200]


def marks(found: Iterable[Happening], times: Sequence[datetime]) -> list[Mark]:
    """Return the marks of a curve, oldest first; what is near on the curve is one mark.

    Args:
        found: what happened, oldest first; what is older than the curve is left out.
        times: of the points of the curve, which are drawn at equal distances.
    """
    if len(times) < 2:
        return []
    parts: list[tuple[float, list[Happening]]] = []
    for one in found:
        if one.at < times[0]:
            continue
        place = _place(times, one.at)
        if not parts or place - parts[-1][0] >= 1 / MARKS_MAX:
            parts.append((place, []))
        parts[-1][1].append(one)
    return [_mark(place, part) for place, part in parts]


def _place(times: Sequence[datetime], at: datetime) -> float:
    after = bisect_right(times, at)
    if after == len(times):
        return 1.0
    step = (at - times[after - 1]) / (times[after] - times[after - 1])
    return (after - 1 + step) / (len(times) - 1)


def _mark(place: float, part: Sequence[Happening]) -> Mark:
    counts = {sort: sum(one.sort == sort for one in part) for sort in _SORTS}
    several = ", ".join(counted(many, _SORTS[sort]) for sort, many in counts.items() if many)
    texts = [one.text for one in part[:_TEXTS_MAX]]
    if len(part) > _TEXTS_MAX:
        texts.append(f"and {len(part) - _TEXTS_MAX:,} more")
    return Mark(
        place=place,
        sort=next(sort for sort, many in counts.items() if many),
        title=several if len(part) > 1 else _SORTS[part[0].sort],
        texts=texts,
        at=part[0].at,
        since=part[0].at - timedelta(seconds=1),
        until=part[-1].at + timedelta(seconds=1),
        is_recorded=any(one.sort != "deploy" for one in part),
    )
