"""keys: what a poll, a claim and a settlement cost by the number of limit keys that wait.

Three queues take turns, each with a separate session: one without keys; one with ten keys, each with many jobs and as many slots
as a claim takes; and one with a hundred thousand keys, each with one job and one slot. What is measured is the CPU time of the
server's process, and the write-ahead log of a job from its enqueue to its settlement.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from forebay.ops import protocol
from forebay_bench._maintenance import maintenance
from forebay_bench._measure import (
    process_cpu_seconds,
    ratio_of_rounds,
    round_figure,
    wal_bytes,
)
from forebay_bench._report import Bar, Report, Table
from forebay_bench.engines.forebay_log import Log

if TYPE_CHECKING:
    from collections.abc import Callable

    from forebay_bench._place import Place
    from forebay_bench._run import Options

_KEYS: Final = 100_000
_FEW: Final = 10
_CLAIM_ROWS: Final = 100
_ROUNDS: Final = 5
_QUICK_CLAIMS: Final = 20
_FULL_CLAIMS: Final = 100
_STEPS: Final = ("poll", "claim", "settlement")

_ENQUEUE: Final = """
select forebay.enqueue_many(jsonb_agg(
    jsonb_build_object('kind', 'noop', 'queue', %s::text, 'args', jsonb_build_object('i', i))
    || case when %s::bigint > 0 then jsonb_build_object('limit_key', 'tenant ' || i %% %s::bigint) else '{}' end
    order by i))
from generate_series(%s::bigint, %s::bigint) i
"""


@dataclass
class Waiting:
    """A queue with waiting jobs, and the session that works on it; CPU milliseconds of each round, by what was measured."""

    name: str
    log: Log
    keys: int
    cpu_ms: dict[str, list[float]] = field(default_factory=dict)
    wal: list[float] = field(default_factory=list)

    def fill(self, jobs: int) -> float:
        """Enqueue jobs with keys in turn; return the bytes of write-ahead log for each."""
        before = wal_bytes(self.log.conn)
        for first in range(0, jobs, 5_000):
            last = min(first + 5_000, jobs) - 1
            self.log.conn.execute(
                _ENQUEUE, [self.name, self.keys, max(1, self.keys), first, last], prepare=True
            )
        return (wal_bytes(self.log.conn) - before) / jobs

    def take_turn(self, claims: int) -> None:
        """Measure this number of polls, claims and settlements, each after the other."""
        spent = dict.fromkeys(_STEPS, 0.0)
        pid = self.log.conn.info.backend_pid
        taken = 0
        before = wal_bytes(self.log.conn)

        for _ in range(claims):
            times = [process_cpu_seconds(pid) or 0.0]
            lanes = self.log.ready()
            times.append(process_cpu_seconds(pid) or 0.0)
            claim_no, jobs = self.log.claim_lane(_CLAIM_ROWS, lanes[0].lane)
            times.append(process_cpu_seconds(pid) or 0.0)
            self.log.run(protocol.settle(self.log.lease_id, [protocol.Flush(claim_no, 1)]))
            times.append(process_cpu_seconds(pid) or 0.0)
            assert len(jobs) == _CLAIM_ROWS, f"{self.name}: {len(jobs)} jobs"
            taken += len(jobs)
            for what, began, ended in zip(_STEPS, times, times[1:], strict=False):
                spent[what] += ended - began
        self.wal.append((wal_bytes(self.log.conn) - before) / taken)
        for what, seconds in spent.items():
            self.cpu_ms.setdefault(what, []).append(seconds / claims * 1000)


def run(place: Place, options: Options, progress: Callable[[str], None]) -> Report:
    """Run the scenario."""
    rounds = options.rounds or _ROUNDS
    claims = max(
        2, int((_FULL_CLAIMS if options.full else _QUICK_CLAIMS) * min(1.0, options.scale))
    )
    # Each key has one job, so the jobs of all turns are that many keys at least.
    keys = max(int(_KEYS * min(1.0, options.scale)), (rounds + 1) * claims * _CLAIM_ROWS)
    jobs = (rounds + 2) * claims * _CLAIM_ROWS
    with place.database("keys") as dsn:
        queues = [
            Waiting("plain", Log(dsn, "plain"), 0),
            Waiting("few", Log(dsn, "few"), _FEW),
            Waiting("many", Log(dsn, "many"), keys),
        ]
        limit = "select forebay.limit_queue(%s, key_concurrency => %s)"
        queues[1].log.conn.execute(limit, ["few", _CLAIM_ROWS])
        queues[2].log.conn.execute(limit, ["many", 1])
        enqueued = {}
        for queue in queues:
            progress(f"{queue.name}: jobs are enqueued")
            enqueued[queue.name] = queue.fill(max(jobs, queue.keys))
        with maintenance(dsn):
            for queue in queues:  # Not measured: the first second after limits were set.
                queue.take_turn(claims)
                queue.cpu_ms.clear()
                queue.wal.clear()
            for number in range(rounds):
                progress(f"round {number + 1} of {rounds}")
                for queue in queues if number % 2 == 0 else queues[::-1]:
                    queue.take_turn(claims)
        for queue in queues:
            queue.log.close()
    figures = [_figures(queue, enqueued) for queue in queues]
    names = ["no keys", f"{_FEW} keys", f"{keys:,} keys of one job"]
    columns = ["", "poll, ms", "claim, ms", "settlement, ms", "log, bytes a job"]
    rows = [
        (
            name,
            *(f"{found[what]:.3g}" for what in ("poll_ms", "claim_ms", "settlement_ms")),
            f"{found['wal_bytes']:,.0f}",
        )
        for name, found in zip(names, figures, strict=True)
    ]
    _, few, many = queues
    bars = [
        Bar(
            f"{what}, {keys:,} keys to {_FEW}: CPU",
            round_figure(ratio_of_rounds(many.cpu_ms[what], few.cpu_ms[what])),
            at_most=2,
        )
        for what in ("poll", "claim")
    ]
    bars.append(
        Bar(
            "write-ahead log of a job, many keys to none",
            round_figure(figures[2]["wal_bytes"] / figures[0]["wal_bytes"]),
            at_most=2,
        )
    )
    return Report(
        {"keys": figures},
        [Table(columns, rows, right=columns[1:])],
        bars,
        notes=[
            f"{rounds} rounds of {claims} claims of {_CLAIM_ROWS} jobs; CPU time of the server's process of the session, medians of rounds",
            f"limits: {_CLAIM_ROWS} jobs at once of each of the {_FEW} keys, one of each of the others",
        ],
    )


def _figures(queue: Waiting, enqueued: dict[str, float]) -> dict[str, Any]:
    return {
        "queue": queue.name,
        "keys": queue.keys,
        **{
            f"{what}_ms": round_figure(statistics.median(values))
            for what, values in queue.cpu_ms.items()
        },
        "wal_bytes": round_figure(enqueued[queue.name] + statistics.median(queue.wal)),
    }
