"""Drains of an engine, each with the CPU time of its jobs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from forebay.errors import ForebayError

if TYPE_CHECKING:
    from forebay_bench._cpu import JobCosts
    from forebay_bench._engine import Runner


@dataclass(frozen=True, slots=True)
class Drains:
    """The process of an engine whose drains are counted."""

    engine: Runner
    costs: JobCosts
    name: str
    """By which they are counted; empty: by that of the handler."""

    def drain(self, handler: str, count: int, *, counted: bool = True) -> float:
        """Empty the queue; return jobs a second."""
        server = self.costs.server_seconds()
        found = self.engine.call("drain", handler=handler)
        after = self.costs.server_seconds()
        check(found, count)
        if counted:
            self.costs.add(
                self.name or handler,
                count,
                server=None if server is None or after is None else after - server,
                client=found["cpu_seconds"],
            )
        return count / float(found["seconds"])


def check(found: dict[str, Any], count: int) -> None:
    """Raise an error if a worker left a job, or ran one twice."""
    if found["ended"] != count:
        raise ForebayError(f"{found['ended']} jobs ended, of {count} that waited")
