"""What the calls of endpoints found, reported to the database.

The database adds the reports of all processes up and decides about breakers and pauses. See
docs/design/endpoints.md.
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import asdict, field
from typing import TYPE_CHECKING, Any, Final

from forebay._dataclass import dataclass
from forebay.errors import DatabaseUnavailable
from forebay.model.text import bounded_text, logger

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from forebay.ops.deliveries import EndpointState

log = logger("forebay.endpoints")

#: How often counts are reported that change no state.
_SECONDS: Final = 2.0

#: The shortest time between two reports.
_LEAST_SECONDS: Final = 0.1

#: After a report that failed.
_AGAIN_SECONDS: Final = 1.0

_ERROR_BYTES_MAX: Final = 1000

#: The last element counts latencies from about 4.5 hours up to the end of time.
_LATENCIES: Final = 25


@dataclass(slots=True)
class Counters:
    """What calls of one endpoint found since the last report.

    Attributes:
        failures: failed calls in a row at the end.
        answered: whether the endpoint answered at all, also with a permanent error.
        pause_seconds: how long the endpoint asked to be left alone; None: it did not.
        gone: the endpoint wants no messages any more.
        latencies: element n counts accepted messages whose time from publication is below 2^n
            milliseconds, and not below 2^(n-1).
    """

    accepted: int = 0
    failed: int = 0
    rejected: int = 0
    failures: int = 0
    answered: bool = False
    error: str | None = None
    pause_seconds: float | None = None
    gone: bool = False
    latencies: list[int] = field(default_factory=list)

    def accept(self, seconds: float) -> None:
        """Count a message that was accepted this long after its publication."""
        self.accepted += 1
        self.answered = True
        self.failures = 0
        place = min(max(0, int(seconds * 1000)).bit_length(), _LATENCIES - 1)
        latencies = self.latencies
        if place >= len(latencies):
            latencies += [0] * (place + 1 - len(latencies))
        latencies[place] += 1

    def reject(self, error: str, *, gone: bool = False) -> None:
        """Count a permanent error."""
        self.rejected += 1
        self.answered = True
        self.failures = 0
        self.gone |= gone
        self.error = error

    def throttle(self, error: str, seconds: float) -> None:
        """Count an answer that asks for a pause of the endpoint."""
        self.failed += 1
        self.answered = True
        self.failures = 0
        self.pause_seconds = max(seconds, self.pause_seconds or 0.0)
        self.error = error

    def fail(self, error: str) -> None:
        """Count a message that may be accepted later."""
        self.failed += 1
        self.failures += 1
        self.error = error

    def refuse(self, error: str, failures: int) -> None:
        """Count a message that this process may not send; these failures open the breaker."""
        self.failures = max(self.failures, failures)
        self.error = error

    def add(self, later: Counters) -> None:
        """Add what was counted after this."""
        self.accepted += later.accepted
        self.failed += later.failed
        self.rejected += later.rejected
        self.failures = later.failures if later.answered else self.failures + later.failures
        self.answered |= later.answered
        self.gone |= later.gone
        self.error = later.error or self.error
        if later.pause_seconds is not None:
            self.pause_seconds = later.pause_seconds
        size = max(len(self.latencies), len(later.latencies))
        both = [each + [0] * (size - len(each)) for each in (self.latencies, later.latencies)]
        self.latencies = [sum(counts) for counts in zip(*both, strict=True)]

    def as_report(self, endpoint_id: int) -> dict[str, Any]:
        """Return an element of the argument of ``forebay.report_deliveries_v1()``."""
        error = self.error and bounded_text(self.error, bytes_max=_ERROR_BYTES_MAX)
        return asdict(self) | {"endpoint_id": endpoint_id, "error": error}


class Reports:
    """The counts of all endpoints in this process that are not reported yet.

    Owns them and the calls that report them. It guarantees that what changes the state of an
    endpoint is reported within 0.1 s, and everything else within about two seconds; while the
    database is unavailable, counts are kept.

    A crash loses what was not reported.

    Args:
        report: the call: takes the reports, returns the states of these endpoints.
        on_state: called with the id of each endpoint that was reported, its state, None if it does
            not exist, and whether nothing that changes the state was counted since.
    """

    def __init__(
        self,
        report: Callable[[list[dict[str, Any]]], Awaitable[Sequence[EndpointState]]],
        on_state: Callable[[int, EndpointState | None, bool], None],
    ) -> None:
        self._report = report
        self._on_state = on_state
        self._counters: dict[int, Counters] = {}
        self._urgent: set[int] = set()
        self._wake = asyncio.Event()

    def of(self, endpoint_id: int) -> Counters:
        """Return where to count for an endpoint; ask again after each wait."""
        counters = self._counters.get(endpoint_id)
        if counters is None:
            counters = self._counters[endpoint_id] = Counters()
        return counters

    def hurry(self, endpoint_id: int) -> None:
        """Report an endpoint at once: its state changes."""
        self._urgent.add(endpoint_id)
        self._wake.set()

    async def run(self) -> None:
        """Report until cancelled."""
        loop = asyncio.get_running_loop()
        due = loop.time() + _SECONDS
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(due):
                    await self._wake.wait()
            self._wake.clear()
            is_due = loop.time() >= due
            if is_due:
                due = loop.time() + _SECONDS
            try:
                await self.flush(None if is_due else self._urgent)
            except DatabaseUnavailable as error:
                log.debug("deliveries are reported later: %s", error)
                await asyncio.sleep(_AGAIN_SECONDS)
            except Exception:
                log.exception("deliveries could not be reported")
                await asyncio.sleep(_AGAIN_SECONDS)
            await asyncio.sleep(_LEAST_SECONDS)

    async def flush(self, endpoint_ids: set[int] | None = None) -> None:
        """Report some endpoints, or all.

        Raises:
            DatabaseUnavailable: and the counts are kept.
        """
        wanted = self._counters.keys() if endpoint_ids is None else endpoint_ids
        taken = {
            each: self._counters.pop(each) for each in sorted(wanted) if each in self._counters
        }
        self._urgent -= taken.keys()
        if not taken:
            return
        try:
            states = await self._report([one.as_report(each) for each, one in taken.items()])
        except BaseException:
            for each, counters in taken.items():
                if (later := self._counters.get(each)) is not None:
                    counters.add(later)
                self._counters[each] = counters
            self._urgent |= taken.keys()
            self._wake.set()
            raise
        found = {state.endpoint_id: state for state in states}
        for each in taken:
            self._on_state(each, found.get(each), each not in self._urgent)
