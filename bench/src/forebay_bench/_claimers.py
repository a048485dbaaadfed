"""A process that claims one job, ends it, and claims the next, with as little other work as
possible in Python.

Started by the scenario ``fleet``: its number, and the address of each engine's database. It opens
its connections at the start. A command names the engine, the lanes, and the start and end time, or
how many jobs to end in large claims. The answer is how many jobs it ended. Statements are prepared;
Forebay's are those that a worker sends.
"""

from __future__ import annotations

import itertools
import sys
import time
from typing import TYPE_CHECKING, Final

import psycopg

from forebay.ops import protocol
from forebay_bench._child import answer, commands, sleep_until
from forebay_bench.engines import classic

if TYPE_CHECKING:
    from collections.abc import Callable

#: A process lives no longer than its lease, which is never renewed.
_LEASE_SECONDS: Final = 3600.0

#: Jobs of a claim, when many jobs are to end quickly.
_MANY: Final = 500

#: Nothing was ready: another process was faster, or no job is left.
_EMPTY_PAUSE_SECONDS: Final = 0.001


class Ours:
    """A lease, and claims of some lanes."""

    def __init__(self, dsn: str, number: int) -> None:
        self._conn = psycopg.connect(dsn, autocommit=True)
        self._number = number
        row = self._conn.execute(
            "select forebay.open_lease_v1(%s, %s, %s)",
            [f"claimer:{number}", _LEASE_SECONDS, _LEASE_SECONDS],
        ).fetchone()
        assert row is not None
        self._lease_id: int = row[0]
        self._claim_nos = itertools.count(1)

    def stepper(self, lanes: list[list[int]], limit: int) -> Callable[[], int]:
        """Return a step that claims and settles jobs, and returns how many: 0 if no lane had any.

        Args:
            lanes: group and lane. Processes begin with different lanes, and stay where there is
                work.
            limit: most jobs of a claim.
        """
        conn, lease_id, claim_nos = self._conn, self._lease_id, self._claim_nos
        place = self._number % len(lanes)

        def step() -> int:
            nonlocal place
            for _ in lanes:
                claim_no = next(claim_nos)
                group_id, lane = lanes[place]
                claim = protocol.claim(
                    lease_id=lease_id,
                    claim_no=claim_no,
                    floor=claim_no,
                    group_id=group_id,
                    lane=lane,
                    limit=limit,
                )
                taken = claim.decode(conn.execute(claim.sql, claim.params, prepare=True).fetchall())
                if taken:
                    settle = protocol.settle(lease_id, [protocol.Flush(claim_no, 1)])
                    conn.execute(settle.sql, settle.params, prepare=True)
                    return len(taken)
                place = (place + 1) % len(lanes)
            return 0

        return step


class Classic:
    """Claims of the ordinary table."""

    def __init__(self, dsn: str, _number: int) -> None:
        self._conn = psycopg.connect(dsn, autocommit=True)

    def stepper(self, _lanes: list[list[int]], limit: int) -> Callable[[], int]:
        """Return a step that claims and deletes jobs, and returns how many."""
        conn = self._conn

        def step() -> int:
            found = classic.claim(conn, limit)
            if found:
                classic.finish(conn, [row[0] for row in found])
            return len(found)

        return step


def work_until(step: Callable[[], int], until: float) -> int:
    """Take steps until a moment; return how many jobs they ended."""
    count = 0
    while time.monotonic() < until:
        ended = step()
        count += ended
        if not ended:
            time.sleep(_EMPTY_PAUSE_SECONDS)
    return count


def work_off(step: Callable[[], int], count: int) -> int:
    """Take steps until this number of jobs ended, or none is left; return how many did."""
    ended = 0
    while ended < count and (now := step()):
        ended += now
    return ended


def main() -> None:
    """Run as the scenario commands."""
    number = int(sys.argv[1])
    clients: dict[str, Ours | Classic] = {}
    for argument in sys.argv[2:]:
        name, _, dsn = argument.partition("=")
        clients[name] = (Classic if name == "classic" else Ours)(dsn, number)
    for command in commands():
        client, lanes = clients[command["name"]], command["lanes"]
        if "count" in command:
            answer(work_off(client.stepper(lanes, _MANY), command["count"]))
        else:
            sleep_until(command["from"])
            answer(work_until(client.stepper(lanes, 1), command["until"]))


if __name__ == "__main__":
    main()
