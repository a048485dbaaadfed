"""Compare both stores from end to end, in the order of the ids.

Under live writes a comparison sees false differences: an item changed between the two scans, or its
job is still within its grace. So a difference is only a *suspect* at first. After a time in which
its job should have ended, the audit checks it again by id, against the version that the source had
at the scan: a copy older than *that* version is drift.

If both stores can compute the checksum of a range, most rows are never read. A block of pages with
equal checksums needs no scan; of another block, only the pages with different checksums are
scanned. Invariants "no false alarm" and "nothing hides behind a checksum":
docs/design/reconcile.md. Shown by: tests/mirror/test_audit.py.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from dataclasses import field
from typing import TYPE_CHECKING, Any, Final

from forebay._dataclass import dataclass
from forebay.errors import ConfigError, shown
from forebay.mirror._model import (
    Checksum,
    Document,
    Gone,
    Seen,
    checked_entries,
    checked_seen,
    with_digest,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from forebay.mirror._loop_thread import Calls
    from forebay.mirror._model import Id, Source, Target

PAGE_DEFAULT: Final = 1000
PAGE_MAX: Final = 10_000

#: Pages of a block; the checksums of blocks are compared first.
_BLOCK_PAGES: Final = 10

#: With this many suspects in memory, the scan waits for their second check.
_SUSPECTS_MAX: Final = 50_000


@dataclass(slots=True)
class Drift:
    """The difference between a target and its source.

    Attributes:
        missing: ids of items without a copy.
        stale: ids of items whose copy is older than the item was at the scan.
        orphaned: ids of copies whose item is gone.
        ahead: ids of copies that are newer than their item: the source was set back.
        items: items scanned.
        copies: copies scanned.
        suspects: apparent differences that were checked again.
        seconds: how long the audit took.
        compared: "version", or "hash" when the documents were compared too.
        rows: rows read of both stores together, by the stores or by the audit.
        ranges: ranges compared by checksum.
        differed: how many of these were not equal.
        audit_id: the id of its record; None when it could not be recorded.
    """

    missing: list[Id] = field(default_factory=list)
    stale: list[Id] = field(default_factory=list)
    orphaned: list[Id] = field(default_factory=list)
    ahead: list[Id] = field(default_factory=list)
    items: int = 0
    copies: int = 0
    suspects: int = 0
    seconds: float = 0.0
    compared: str = "version"
    rows: int = 0
    ranges: int = 0
    differed: int = 0
    audit_id: int | None = None

    @property
    def rows_per_second(self) -> float:
        """Rows read per second, of both stores together."""
        return self.rows / self.seconds if self.seconds else 0.0

    @property
    def total(self) -> int:
        """The number of wrong items and copies."""
        return len(self.missing) + len(self.stale) + len(self.orphaned) + len(self.ahead)

    @property
    def repairable(self) -> list[Id]:
        """Ids that a job can repair: all except copies that are newer than their item."""
        return [*self.missing, *self.stale, *self.orphaned]


def recorded(drift: Drift) -> dict[str, Any]:
    """Return the record of an audit: numbers, no ids."""
    numbers = ("seconds", "compared", "items", "copies", "rows", "ranges", "differed", "suspects")
    found: dict[str, Any] = {name: getattr(drift, name) for name in numbers}
    for kind in ("missing", "stale", "orphaned", "ahead"):
        found[kind] = len(getattr(drift, kind))
    return found


class Auditor:
    """One comparison.

    Args:
        source: the first store.
        target: the second.
        calls: runs the methods of both.
        call_seconds: how long one call may take.
        settle_seconds: the time between the scan of a suspect and its second check.
        page: rows of one read.
        rows_per_second: the most rows read of both stores together.
        hashes: compare the digests of the documents too, which reads all documents.
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
        hashes: bool = False,
    ) -> None:
        self._source = source
        self._target = target
        self._calls = calls
        self._seconds = call_seconds
        self._settle = settle_seconds
        self._page = page
        self._rows_per_second = rows_per_second
        self._hashes = hashes
        self._sums = (
            not hashes
            and callable(getattr(source, "checksum", None))
            and callable(getattr(target, "checksum", None))
        )
        #: Rows of a block: at most what may be read in a second.
        self._block = max(page, min(_BLOCK_PAGES * page, int(rows_per_second)))
        self._begun = time.monotonic()
        self._free_at = self._begun
        self._drift = Drift(compared="hash" if hashes else "version")
        #: The time of the scan, the id, and the version in the source; None for a copy without an
        #: item.
        self._suspects: deque[tuple[float, Id, int | None]] = deque()

    async def run(self) -> Drift:
        """Compare both stores; return the differences.

        Raises:
            ConfigError: a scan is not in the order of the ids.
            Exception: what a store raises.
        """
        if self._sums:
            await self._compare_blocks()
        else:
            await self._compare(None, None)
        while self._suspects:
            await self._look_again()
        self._drift.seconds = time.monotonic() - self._begun
        return self._drift

    # --- by checksums ---

    async def _compare_blocks(self) -> None:
        after: Id | None = None
        while True:
            is_equal, until = await self._sums_agree(after, None, self._block)
            if not is_equal:
                is_dense = await self._compare_pages(after, until)
                if is_dense and until is not None:
                    # If most pages differ, checksums only add reads, so the next block is scanned
                    # without them.
                    until = await self._compare(until, None, pages=self._block // self._page)
            if until is None:
                return
            after = until

    async def _compare_pages(self, after: Id | None, until: Id | None) -> bool:
        """Compare a range page by page; return whether more than half of the pages differed."""
        pages = differed = 0
        while True:
            is_equal, end = await self._sums_agree(after, until, self._page)
            pages += 1
            if not is_equal:
                differed += 1
                await self._compare(after, end)
            if end == until:
                return 2 * differed > pages
            after = end

    async def _sums_agree(
        self, after: Id | None, until: Id | None, limit: int
    ) -> tuple[bool, Id | None]:
        """Compare the checksums of the next items of the source, and of what the target has in
        their range.

        Return whether they are equal, and where the range ends.
        """
        mine: Checksum = await self._read(self._source.checksum, after, until, limit)  # type: ignore[attr-defined]
        end = mine.last if mine.rows >= limit else until
        # One row more than expected shows that there are more; the exact number does not matter.
        theirs: Checksum = await self._read(self._target.checksum, after, end, mine.rows + 1)  # type: ignore[attr-defined]
        self._drift.ranges += 1
        if (mine.rows, mine.value) == (theirs.rows, theirs.value):
            self._drift.items += mine.rows
            self._drift.copies += theirs.rows
            return True, end
        self._drift.differed += 1
        return False, end

    # --- by rows ---

    async def _compare(
        self, after: Id | None, until: Id | None, *, pages: int | None = None
    ) -> Id | None:
        """Scan a range of both stores, or some pages of it.

        Return the id it reached, None for the end.
        """
        while pages is None or pages > 0:
            items = await self._scan_source(after)
            is_full = len(items) >= self._page
            inside = items if until is None else [item for item in items if not until < item[0]]  # type: ignore[operator]
            is_over = not is_full or len(inside) < len(items)
            end = until if is_over else inside[-1][0]
            copies = dict(await self._scan_target(after, end))
            self._drift.items += len(inside)
            self._drift.copies += len(copies)
            await self._record_suspects(inside, copies)
            if end == until:
                return until
            after = end
            pages = None if pages is None else pages - 1
        return after

    async def _record_suspects(self, items: list[tuple[Id, int]], copies: dict[Id, Seen]) -> None:
        digests = await self._digests(items) if self._hashes else {}
        now = time.monotonic()
        for name, version in items:
            seen = copies.pop(name, None)
            if (
                seen is None
                or seen.version != version
                or (name in digests and digests[name] != seen.digest)
            ):
                self._suspects.append((now, name, version))
        self._suspects.extend((now, name, None) for name in copies)
        while len(self._suspects) >= _SUSPECTS_MAX:
            await self._look_again()

    async def _digests(self, items: list[tuple[Id, int]]) -> dict[Id, str | None]:
        """Return the digests of the items' documents in the source.

        Items that are gone are left out.
        """
        ids = [name for name, _ in items]
        entries = checked_entries(ids, await self._read(self._source.read, ids))
        return {
            name: with_digest(entry).digest
            for name, entry in entries.items()
            if isinstance(entry, Document)
        }

    async def _scan_source(self, after: Id | None) -> list[tuple[Id, int]]:
        found: list[tuple[Id, int]] = await self._read(self._source.scan, after, self._page)
        self._check_order("source", after, found)
        return found

    async def _scan_target(self, after: Id | None, until: Id | None) -> list[tuple[Id, Seen]]:
        """Return all copies in a range; there may be more copies than items."""
        found: list[tuple[Id, Seen]] = []
        while True:
            page = await self._read(self._target.scan, after, until, self._page)
            self._check_order("target", after, page)
            found += [(name, seen if isinstance(seen, Seen) else Seen(seen)) for name, seen in page]
            if len(page) < self._page:
                return found
            after = page[-1][0]

    async def _look_again(self) -> None:
        """Check the oldest suspects again by id, when it is time."""
        part = [self._suspects.popleft() for _ in range(min(self._page, len(self._suspects)))]
        await asyncio.sleep(max(0.0, part[-1][0] + self._settle - time.monotonic()))
        ids = [name for _, name, _ in part]
        # The target first, as in a pass, so that its copies cannot be newer than what the source
        # shows.
        seen = checked_seen(await self._read(self._target.read, ids))
        entries = checked_entries(ids, await self._read(self._source.read, ids))
        self._drift.suspects += len(part)
        for _, name, version in part:
            wrong = self._judge(entries[name], seen.get(name), version)
            if wrong is not None:
                wrong.append(name)

    def _judge(
        self, entry: Document | Gone, seen: Seen | None, version: int | None
    ) -> list[Id] | None:
        """Return the list for a suspect.

        The result is None when the item is right, or has changed since and has a job.
        """
        if isinstance(entry, Gone):
            return self._drift.orphaned if seen is not None and version is None else None
        if version is None:
            return None
        if seen is None:
            return self._drift.missing
        if seen.version > entry.version:
            return self._drift.ahead
        if seen.version < version:
            return self._drift.stale
        if self._hashes and entry.version == version == seen.version:
            return None if with_digest(entry).digest == seen.digest else self._drift.stale
        return None

    async def _read(self, function: Any, *args: Any) -> Any:
        """Call a store, then wait as the rate limit requires for the rows it read.

        Unused rate does not accumulate.
        """
        begun = time.monotonic()
        found = await self._calls.call(function, *args, seconds=self._seconds)
        if isinstance(found, Checksum):
            rows = found.rows
        elif isinstance(args[0], list):
            rows = len(args[0])
        else:
            found = list(found)
            rows = len(found)
        self._drift.rows += rows
        self._free_at = max(self._free_at, begun) + rows / self._rows_per_second
        await asyncio.sleep(max(0.0, self._free_at - time.monotonic()))
        return found

    @staticmethod
    def _check_order(store: str, after: Id | None, page: Iterable[tuple[Any, Any]]) -> None:
        last: Any = after
        for name, _ in page:
            if last is not None and not last < name:
                raise ConfigError(
                    f"{store}.scan()",
                    f"returned id {shown(name)} after {shown(last)}",
                    hint='Sort numbers by value and texts by their bytes: collate "C".',
                )
            last = name
