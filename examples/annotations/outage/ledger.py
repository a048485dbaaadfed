"""Counts in both databases, by plain SQL."""

from dataclasses import dataclass, field
from typing import Any, LiteralString

import psycopg

from annotations.outage.machine import Use, share_of_others

ITEMS = "select annotation_id, version from annotation where not deleted"
COPIES = "select id, version from documents where not gone"
JOBS = (
    "select coalesce(sum(scheduled + ready + claimed + running + retrying), 0)::int from "
    "forebay.depth('mirror')"
)
#: Every answered write incremented the version of an annotation, which begins with one.
WRITES = "select coalesce(sum(version), 0)::int from annotation where 'load' = any (tags)"
OLD_ITEMS = "select annotation_id from old_annotation"
OLD_COPIES = "select id from old_documents where not gone"

#: A stretch of the time in which others use the machine.
_STRETCH_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Counts:
    """How far the index is from the annotations.

    Attributes:
        items: annotations.
        missing: without a copy.
        stale: whose copy is older.
        orphaned: copies whose annotation is deleted.
        jobs: not ended.
        old_items: annotations of the service with the old order.
        old_missing: of these without a copy.
    """

    items: int
    missing: int
    stale: int
    orphaned: int
    jobs: int
    old_items: int
    old_missing: int

    @property
    def behind(self) -> int:
        return self.missing + self.stale + self.orphaned


class Ledger:
    """Counts in both databases, on direct connections that bypass the cut."""

    def __init__(self, dsn: str, target: str) -> None:
        self._items: psycopg.Connection[Any] = psycopg.connect(dsn, autocommit=True)
        self._copies: psycopg.Connection[Any] = psycopg.connect(target, autocommit=True)

    def close(self) -> None:
        self._items.close()
        self._copies.close()

    def counts(self) -> Counts:
        # Copies first: a copy that is newer than the item is of a change between the two looks.
        copies = dict(self._copies.execute(COPIES).fetchall())
        old_copies = {name for (name,) in self._copies.execute(OLD_COPIES)}
        with self._items.transaction():
            self._items.execute("set transaction isolation level repeatable read")
            items = dict(self._items.execute(ITEMS).fetchall())
            old_items = {name for (name,) in self._items.execute(OLD_ITEMS)}
            jobs: int = self._one(JOBS)
        return Counts(
            items=len(items),
            missing=len(items.keys() - copies.keys()),
            stale=sum(copies.get(name, version) < version for name, version in items.items()),
            orphaned=len(copies.keys() - items.keys()),
            jobs=jobs,
            old_items=len(old_items),
            old_missing=len(old_items - old_copies),
        )

    def writes(self) -> int:
        return self._one(WRITES)

    def _one(self, query: LiteralString) -> int:
        row = self._items.execute(query).fetchone()
        assert row is not None
        return int(row[0])


@dataclass(slots=True)
class Request:
    """One request of the load."""

    kind: str
    at: float
    seconds: float
    is_done: bool


@dataclass(slots=True)
class Record:
    """All observations, with times in seconds since the load began.

    Attributes:
        requests: in the order in which they ended.
        counts: how far the index was, over time.
        measured_at: when the rate was known.
        cut_at: when broker and index became a black hole.
        healed_at: when they answered again.
        caught_up_at: when the backlog was worked off, under load.
        ended_at: when the load ended.
        equal_at: when the index was right, with no job left.
        uses: the use of the machine, over time; None where the system does not report it.
    """

    requests: list[Request] = field(default_factory=list[Request])
    counts: list[tuple[float, Counts]] = field(default_factory=list[tuple[float, Counts]])
    measured_at: float = 0.0
    cut_at: float | None = None
    healed_at: float | None = None
    caught_up_at: float | None = None
    ended_at: float | None = None
    equal_at: float | None = None
    uses: list[tuple[float, Use | None]] = field(default_factory=list[tuple[float, "Use | None"]])

    def writes(self) -> list[Request]:
        return [r for r in self.requests if r.kind in ("create", "edit", "delete")]

    def before(self, requests: list[Request]) -> list[Request]:
        """Return those that ended before the outage, at the steady rate."""
        cut_at = self.cut_at if self.cut_at is not None else float("inf")
        return [r for r in requests if r.at >= self.measured_at and r.at + r.seconds < cut_at]

    def during(self, requests: list[Request]) -> list[Request]:
        """Return those that ended in the outage, or began in it."""
        if self.cut_at is None:
            return []
        healed_at = self.healed_at if self.healed_at is not None else float("inf")
        return [r for r in requests if r.at < healed_at and r.at + r.seconds >= self.cut_at]

    def after(self, requests: list[Request]) -> list[Request]:
        return [] if self.healed_at is None else [r for r in requests if r.at >= self.healed_at]

    def share_of_others(self, begin: float | None, end: float | None) -> float | None:
        """Return the largest share of the machine that others used between two times, in about ten
        seconds: one request in a hundred can be slow by no more than that.

        None if it is not known.
        """
        if begin is None or end is None:
            return None
        uses = [(at, use) for at, use in self.uses if begin <= at <= end]
        shares: list[float | None] = []
        for place, (began, first) in enumerate(uses):
            later = (use for at, use in uses[place:] if at >= began + _STRETCH_SECONDS)
            last = next(later, None)
            if last is None and shares:
                break
            shares.append(share_of_others(first, last or uses[-1][1]))
        return max((share for share in shares if share is not None), default=None)


def percentile(requests: list[Request], share: float) -> float:
    """Return the milliseconds that a share of the requests did not exceed; 0 if there are none."""
    took = sorted(request.seconds for request in requests)
    return round(1000 * took[min(len(took) - 1, int(share * len(took)))], 1) if took else 0.0
