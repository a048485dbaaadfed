"""Two targets as one, while the second is built to replace the first.

Jobs end when both targets are right. The target being built must not harm the one in use: direct
writes do not wait for it, and while it is unavailable, jobs continue to write to the one in use,
and do not end. Invariant "a rebuild does no harm": docs/design/reconcile.md. Shown by:
tests/mirror/test_dual.py.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

from forebay.errors import TargetUnavailable
from forebay.mirror._breaker import SharedBreaker
from forebay.mirror._loop_thread import Calls
from forebay.mirror._model import Document, Gone, Seen, checked_errors, checked_seen
from forebay.mirror._reconcile import UNAVAILABLE, problem_of
from forebay.model.doors import declaring_door

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from forebay.mirror._model import Id, Target

#: The version shown for a copy that cannot be right: in one of the two only, or unknown in the new
#: one. It is below all versions, so that a document is written and a gone item is deleted.
_HALF: Final = Seen(-1)

#: Concurrent direct writes to the new target; further ones are left to the jobs.
_DIRECT_MAX: Final = 16


class DualTarget:
    """The target in use and the one that will replace it.

    An item that is in only one of them has version -1; one that differs has the lower version.

    Args:
        current: in use; searches continue to use it.
        new: being built.
        timeout: how long a call of one target may take, in seconds; less than the timeout of the
            mirror.
    """

    @declaring_door
    def __init__(self, current: Target, new: Target, *, timeout: float = 10.0) -> None:
        self.current = current
        self.new = new
        self.lag_seconds = max(_lag(current), _lag(new))
        #: For direct writes; only the result of the target in use counts.
        self.direct = DualDirectWrites(self)
        self._calls = Calls()
        self._seconds = timeout
        # Never open for long: the breaker of the mirror decides how long jobs wait.
        self._breaker = SharedBreaker(failures=1, seconds=1.0, seconds_max=1.0)

    async def read(self, ids: Sequence[Id]) -> dict[Id, Seen]:
        """Return the versions of items in either target.

        The version is -1 for items that are right in one target at most.
        """
        if not ids:
            return {}
        answers: tuple[Any, Any] = await asyncio.gather(
            self._call(self.current.read, ids),
            self._tried(self.new.read, ids),
            return_exceptions=True,
        )
        current, new = answers
        if isinstance(current, BaseException):
            raise current
        if isinstance(new, UNAVAILABLE):
            return dict.fromkeys(ids, _HALF)
        if isinstance(new, BaseException):
            raise new
        return _both(checked_seen(current), checked_seen(new))

    async def write(self, documents: Sequence[Document]) -> dict[Id, Exception]:
        """Write to both; return the errors of both."""
        return await self._apply(self.current.write, self.new.write, documents)

    async def delete(self, gone: Sequence[Gone]) -> dict[Id, Exception]:
        """Delete in both; return the errors of both."""
        return await self._apply(self.current.delete, self.new.delete, gone)

    async def scan(self, after: Id | None, until: Id | None, limit: int) -> list[tuple[Id, Seen]]:
        """Return the items in either target, in the order of the ids, as ``read`` does."""
        pages = [
            [(name, _as_seen(seen)) for name, seen in page]
            for page in await asyncio.gather(
                self._call(self.current.scan, after, until, limit),
                self._call(self.new.scan, after, until, limit),
            )
        ]
        # After the end of a full page that target may have more.
        ends: list[Any] = [page[-1][0] for page in pages if len(page) >= limit]
        found = _both(dict(pages[0]), dict(pages[1]))
        names: list[Any] = sorted(found, key=_any)
        if ends:
            names = [name for name in names if name <= min(ends)]
        return [(name, found[name]) for name in names[:limit]]

    async def close(self) -> None:
        """Close both, if they have a ``close``."""
        await self.direct.end()
        for target in (self.current, self.new):
            close = getattr(target, "close", None)
            if close is not None:
                await self._call(close)

    async def _apply(
        self, current: Callable[..., Any], new: Callable[..., Any], part: Sequence[Any]
    ) -> dict[Id, Exception]:
        answers = await asyncio.gather(
            self._call(current, part), self._tried(new, part), return_exceptions=True
        )
        for answer in answers:
            if isinstance(answer, BaseException):
                raise answer
        first, second = (checked_errors(answer) for answer in answers)
        return second | first

    async def _tried(self, function: Callable[..., Any], *args: Any) -> Any:
        """Call the new target, unless it failed a moment ago.

        Raises:
            TargetUnavailable: the target is unavailable.
            Exception: any other error of the target.
        """
        if not self._breaker.allows():
            raise TargetUnavailable("the new target failed a moment ago")
        try:
            answer = await self._call(function, *args)
        except UNAVAILABLE as error:
            self._breaker.failed()
            raise TargetUnavailable(f"the new target: {problem_of(error)}") from error
        except Exception:
            self._breaker.succeeded()  # it answered
            raise
        self._breaker.succeeded()
        return answer

    async def _call(self, function: Callable[..., Any], *args: Any) -> Any:
        return await self._calls.call(function, *args, seconds=self._seconds)


class DualDirectWrites:
    """Writes to the target in use, and to the new target without waiting for it.

    Args:
        dual: both targets.
    """

    def __init__(self, dual: DualTarget) -> None:
        self._dual = dual
        self._under_way: set[asyncio.Task[Any]] = set()

    async def write(self, documents: Sequence[Document]) -> Any:
        """Write documents; return the result of the target in use."""
        return await self._both(self._dual.current.write, self._dual.new.write, documents)

    async def delete(self, gone: Sequence[Gone]) -> Any:
        """Delete; return the result of the target in use."""
        return await self._both(self._dual.current.delete, self._dual.new.delete, gone)

    async def end(self) -> None:
        """Cancel calls that the new target has not answered yet."""
        under_way = list(self._under_way)
        for task in under_way:
            task.cancel()
        await asyncio.gather(*under_way, return_exceptions=True)

    async def _both(
        self, current: Callable[..., Any], new: Callable[..., Any], part: Sequence[Any]
    ) -> Any:
        if len(self._under_way) < _DIRECT_MAX:
            task = asyncio.create_task(self._dual._tried(new, part))  # noqa: SLF001 - its other half
            self._under_way.add(task)
            task.add_done_callback(self._ended)
        return await self._dual._call(current, part)  # noqa: SLF001

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._under_way.discard(task)
        if not task.cancelled():
            task.exception()  # Ignore the error: the item's job repairs it.


def _both(first: Mapping[Id, Seen], second: Mapping[Id, Seen]) -> dict[Id, Seen]:
    """Return the copies of two targets as if they were one.

    >>> both = _both({1: Seen(3), 2: Seen(3)}, {2: Seen(4), 3: Seen(1)})
    >>> {item: seen.version for item, seen in both.items()}
    {1: -1, 2: 3, 3: -1}
    """
    found: dict[Id, Seen] = {}
    for name in {**first, **second}:
        one, other = first.get(name), second.get(name)
        if one is None or other is None:
            found[name] = _HALF
        else:
            digest = one.digest if one.digest == other.digest else None
            found[name] = Seen(min(one.version, other.version), digest)
    return found


def _as_seen(seen: int | Seen) -> Seen:
    return seen if isinstance(seen, Seen) else Seen(seen)


def _lag(target: Target) -> float:
    return float(getattr(target, "lag_seconds", 0.0))


def _any(name: Any) -> Any:
    # Ids of one type have an order; their declared type does not say so.
    return name
