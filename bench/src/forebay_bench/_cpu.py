"""CPU time of a job, by engine: of all processes of the server, and of the engine's own processes.

On a shared machine it is steadier than a rate: it counts the work, and not the time in which others
had the core.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from forebay_bench._measure import process_cpu_seconds, round_figure, server_cpu_seconds

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from forebay_bench._place import Place

#: Columns for ``JobCosts.cells``.
COLUMNS: Final = ("server CPU us", "client CPU us")

#: What these columns mean.
CPU_NOTE: Final = (
    "CPU time is that of one job, over all rounds: of all processes of the server, and of the "
    "process that enqueues or works"
)


@dataclass(slots=True)
class _Total:
    jobs: float = 0.0
    server: float | None = 0.0
    client: float | None = 0.0


class JobCosts:
    """The CPU time of engines, summed up over all turns: the system counts it in hundredths of a
    second.

    Args:
        place: the server; only the CPU time of one that the benchmark started is known.
    """

    def __init__(self, place: Place) -> None:
        self._postmaster_pid = place.postmaster_pid
        self._totals: dict[str, _Total] = {}

    def counted(
        self,
        name: str,
        work: Callable[[], float],
        jobs: float | Callable[[float], float],
        pids: Collection[int] = (),
    ) -> Callable[[], float]:
        """Return work that does the same and is counted.

        Args:
            name: the engine.
            work: returns the rate of a turn.
            jobs: how many jobs a turn has, or how many at a rate.
            pids: the engine's processes; without any, their CPU time is unknown.
        """

        def turn() -> float:
            server, client = self.server_seconds(), _clients(pids)
            rate = work()
            self.add(
                name,
                jobs(rate) if callable(jobs) else jobs,
                server=_difference(self.server_seconds(), server),
                client=_difference(_clients(pids), client),
            )
            return rate

        return turn

    def add(self, name: str, jobs: float, *, server: float | None, client: float | None) -> None:
        """Count a turn.

        Args:
            name: the engine.
            jobs: how many.
            server: CPU seconds of the server; None: unknown.
            client: CPU seconds of the engine's processes; None: unknown.
        """
        total = self._totals.setdefault(name, _Total())
        total.jobs += jobs
        total.server = None if total.server is None or server is None else total.server + server
        total.client = None if total.client is None or client is None else total.client + client

    def micros(self, name: str) -> tuple[float | None, float | None]:
        """Return the microseconds of server and client for each job of an engine; None: unknown."""
        total = self._totals.get(name)
        if total is None or not total.jobs:
            return None, None
        factor = 1e6 / total.jobs
        return (
            None if total.server is None else total.server * factor,
            None if total.client is None else total.client * factor,
        )

    def figures(self) -> dict[str, Any]:
        """Return it for the report."""
        found = {}
        for name in self._totals:
            server, client = self.micros(name)
            found[name] = {"server": round_figure(server), "client": round_figure(client)}
        return found

    def cells(self, name: str) -> tuple[str, str]:
        """Return it for a row of a table with ``COLUMNS``."""
        server, client = (micros_text(value) for value in self.micros(name))
        return server, client

    def server_seconds(self) -> float | None:
        """Return the CPU seconds of the server so far; None: unknown."""
        return None if self._postmaster_pid is None else server_cpu_seconds(self._postmaster_pid)


def micros_text(value: float | None) -> str:
    """Return microseconds for a table."""
    return "-" if value is None else f"{value:.3g}" if value < 1000 else f"{value:,.0f}"


def _clients(pids: Collection[int]) -> float | None:
    found = [process_cpu_seconds(pid) for pid in pids]
    known = [seconds for seconds in found if seconds is not None]
    return sum(known) if known and len(known) == len(found) else None


def _difference(after: float | None, before: float | None) -> float | None:
    return None if after is None or before is None else after - before
