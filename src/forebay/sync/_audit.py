"""Comparing both stores from end to end, in the order of the ids.

A comparison under live writes sees differences that are none: an item changed between the two scans, or its job is still in
its grace. So what looks wrong is only a *suspect*. It is looked at again, by id, after a time in which its job should have ended, and
against the version that the source had when it was scanned: a copy that is behind *that* one is drift.
Invariant "no false alarm": docs/design/reconcile.md. Shown by: tests/sync/test_audit.py.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from forebay.errors import ConfigError, shown
from forebay.sync._model import Document, Gone, Seen, checked_entries, checked_seen

if TYPE_CHECKING:
    from collections.abc import Iterable

    from forebay.sync._background import Calls
    from forebay.sync._model import Id, Source, Target

PAGE_DEFAULT: Final = 1000
PAGE_MAX: Final = 10_000

#: Suspects in memory before the scan waits for their second look.
_SUSPECTS_MAX: Final = 50_000


@dataclass(slots=True)
class Drift:
    """How far a target is from its source.

    Attributes:
        missing: ids of items without a copy.
        stale: ids of items whose copy is older than the item was when it was scanned.
        orphaned: ids of copies whose item is gone.
        ahead: ids of copies that are newer than their item: the source went back.
        items: items scanned.
        copies: copies scanned.
        suspects: what looked wrong at first and was looked at again.
        seconds: how long it took.
    """

    missing: list[Id] = field(default_factory=list)
    stale: list[Id] = field(default_factory=list)
    orphaned: list[Id] = field(default_factory=list)
    ahead: list[Id] = field(default_factory=list)
    items: int = 0
    copies: int = 0
    suspects: int = 0
    seconds: float = 0.0

    @property
    def total(self) -> int:
        """How many items and copies are wrong."""
        return len(self.missing) + len(self.stale) + len(self.orphaned) + len(self.ahead)

    @property
    def repairable(self) -> list[Id]:
        """What a job can make right: all but copies that are newer than their item."""
        return [*self.missing, *self.stale, *self.orphaned]


class Auditor:
    """One comparison.

    Args:
        source: the first store.
        target: the second.
        calls: how both are called.
        call_seconds: how long one call may take.
        settle_seconds: so long after it was scanned a suspect is looked at again.
        page: rows of one read.
        rows_per_second: most rows read of both stores together.
    """

    def __init__(
        self,
        source: Source,
        target: Target,
        *,
        calls: Calls,
        call_seconds: float,
        settle_seconds: float,
        page: int,
        rows_per_second: float,
    ) -> None:
        self._source = source
        self._target = target
        self._calls = calls
        self._seconds = call_seconds
        self._settle = settle_seconds
        self._page = page
        self._pace = rows_per_second
        self._begun = time.monotonic()
        self._rows = 0
        self._drift = Drift()
        #: When it was scanned, the id, and the version that the source had; None for a copy without an item.
        self._suspects: deque[tuple[float, Id, int | None]] = deque()

    async def run(self) -> Drift:
        """Compare everything; return what is wrong.

        Raises:
            ConfigError: a scan is not in the order of the ids.
            Exception: what a store raises.
        """
        after: Id | None = None
        while True:
            items = await self._scan_source(after)
            until = items[-1][0] if len(items) >= self._page else None
            copies = dict(await self._scan_target(after, until))
            now = time.monotonic()
            for name, version in items:
                seen = copies.pop(name, None)
                if seen is None or seen.version != version:
                    self._suspects.append((now, name, version))
            self._suspects.extend((now, name, None) for name in copies)
            if until is None:
                break
            while len(self._suspects) >= _SUSPECTS_MAX:
                await self._look_again()
            after = until
        while self._suspects:
            await self._look_again()
        self._drift.seconds = time.monotonic() - self._begun
        return self._drift

    async def _scan_source(self, after: Id | None) -> list[tuple[Id, int]]:
        found = list(await self._call(self._source.scan, after, self._page))
        self._check_order("source", after, found)
        self._drift.items += len(found)
        await self._paced(len(found))
        return found

    async def _scan_target(self, after: Id | None, until: Id | None) -> list[tuple[Id, Seen]]:
        """Return all copies in a range; there may be more of them than items."""
        found: list[tuple[Id, Seen]] = []
        while True:
            page = list(await self._call(self._target.scan, after, until, self._page))
            self._check_order("target", after, page)
            found += [(name, seen if isinstance(seen, Seen) else Seen(seen)) for name, seen in page]
            self._drift.copies += len(page)
            await self._paced(len(page))
            if len(page) < self._page:
                return found
            after = page[-1][0]

    async def _look_again(self) -> None:
        """Look at the oldest suspects by id, when their time has come."""
        part = [self._suspects.popleft() for _ in range(min(self._page, len(self._suspects)))]
        await asyncio.sleep(max(0.0, part[-1][0] + self._settle - time.monotonic()))
        ids = [name for _, name, _ in part]
        # As in a pass: the target first, so that its copies cannot be newer than what is read of the source.
        seen = checked_seen(await self._call(self._target.read, ids))
        entries = checked_entries(ids, await self._call(self._source.read, ids))
        self._drift.suspects += len(part)
        await self._paced(2 * len(part))
        for _, name, version in part:
            wrong = self._judge(entries[name], seen.get(name), version)
            if wrong is not None:
                wrong.append(name)

    def _judge(
        self, entry: Document | Gone, seen: Seen | None, version: int | None
    ) -> list[Id] | None:
        """Return the list that a suspect belongs to; None when all is well, or it has changed since and has a job."""
        if isinstance(entry, Gone):
            return self._drift.orphaned if seen is not None and version is None else None
        if version is None:
            return None
        if seen is None:
            return self._drift.missing
        if seen.version > entry.version:
            return self._drift.ahead
        return self._drift.stale if seen.version < version else None

    async def _paced(self, rows: int) -> None:
        self._rows += rows
        await asyncio.sleep(max(0.0, self._begun + self._rows / self._pace - time.monotonic()))

    async def _call(self, function: Any, *args: Any) -> Any:
        return await self._calls.call(function, *args, seconds=self._seconds)

    @staticmethod
    def _check_order(store: str, after: Id | None, page: Iterable[tuple[Any, Any]]) -> None:
        last: Any = after
        for name, _ in page:
            if last is not None and not last < name:
                raise ConfigError(
                    f"{store}.scan()",
                    f"gave id {shown(name)} behind {shown(last)}",
                    hint='Numbers in their order, texts in the order of their bytes: collate "C".',
                )
            last = name
