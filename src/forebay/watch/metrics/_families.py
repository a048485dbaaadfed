"""The metrics: their names, their labels, and how measurements become samples.

The names are stable: tools/write_tables.py lists them in docs/reference/metrics.md. A name, a label
or a meaning changes with a major version only. No label holds an id or a key of a job. The values
of a label that users choose are capped; what is beyond is added up under ``other``.

Invariant "no counter goes back": which values of a counter are beyond follows from the order in
which they first had a job, and not from their size. A value that has moved to ``other`` would take
its count along. The database keeps the order, so all processes agree.
"""

from __future__ import annotations

import math
from dataclasses import field
from typing import TYPE_CHECKING, Any, Final, Literal

from forebay._dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

#: Most values of a capped label in one metric; one of them is ``other``.
VALUES_MAX: Final = 200
OTHER: Final = "other"

Sample = tuple[tuple[str, ...], float]
Sort = Literal["gauge", "counter", "histogram"]


@dataclass(slots=True)
class Family:
    """One metric.

    Attributes:
        name: without a suffix; the one of a counter ends with ``_total``.
        type: gauge, counter or histogram. The last value of a sample of a histogram is the bound
            ``le``, or sum or count.
        help: its meaning, one line.
        labels: the names of its labels.
        samples: values of the labels, and the value.
            A counter or histogram has them in the order in which their labels first had a job.
        capped: the number of labels, from the first on, whose values are capped together.
        combine: how samples become one under ``other``.
        folded: how many label sets the samples have under ``other`` already.
    """

    name: str
    type: Sort
    help: str
    labels: tuple[str, ...] = ()
    samples: list[Sample] = field(default_factory=list)
    capped: int = 1
    combine: Literal["sum", "max"] = "sum"
    folded: int = 0

    def kept(self, most: int) -> tuple[set[tuple[str, ...]], int]:
        """Return the values of the capped labels that are shown by name, of at most this many with
        ``other``, and how many are under ``other``.

        Those of a gauge are the largest, those of a counter the first.
        """
        size = min(self.capped, len(self.labels))
        weights: dict[tuple[str, ...], float] = {}
        for values, value in self.samples:
            weights[values[:size]] = weights.get(values[:size], 0.0) + abs(value)
        if len(weights) <= most:
            kept = set(weights)
        elif self.type == "gauge":
            kept = set(sorted(weights, key=lambda key: (-weights[key], key))[: most - 1])
        else:
            kept = set(list(weights)[: most - 1])
        return kept, self.folded + len(weights) - len(kept)

    def within(self, most: int = VALUES_MAX) -> list[Sample]:
        """Return the samples with at most this many values of the capped labels, see ``kept``."""
        size = min(self.capped, len(self.labels))
        kept, _ = self.kept(most)
        merged: dict[tuple[str, ...], float] = {}
        for values, value in self.samples:
            at = values if values[:size] in kept else (*(OTHER,) * size, *values[size:])
            if at not in merged:
                merged[at] = value
            elif self.combine == "sum":
                merged[at] += value
            else:
                merged[at] = max(merged[at], value)
        return list(merged.items())


#: Name, type, help and labels.
Described = tuple[str, Sort, str, tuple[str, ...]]

#: The same, and the samples of the measurements.
_Definition = tuple[
    str,
    Sort,
    str,
    tuple[str, ...],
    "Callable[[Mapping[str, Any]], Iterable[Sample]]",
]

_STATES: Final = ("scheduled", "ready", "claimed", "running", "retrying")
#: The counters know which jobs a worker has, and heartbeats which of them run.
_FOLDED_STATES: Final = ("scheduled", "ready", "claimed", "retrying")
_QUEUE: Final = ("queue", "group")
_OF_JOB: Final = ("kind", "tag", "priority")


def _in_order(each: Mapping[str, Any]) -> tuple[float, str]:
    """Return when a queue and group came; queues that no group has opened have counted nothing."""
    came = each["first"] if "first" in each else each["created_at"]
    return (math.inf if came is None else came, each["queue"])


def _of_queues(name: str) -> Callable[[Mapping[str, Any]], Iterable[Sample]]:
    return lambda data: [
        ((q["queue"], q["group"]), float(q[name])) for q in sorted(data["queues"], key=_in_order)
    ]


def _of_endpoints(name: str) -> Callable[[Mapping[str, Any]], Iterable[Sample]]:
    return lambda data: [
        ((e["endpoint"],), float(e[name])) for e in data["endpoints"] if e[name] is not None
    ]


def _of_mirrors(name: str) -> Callable[[Mapping[str, Any]], Iterable[Sample]]:
    return lambda data: [
        ((m["mirror"],), float(m[name])) for m in data["mirrors"] if m[name] is not None
    ]


def _of_database(name: str) -> Callable[[Mapping[str, Any]], Iterable[Sample]]:
    return lambda data: (
        [] if data["database"][name] is None else [((), float(data["database"][name]))]
    )


def _of_space(name: str) -> Callable[[Mapping[str, Any]], Iterable[Sample]]:
    return lambda data: [] if data["space"][name] is None else [((), float(data["space"][name]))]


def _writable(data: Mapping[str, Any]) -> Iterable[Sample]:
    """Return what this process tried; without that, what the last check of the alerts found."""
    if "write_failed" in data:
        return [((), float(data["write_failed"] is None))]
    return [((), float(all(alert["code"] != "writes" for alert in data["alerts"])))]


def _jobs(data: Mapping[str, Any]) -> Iterable[Sample]:
    for queue in data["queues"]:
        for state in _STATES:
            yield (queue["queue"], queue["group"], state), float(queue[state])


def _oldest(data: Mapping[str, Any]) -> Iterable[Sample]:
    for queue in data["queues"]:
        oldest = queue["oldest_ready_at"]
        age = 0.0 if oldest is None else max(0.0, data["at"] - oldest)
        yield (queue["queue"], queue["group"]), age


def _paused(data: Mapping[str, Any]) -> Iterable[Sample]:
    return [((q["queue"], q["group"]), float(q["paused_at"] is not None)) for q in data["queues"]]


_ENDS: Final = (
    "done", "failed", "dead", "expired", "cancelled", "snoozed", "released", "lost",
)  # fmt: skip


def _ends(data: Mapping[str, Any]) -> Iterable[Sample]:
    for cell in sorted(data["counters"]["cells"], key=_in_order):
        for end in _ENDS:
            yield (cell["queue"], cell["group"], cell["kind"] or OTHER, end), float(cell[end])


def _by_tag(names: Sequence[str]) -> Callable[[Mapping[str, Any]], Iterable[Sample]]:
    """Return some numbers of each label set; those without a place are one set of their group."""

    def samples(data: Mapping[str, Any]) -> Iterable[Sample]:
        for one in data["label_sets"] or ():
            which = (OTHER, OTHER, OTHER)
            if one["place"] is not None:
                which = (one["kind"], one["tag"] or "", str(one["priority"]))
            for name in names:
                yield (one["queue"], one["group"], *which, name), float(one[name])

    return samples


def _histogram(buckets: str, total: str) -> Callable[[Mapping[str, Any]], Iterable[Sample]]:
    """Return the buckets of all kinds of a queue, cumulated, with sum and count."""

    def samples(data: Mapping[str, Any]) -> Iterable[Sample]:
        bounds = [f"{bound / 1000:g}" for bound in data["counters"]["bounds"]] + ["+Inf"]
        found: dict[tuple[str, str], tuple[list[float], list[float]]] = {}
        for cell in sorted(data["counters"]["cells"], key=_in_order):
            counts, sums = found.setdefault(
                (cell["queue"], cell["group"]), ([0.0] * len(bounds), [0.0])
            )
            for place, count in enumerate(cell[buckets][: len(bounds)]):
                counts[place] += count
            sums[0] += cell[total] / 1000
        for key, (counts, sums) in found.items():
            reached = 0.0
            for bound, count in zip(bounds, counts, strict=True):
                reached += count
                yield (*key, bound), reached
            yield (*key, "sum"), sums[0]
            yield (*key, "count"), reached

    return samples


def _dead(data: Mapping[str, Any]) -> Iterable[Sample]:
    found: dict[tuple[str, ...], float] = {}
    for dead in data["dead"]:
        key = (dead["queue"], dead["kind"], dead["reason"])
        found[key] = found.get(key, 0.0) + dead["dead"]
    return found.items()


def _workers(data: Mapping[str, Any]) -> Iterable[Sample]:
    found = {("alive",): 0.0, ("silent",): 0.0}
    for worker in data["workers"]:
        found["alive" if worker["is_alive"] else "silent",] += 1
    return found.items()


def _memory(data: Mapping[str, Any]) -> Iterable[Sample]:
    return [((), float(sum(w["memory_bytes"] or 0 for w in data["workers"] if w["is_alive"])))]


def _slots(data: Mapping[str, Any]) -> Iterable[Sample]:
    return [((), float(sum(w["concurrency"] or 0 for w in data["workers"] if w["is_alive"])))]


def _calls(data: Mapping[str, Any]) -> Iterable[Sample]:
    for endpoint in data["endpoints"]:
        for outcome in ("accepted", "failed", "rejected", "dropped"):
            yield (endpoint["endpoint"], outcome), float(endpoint[f"{outcome}_per_second"] or 0)


def _breakers(data: Mapping[str, Any]) -> Iterable[Sample]:
    for endpoint in data["endpoints"]:
        yield ("endpoint", endpoint["endpoint"]), float(endpoint["breaker"] != "closed")
    for mirror in data["mirrors"]:
        yield ("mirror", mirror["mirror"]), float(bool(mirror["breakers"]))


def _breaker_states(data: Mapping[str, Any]) -> Iterable[Sample]:
    for endpoint in data["endpoints"]:
        for state in ("closed", "half-open", "open"):
            yield (endpoint["endpoint"], state), float(endpoint["breaker"] == state)


def _oldest_delivery(data: Mapping[str, Any]) -> Iterable[Sample]:
    for endpoint in data["endpoints"]:
        since = endpoint["waiting_since"]
        yield (endpoint["endpoint"],), 0.0 if since is None else max(0.0, data["at"] - since)


def _full(data: Mapping[str, Any]) -> Iterable[Sample]:
    for endpoint in data["endpoints"]:
        yield (endpoint["endpoint"],), float(endpoint["is_full"] or endpoint["is_overfull"])


def _open_keys(data: Mapping[str, Any]) -> Iterable[Sample]:
    return [((one["queue"],), float(one["open"])) for one in data["breakers"]]


def _missed(data: Mapping[str, Any]) -> Iterable[Sample]:
    return [((s["schedule"],), float(s["missed"])) for s in data["schedules"]]


def _subjects(data: Mapping[str, Any]) -> Iterable[Sample]:
    return [((s["queue"], s["state"]), float(s["subjects"])) for s in data["subjects"]]


def _duties(data: Mapping[str, Any]) -> Iterable[Sample]:
    return [((), float(len(data["database"]["duties"])))]


def _checked(data: Mapping[str, Any]) -> Iterable[Sample]:
    return [] if data["checked_at"] is None else [((), float(data["checked_at"]))]


_DATABASE: Final[tuple[_Definition, ...]] = (
    ("forebay_jobs", "gauge", "Jobs that have not ended, by state.", (*_QUEUE, "state"), _jobs),
    (
        "forebay_cancelled_jobs",
        "gauge",
        "Jobs that were cancelled while they were ready, and that no worker has passed yet.",
        _QUEUE,
        _of_queues("cancelled"),
    ),
    ("forebay_queue_oldest_ready_seconds", "gauge", (
            "Age of the oldest ready job; 0 without "
            "one."
            ), _QUEUE, _oldest),
    ("forebay_queue_claims_total", "counter", (
            "Jobs that workers claimed; a retried job counts "
            "again."
            ), _QUEUE, _of_queues("claims")),
    ("forebay_queue_recently_completed", "gauge", (
            "Jobs completed within the last 15 minutes, by the counters up to the last "
            "fold."
            ), _QUEUE, _of_queues("completed")),
    ("forebay_job_ends_total", "counter", (
            "Ends of jobs and attempts, at the last fold of the "
            "counters."
            ), (*_QUEUE, "kind", "outcome"), _ends),
    ("forebay_job_ends_by_tag_total", "counter", (
            "The same by tag and priority too, if the setting metric_label_sets allows it."
            ), (*_QUEUE, *_OF_JOB, "outcome"), _by_tag(_ENDS)),
    ("forebay_jobs_by_tag", "gauge", (
            "Jobs that have not ended, by state, at the last fold of the counters, if the setting "
            "metric_label_sets allows it; those that run are among the claimed ones."
            ), (*_QUEUE, *_OF_JOB, "state"), _by_tag(_FOLDED_STATES)),
    ("forebay_job_wait_seconds", "histogram", (
            "From enqueue to claim, of jobs that were enqueued to run at "
            "once."
            ), _QUEUE, _histogram("waits", "wait_ms")),
    ("forebay_job_duration_seconds", "histogram", (
            "How long handlers ran, of attempts that were done, failed, died, snoozed or were "
            "cancelled; not of those that were released or cut off."
            ), _QUEUE, _histogram("durations", "duration_ms")),
    ("forebay_queue_paused", "gauge", "Whether the queue is paused.", _QUEUE, _paused),
    ("forebay_queue_served", "gauge", (
            "Whether a live worker, or a tick, "
            "serves the queue."
            ), _QUEUE, _of_queues("is_served")),
    ("forebay_dead_letters", "gauge", (
            "Dead letters that were not redriven, without muted "
            "causes."
            ), ("queue", "kind", "reason"), _dead),
    ("forebay_workers", "gauge", "Workers with an open lease.", ("state",), _workers),
    ("forebay_workers_memory_bytes", "gauge", "Resident memory of all live workers.", (), _memory),
    ("forebay_workers_slots", "gauge", "Jobs that all live workers can run at a time.", (), _slots),
    ("forebay_endpoint_waiting", "gauge", (
            "Parked deliveries: those that a deliverer met and that wait for the endpoint, without "
            "those that wait for a retry."
            ), ("endpoint",), _of_endpoints("waiting")),
    ("forebay_endpoint_oldest_waiting_seconds", "gauge", (
            "For how long the first of them has waited."
            ), ("endpoint",), _oldest_delivery),
    ("forebay_endpoint_full", "gauge", (
            "Whether as many deliveries are parked as max_waiting allows: messages are refused, "
            "and events refused or dropped."
            ), ("endpoint",), _full),
    ("forebay_endpoint_dead_letters", "gauge", (
            "Dead letters of the endpoint that were not redriven, at most "
            "10,000."
            ), ("endpoint",), _of_endpoints("dead")),
    ("forebay_endpoint_breaker", "gauge", (
            "Whether the breaker is in this state: closed, half-open or "
            "open."
            ), ("endpoint", "state"), _breaker_states),
    ("forebay_endpoint_disabled", "gauge", (
            "Whether the endpoint is "
            "disabled."
            ), ("endpoint",), _of_endpoints("is_disabled")),
    ("forebay_endpoint_calls_per_second", "gauge", (
            "Calls in the last two minutes, and events that were dropped without a "
            "call."
            ), ("endpoint", "outcome"), _calls),
    ("forebay_endpoint_latency_p99_seconds", "gauge", (
            "99 % of the accepted deliveries took at most this long since "
            "publication."
            ), ("endpoint",), _of_endpoints("p99_seconds")),
    ("forebay_breaker_open", "gauge", "Whether a breaker is open.", ("sort", "name"), _breakers),
    ("forebay_queue_open_breakers", "gauge", (
            "Limit keys whose breaker is open, at most 10,000 in "
            "all."
            ), ("queue",), _open_keys),
    ("forebay_mirror_due", "gauge", (
            "Due jobs of a mirror, at its last "
            "sample."
            ), ("mirror",), _of_mirrors("due")),
    ("forebay_mirror_drift", "gauge", (
            "Differences that the last audit "
            "found."
            ), ("mirror",), _of_mirrors("drift")),
    ("forebay_schedule_recently_missed", "gauge", (
            "Instants missed within the last 15 "
            "minutes."
            ), ("schedule",), _missed),
    ("forebay_subjects", "gauge", "Subjects, by state.", ("queue", "state"), _subjects),
    ("forebay_database_snapshot_seconds", "gauge", (
            "Age of the oldest transaction that holds a "
            "snapshot."
            ), (), _of_database("snapshot_seconds")),
    ("forebay_database_prepared_seconds", "gauge", (
            "Age of the oldest prepared "
            "transaction."
            ), (), _of_database("prepared_seconds")),
    ("forebay_database_dead_rows", "gauge", (
            "Dead rows in the tables of the schema, as the statistics have "
            "them."
            ), (), _of_database("dead_rows")),
    ("forebay_database_writable", "gauge", "Whether a write succeeds.", (), _writable),
    ("forebay_database_bytes", "gauge", "Size of the database.", (), _of_space("database_bytes")),
    ("forebay_database_growth_bytes", "gauge", (
            "By how much the database grows in a day, as the last day "
            "shows."
            ), (), _of_space("growth_bytes")),
    ("forebay_schema_bytes", "gauge", (
            "Size of the tables of the schema, with the "
            "log."
            ), (), _of_space("schema_bytes")),
    ("forebay_log_bytes", "gauge", "Size of all segments.", (), _of_space("log_bytes")),
    ("forebay_log_rows_total", "counter", (
            "Numbers of log rows that were "
            "drawn."
            ), (), _of_database("numbers_drawn")),
    ("forebay_log_numbers_left", "gauge", (
            "Numbers for which a segment "
            "exists."
            ), (), _of_database("numbers_left")),
    ("forebay_log_segments", "gauge", "Segments in use.", (), _of_database("segments")),
    ("forebay_maintenance_duties_failing", "gauge", (
            "Duties of maintenance that fail or are "
            "behind."
            ), (), _duties),
    ("forebay_alerts_checked_timestamp_seconds", "gauge", (
            "When the alerts were checked "
            "last."
            ), (), _checked),
)  # fmt: skip

_ALERT: Final = (
    "forebay_alert",
    "gauge",
    "1 for each alert that fires.",
    ("code", "subject", "group", "severity"),
)
_FOLDED: Final = (
    "forebay_label_sets_folded",
    "gauge",
    "Label sets that another metric adds up under other.",
    ("metric",),
)
_UP: Final = ("forebay_up", "gauge", "Whether the database answered.")
_SCRAPE: Final = ("forebay_scrape_duration_seconds", "gauge", "How long the database took.")

#: Of one worker process: name, type, help, labels.
WORKER: Final[tuple[tuple[str, Literal["gauge", "counter"], str, tuple[str, ...]], ...]] = (
    ("forebay_worker_claimed_jobs_total", "counter", "Jobs that this process claimed.", ()),
    ("forebay_worker_attempts_total", "counter", (
            "Attempts that ended in this "
            "process."
            ), ("outcome",)),
    ("forebay_worker_steps_total", "counter", (
            "Functions of steps of flows that ended in this process, "
            "without those of handlers in other processes."
            ), ("kind", "outcome")),
    ("forebay_worker_leases_lost_total", "counter", "Leases that this process lost.", ()),
    ("forebay_worker_reconnects_total", "counter", (
            "How often claims of this process lost the "
            "database."
            ), ()),
    ("forebay_worker_listener_errors_total", "counter", (
            "Exceptions of listeners in this "
            "process."
            ), ()),
    ("forebay_worker_live", "gauge", "Whether the event loop of this process runs.", ()),
    ("forebay_worker_ready", "gauge", "Whether this process claims jobs.", ()),
)  # fmt: skip

#: Metrics of which ``other`` has the largest value instead of the sum.
_LARGEST: Final = frozenset({
    "forebay_queue_oldest_ready_seconds", "forebay_endpoint_oldest_waiting_seconds",
    "forebay_queue_paused", "forebay_queue_served",
    "forebay_endpoint_disabled", "forebay_endpoint_full", "forebay_endpoint_latency_p99_seconds",
    "forebay_breaker_open", "forebay_alert",
})  # fmt: skip

#: The number of labels that are capped together; 1 where nothing is listed.
_CAPPED: Final = {
    "forebay_job_ends_total": 3,
    "forebay_dead_letters": 2,
    "forebay_breaker_open": 2,
    "forebay_alert": 3,
}

_BY_TAG: Final = frozenset({"forebay_job_ends_by_tag_total", "forebay_jobs_by_tag"})

#: Of a database: name, type, help, labels.
DATABASE: Final[tuple[Described, ...]] = (
    (*_UP, ()),
    (*_SCRAPE, ()),
    *(each[:4] for each in _DATABASE),
    _ALERT,
    _FOLDED,
)


def metric_names() -> dict[str, tuple[str, ...]]:
    """Return all names with their labels."""
    return {name: labels for name, _, _, labels in sorted((*DATABASE, *WORKER))}


def families_of(
    data: Mapping[str, Any] | None, alerts: Sequence[Any], seconds: float
) -> list[Family]:
    """Return the metrics of a database; without data, that it did not answer."""
    found = [
        Family(*_UP, samples=[((), float(data is not None))]),
        Family(*_SCRAPE, samples=[((), seconds)]),
    ]
    if data is None:
        return found
    for name, sort, text, labels, samples in _DATABASE:
        found.append(_family(name, sort, text, labels, list(samples(data))))
    firing: list[Sample] = [((a.code, a.subject, a.group, a.severity), 1.0) for a in alerts]
    found.append(_family(_ALERT[0], "gauge", _ALERT[2], _ALERT[3], firing))
    unnamed = sum(one["sets"] for one in data["label_sets"] or () if one["place"] is None)
    for family in found:
        if family.name in _BY_TAG:
            family.folded = unnamed
    return found


def folded_of(families: Iterable[Family], most: int = VALUES_MAX) -> Family:
    """Return how much each metric whose label sets are capped has under ``other``."""
    found: list[Sample] = [
        ((family.name,), float(family.kept(most)[1]))
        for family in families
        if family.labels and family.samples
    ]
    # The names are those of metrics, so this one needs no cap.
    return Family(_FOLDED[0], "gauge", _FOLDED[2], _FOLDED[3], found, capped=0)


def _family(
    name: str,
    sort: Sort,
    text: str,
    labels: tuple[str, ...],
    samples: list[Sample],
) -> Family:
    capped = _CAPPED.get(name, 2 if labels[:2] == _QUEUE else 1)
    return Family(name, sort, text, labels, samples, capped, "max" if name in _LARGEST else "sum")


def text_of(families: Iterable[Family], most: int = VALUES_MAX) -> str:
    """Return the text that Prometheus scrapes; metrics without samples are left out."""
    lines = []
    for family in families:
        samples = family.within(most)
        if not samples:
            continue
        lines.append(f"# HELP {family.name} {family.help}")
        lines.append(f"# TYPE {family.name} {family.type}")
        for at, value in samples:
            name, names, values = _placed(family, at)
            labels = ",".join(
                f'{label}="{_escaped(text)}"' for label, text in zip(names, values, strict=True)
            )
            lines.append(
                f"{name}{{{labels}}} {_number(value)}" if labels else f"{name} {_number(value)}"
            )
    return "\n".join(lines) + "\n"


def _placed(
    family: Family, values: tuple[str, ...]
) -> tuple[str, tuple[str, ...], tuple[str, ...]]:
    """Return name, labels and their values of a sample."""
    if family.type != "histogram":
        return family.name, family.labels, values
    if values[-1] in ("sum", "count"):
        return f"{family.name}_{values[-1]}", family.labels, values[:-1]
    return f"{family.name}_bucket", (*family.labels, "le"), values


def _escaped(text: str) -> str:
    r"""Return the value of a label.

    >>> print(_escaped('a"b\\c'))
    a\"b\\c
    """
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def _number(value: float) -> str:
    if math.isfinite(value) and value == int(value) and abs(value) < 1e15:
        return str(int(value))
    return repr(value)
