"""The contract of every target as tests, and a target that misbehaves, for tests of a mirror."""

from __future__ import annotations

import asyncio
import inspect
import random
import threading
import time
from typing import TYPE_CHECKING, Any, Final, Self

from forebay._dataclass import dataclass
from forebay.errors import ConfigError
from forebay.mirror import Document, Gone, Seen, checksum_of
from forebay.model.doors import check_fields

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from forebay.mirror import Id, Target

_LAG_TRIES: Final = 5


class TargetContract:
    """The contract of a target, as tests for pytest.

    Make a subclass whose name begins with ``Test``. Give it ``make_target``, which returns a new
    empty target each time:

        class TestMyTarget(TargetContract):
            def make_target(self):
                return MyTarget(url)

    Methods of the target may be plain or coroutine functions; those of one test run on one event
    loop.

    Attributes:
        ids: three ids of the type that the target takes, in its order.
        body: the body of documents in these tests.
    """

    ids: Sequence[Id] = (1, 2, 10)
    body: Any = {"title": "Weirs", "text": ("A mill needs a weir.")}  # noqa: RUF012 - replaced, not changed

    def make_target(self) -> Target:
        """Return an empty target."""
        raise AssertionError(f"{type(self).__name__} has no make_target()")

    def test_what_was_written_is_read_with_its_version(self) -> None:
        """A document is there after the write, with its version.

        Other ids are missing without an error.
        """
        first, second, _ = self.ids
        with _Driver(self.make_target()) as target:
            target.write([self._document(first, 5)])
            target.expect({first: 5}, [first, second])

    def test_an_empty_call_is_no_error(self) -> None:
        """A call without items does nothing."""
        with _Driver(self.make_target()) as target:
            target.write([])
            target.delete([])
            target.expect({}, [])

    def test_many_are_written_and_deleted_at_once(self) -> None:
        """A bulk call has the same effect on each item as a single call."""
        first, second, third = self.ids
        with _Driver(self.make_target()) as target:
            target.write([self._document(each, 1) for each in self.ids])
            target.expect({first: 1, second: 1, third: 1})
            target.delete([Gone(first), Gone(third)])
            target.expect({second: 1}, self.ids)

    def test_a_newer_document_replaces_an_older_one(self) -> None:
        """A newer version replaces an older one."""
        first = self.ids[0]
        with _Driver(self.make_target()) as target:
            target.write([self._document(first, 1)])
            target.write([self._document(first, 2)])
            target.expect({first: 2})

    def test_an_older_document_never_overwrites_a_newer_one(self) -> None:
        """A process that was paused with an old document and sends it later changes nothing,
        without an error.
        """
        first, second, _ = self.ids
        with _Driver(self.make_target()) as target:
            target.write([self._document(first, 7)])
            target.write([self._document(first, 6), self._document(second, 1)])
            target.expect({first: 7, second: 1})

    def test_the_same_version_is_written_again(self) -> None:
        """A forced write repeats a version; only an older version is ignored."""
        first = self.ids[0]
        with _Driver(self.make_target()) as target:
            target.write([self._document(first, 3)])
            target.write([self._document(first, 3, digest="f00d")])
            target.expect({first: 3})
            seen = target.read([first])[first]
            assert not isinstance(seen, Seen) or seen.digest in (None, "f00d")

    def test_what_was_deleted_is_not_read(self) -> None:
        """A deleted document is gone; deleting a missing document is not an error."""
        first, second, _ = self.ids
        with _Driver(self.make_target()) as target:
            target.write([self._document(first, 1)])
            target.delete([Gone(first), Gone(second)])
            target.expect({}, [first, second])

    def test_an_older_document_does_not_bring_a_deleted_item_back(self) -> None:
        """A deletion is remembered: a document that was read before it comes too late."""
        first, second, _ = self.ids
        with _Driver(self.make_target()) as target:
            target.write([self._document(first, 4)])
            target.delete([Gone(first), Gone(second, 8)])
            target.write([self._document(first, 5), self._document(second, 8)])
            target.expect({}, [first, second])

    def test_an_item_comes_back_above_the_version_of_its_deletion(self) -> None:
        """A source that knows the version of a deletion may undo the deletion."""
        first = self.ids[0]
        with _Driver(self.make_target()) as target:
            target.write([self._document(first, 1)])
            target.delete([Gone(first, 2)])
            target.expect({}, [first])
            target.write([self._document(first, 3)])
            target.expect({first: 3})

    def test_an_older_deletion_leaves_a_newer_document(self) -> None:
        """A process that was paused before a delete and continues later deletes no newer
        document.
        """
        first = self.ids[0]
        with _Driver(self.make_target()) as target:
            target.write([self._document(first, 9)])
            target.delete([Gone(first, 8)])
            target.expect({first: 9})

    def test_a_scan_gives_everything_once_and_in_order(self) -> None:
        """Page by page, with both limits respected, and without deleted documents."""
        first, second, third = self.ids
        with _Driver(self.make_target()) as target:
            target.write([self._document(each, 1) for each in (third, first, second)])
            target.expect({first: 1, second: 1, third: 1})
            assert target.scan(None, None, 10) == [first, second, third]
            assert target.scan(None, None, 2) == [first, second]
            assert target.scan(second, None, 2) == [third]
            assert target.scan(None, second, 10) == [first, second]
            target.delete([Gone(second)])
            target.expect({}, [second])
            assert target.scan(None, None, 10) == [first, third]

    def test_a_checksum_is_that_of_what_a_scan_gives(self) -> None:
        """For any range and any number of rows; a target without checksums passes."""
        first, second, third = self.ids
        with _Driver(self.make_target()) as target:
            target.write([self._document(name, version) for version, name in enumerate(self.ids)])
            target.delete([Gone(second)])
            target.write([self._document(third, 2**62)])
            target.expect({first: 0, third: 2**62}, self.ids)
            for after, until, limit in [
                (None, None, 10), (None, None, 1), (first, None, 10), (None, second, 10),
                (third, None, 1), (None, first, 1),
            ]:  # fmt: skip
                target.expect_checksum(after, until, limit)

    def _document(self, name: Id, version: int, digest: str | None = None) -> Document:
        return Document(name, version, self.body, digest)


class _Driver:
    """Calls a target's methods, plain or coroutine functions, and waits for its lag."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._lag = float(getattr(target, "lag_seconds", 0.0))
        self._runner = asyncio.Runner()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        close = getattr(self._target, "close", None)
        if close is not None:
            self._call(close)
        self._runner.close()

    def write(self, documents: Sequence[Document]) -> None:
        assert not self._call(self._target.write, documents)

    def delete(self, gone: Sequence[Gone]) -> None:
        assert not self._call(self._target.delete, gone)

    def read(self, ids: Sequence[Id]) -> Mapping[Id, Any]:
        found: Mapping[Id, Any] = self._call(self._target.read, ids)
        return found

    def scan(self, after: Id | None, until: Id | None, limit: int) -> list[Id]:
        return [name for name, _ in self._call(self._target.scan, after, until, limit)]

    def expect(self, versions: Mapping[Id, int], ids: Iterable[Id] | None = None) -> None:
        """Assert what is read; a target with a lag may take that long."""
        wanted = list(versions) if ids is None else list(ids)
        for _ in range(_LAG_TRIES if self._lag else 1):
            time.sleep(self._lag)
            found = {
                name: seen.version if isinstance(seen, Seen) else seen
                for name, seen in self.read(wanted).items()
            }
            if found == versions:
                return
        raise AssertionError(f"{dict(versions)} expected, the target returned {found}")

    def expect_checksum(self, after: Id | None, until: Id | None, limit: int) -> None:
        """Assert that the checksum of a range, if the target has checksums, matches its rows."""
        checksum = getattr(self._target, "checksum", None)
        if checksum is not None:
            rows = self._call(self._target.scan, after, until, limit)
            assert self._call(checksum, after, until, limit) == checksum_of(rows)

    def _call(self, function: Any, *args: Any) -> Any:
        async def call() -> Any:
            found = function(*args)
            return await found if inspect.isawaitable(found) else found

        return self._runner.run(call())


@dataclass
class LyingTarget:
    """A target in memory that simulates the failures of real targets.

    By default it keeps the contract. Its attributes make it misbehave, and may be changed
    at any time.

    Attributes:
        drop: the share of items that it accepts and does not keep, 0 to 1.
        half: of a bulk call it keeps the first half and accepts all.
        lag_seconds: for this long after a write, reads show the previous state.
        slow_seconds: the delay before it answers.
        hanging: it takes calls and does not answer them.
        resetting: it breaks off calls, before or after they have had their effect.
        refused: ids whose documents it refuses, each with a separate error.
        poison: ids that make a whole bulk call fail.
        seed: of its random choices.
    """

    drop: float = 0.0
    half: bool = False
    lag_seconds: float = 0.0
    slow_seconds: float = 0.0
    hanging: bool = False
    resetting: bool = False
    refused: frozenset[Id] = frozenset()
    poison: frozenset[Id] = frozenset()
    seed: int = 0

    def __post_init__(self) -> None:
        check_fields(self, refusal=ConfigError)
        self._random = random.Random(self.seed)
        self._lock = threading.Lock()
        self._continues = threading.Event()
        #: By id: version, digest, gone; each with the time from which it is shown, newest last.
        self._kept: dict[Id, list[tuple[float, int, str | None, bool]]] = {}
        #: The calls: the name of the method and the ids.
        self.calls: list[tuple[str, list[Id]]] = []
        #: Accepted items that were dropped.
        self.dropped = 0
        #: By id: the versions that reads returned, in order.
        self.shown: dict[Id, list[int | None]] = {}

    def read(self, ids: Sequence[Id]) -> dict[Id, Seen]:
        """Return the versions of the copies that exist; record what was shown."""
        self._behave("read", ids)
        with self._lock:
            found = {name: seen for name in ids if (seen := self._seen(name)) is not None}
            for name in ids:
                self.shown.setdefault(name, []).append(
                    found[name].version if name in found else None
                )
        return found

    def write(self, documents: Sequence[Document]) -> dict[Id, Exception]:
        """Accept documents."""
        ids = [document.id for document in documents]
        broken = self._behave("write", ids)
        self._refuse_all(ids)
        errors: dict[Id, Exception] = {
            name: ValueError(f"{name} is refused") for name in ids if name in self.refused
        }
        taken = documents[: (len(documents) + 1) // 2] if self.half else documents
        with self._lock:
            for document in taken:
                if document.id not in errors and not self._drops():
                    self._keep(document.id, document.version, document.digest, is_gone=False)
        self._break(broken)
        return errors

    def delete(self, gone: Sequence[Gone]) -> None:
        """Accept deletions."""
        ids = [each.id for each in gone]
        broken = self._behave("delete", ids)
        self._refuse_all(ids)
        with self._lock:
            for each in gone[: (len(gone) + 1) // 2] if self.half else gone:
                if not self._drops():
                    self._keep(
                        each.id, 2**63 if each.version is None else each.version, None, is_gone=True
                    )
        self._break(broken)

    def scan(self, after: Id | None, until: Id | None, limit: int) -> list[tuple[Id, Seen]]:
        """Return the copies, in order."""
        self._behave("scan", [])
        with self._lock:
            names: list[Any] = sorted(self._kept, key=_any)
            found = [
                (name, seen)
                for name in names
                if (after is None or name > after)
                and (until is None or name <= until)
                and (seen := self._seen(name)) is not None
            ]
        return found[:limit]

    def let_go(self) -> None:
        """End hanging calls with an error, and stop hanging."""
        self.hanging = False
        self._continues.set()

    def versions(self) -> dict[Id, int]:
        """Return the actual contents, regardless of the lag."""
        with self._lock:
            newest = {name: kept[-1] for name, kept in self._kept.items()}
        return {name: version for name, (_, version, _, is_gone) in newest.items() if not is_gone}

    def _seen(self, name: Id) -> Seen | None:
        shown = [each for each in self._kept.get(name, []) if each[0] <= time.monotonic()]
        if not shown or shown[-1][3]:
            return None
        return Seen(shown[-1][1], shown[-1][2])

    def _keep(self, name: Id, version: int, digest: str | None, *, is_gone: bool) -> None:
        kept = self._kept.setdefault(name, [])
        if kept and not is_gone:
            _, before, _, was_gone = kept[-1]
            if before > version or (before == version and was_gone):
                return
        if kept and is_gone and kept[-1][1] > version:
            return
        kept.append((time.monotonic() + self.lag_seconds, version, digest, is_gone))

    def _drops(self) -> bool:
        drops = self._random.random() < self.drop
        self.dropped += drops
        return drops

    def _behave(self, method: str, ids: Sequence[Id]) -> bool:
        with self._lock:
            self.calls.append((method, list(ids)))
            breaks, before = self.resetting, self._random.random() < 0.5
        if self.slow_seconds:
            time.sleep(self.slow_seconds)
        if self.hanging:
            self._continues.wait()
            raise ConnectionResetError("a hanging call was ended")
        if breaks and (before or method in ("read", "scan")):
            raise ConnectionResetError("reset before the call had an effect")
        return breaks

    def _refuse_all(self, ids: Sequence[Id]) -> None:
        if not self.poison.isdisjoint(ids):
            raise ValueError(f"cannot parse the request: {sorted(map(str, ids))[:3]}")

    @staticmethod
    def _break(broken: bool) -> None:
        if broken:
            raise ConnectionResetError("reset after the call had its effect")


def _any(name: Any) -> Any:
    # Ids of one type have an order; their declared type does not say so.
    return name
