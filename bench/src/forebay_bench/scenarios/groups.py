"""groups: what a worker that serves a hundred consumer groups of one queue costs the server, beside one of a single group.

All groups have had every job. A poll is one call for all groups of the worker, which an idle worker makes every 50 to 100 ms; its
cost is the CPU time of the server's process. It is measured

- *quiet*: nothing is enqueued between two polls;
- *busy*: another queue gets a job before each poll;
- *first*: the session has forgotten its last poll, as every five seconds or when it is new.

The claim is one of ten jobs for one group: of a queue with one group, and of a queue with a hundred. Each worker has a session, and
the two take turns in rounds.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from forebay.ops import protocol
from forebay_bench._maintenance import maintenance
from forebay_bench._measure import process_cpu_seconds, ratio_of_rounds, round_figure
from forebay_bench._report import Bar, Report, Table
from forebay_bench.engines.forebay_log import Log
from forebay_bench.engines.queue import counted

if TYPE_CHECKING:
    from collections.abc import Callable

    import psycopg

    from forebay_bench._place import Place
    from forebay_bench._run import Options

_GROUPS: Final = 100
_ROUNDS: Final = 5
_CLAIM_ROWS: Final = 10
_QUICK_POLLS: Final = 300
_FULL_POLLS: Final = 3_000
_SLEEP_MILLIS: Final = 80
_STATES: Final = ("quiet", "busy", "first")

_FORGET: Final = "select set_config('forebay.idle_' || i, '', false) from generate_series(0, 15) i"


@dataclass
class Served:
    """A worker's session and the groups that it serves; CPU milliseconds of each round, by what was measured."""

    log: Log
    cpu_ms: dict[str, list[float]] = field(default_factory=dict)
    pages: dict[str, int] = field(default_factory=dict)

    @classmethod
    def of(cls, dsn: str, queue: str, groups: int) -> Served:
        """Open this number of groups, and let each have a job of the queue."""
        log = Log(dsn, queue)
        for number in range(1, groups):
            log.group_ids.append(log.run(protocol.open_group(queue, f"group_{number}")))
        log.enqueue(1)
        served = cls(log)
        served.settle_down()
        return served

    def settle_down(self) -> None:
        """Work until a poll finds nothing."""
        while lanes := self.log.ready():
            for lane in lanes:
                self.log.claim_and_settle(1000, lane.lane, lane.group_id)

    def poll(self) -> list[protocol.ReadyLane]:
        """Poll as an idle worker does."""
        return self.log.run(protocol.ready(self.log.group_ids, sleep_millis=_SLEEP_MILLIS))

    def take_turn(self, state: str, polls: int, others: psycopg.Connection[Any]) -> None:
        """Measure this number of idle polls."""

        def prepare() -> None:
            if state == "busy":
                others.execute("select forebay.enqueue('noop', '{}', 'another')", prepare=True)
            elif state == "first":
                self.log.conn.execute(_FORGET, prepare=True)

        def step() -> None:
            prepare()
            lanes = self.poll()
            assert lanes == [], lanes

        spent = self._cpu_seconds(step, polls)
        if state == "first":
            spent -= self._cpu_seconds(prepare, polls)
        self.cpu_ms.setdefault(state, []).append(max(0.0, spent) / polls * 1000)
        prepare()
        self.pages[state] = counted(self.log.conn, self.poll)[1]

    def claim_turn(self, claims: int, others: psycopg.Connection[Any]) -> None:
        """Measure this number of claims for the first group."""
        for _ in range(claims + 4):
            others.execute(
                "select forebay.enqueue_many('noop', array_fill('{}'::jsonb, array[%s]), %s)",
                [_CLAIM_ROWS, self.log.queue],
                prepare=True,
            )
        taken: list[int] = []

        def step() -> None:
            claim_no, jobs = self.log.claim_lane(_CLAIM_ROWS)
            assert len(jobs) == _CLAIM_ROWS
            taken.append(claim_no)

        self.cpu_ms.setdefault("claim", []).append(self._cpu_seconds(step, claims) / claims * 1000)
        self.pages["claim"] = counted(self.log.conn, step)[1]
        for claim_no in taken:
            self.log.run(protocol.settle(self.log.lease_id, [protocol.Flush(claim_no, 1)]))

    def _cpu_seconds(self, step: Callable[[], object], times: int) -> float:
        """Return the CPU seconds of the session's server process in this number of steps, after three more."""
        pid = self.log.conn.info.backend_pid
        for _ in range(3):
            step()
        before = process_cpu_seconds(pid) or 0.0
        for _ in range(times):
            step()
        return (process_cpu_seconds(pid) or 0.0) - before


def run(place: Place, options: Options, progress: Callable[[str], None]) -> Report:
    """Run the scenario."""
    count = max(2, int(_GROUPS * min(1, options.scale)))
    polls = max(2, int((_FULL_POLLS if options.full else _QUICK_POLLS) * min(1.0, options.scale)))
    rounds = options.rounds or _ROUNDS
    with place.database("groups") as dsn:
        progress(f"{count:,} groups are opened")
        one, many = Served.of(dsn, "one", 1), Served.of(dsn, "many", count)
        other = Log(dsn, "another")
        with maintenance(dsn):
            for number in range(rounds):
                order = (one, many) if number % 2 == 0 else (many, one)
                for state in _STATES:
                    progress(f"round {number + 1} of {rounds}: polls, {state}")
                    for served in order:
                        served.take_turn(state, polls, other.conn)
            for number in range(rounds):
                progress(f"round {number + 1} of {rounds}: claims")
                for served in (one, many) if number % 2 == 0 else (many, one):
                    served.claim_turn(max(2, polls // 2), other.conn)
        for log in (one.log, many.log, other):
            log.close()
    # A server elsewhere does not report the CPU time of its processes.
    is_known = place.postmaster_pid is not None
    figures = [_figures(state, one, many, is_known=is_known) for state in (*_STATES, "claim")]
    names = ["an idle poll, quiet", "an idle poll, busy", "the first poll", "a claim"]
    columns = ["", "CPU ms, one group", f"{count} groups", "ratio", "pages, one group", f"{count} groups"]  # fmt: skip
    rows = [
        (
            name,
            _shown(found["one_cpu_ms"]),
            _shown(found["many_cpu_ms"]),
            _shown(found["cpu_ratio"]),
            f"{found['one_pages']:,}",
            f"{found['many_pages']:,}",
        )
        for name, found in zip(names, figures, strict=True)
    ]
    bars = [
        bar
        for name, found, at_most in zip(names, figures, (3, 3, None, 1.5), strict=True)
        if at_most is not None
        for bar in (
            Bar(f"{name}, {count} groups to one: CPU", found["cpu_ratio"], at_most=at_most),
            Bar(f"{name}: pages", found["many_pages"] / found["one_pages"], at_most=at_most),
        )
    ]
    return Report(
        {"groups": figures},
        [Table(columns, rows, right=columns[1:])],
        bars,
        notes=[
            f"{rounds} rounds of {polls} polls and claims; ratios are medians over rounds; CPU time of the server's process of the session",
            f"all groups read one queue and have had every job; a claim is of {_CLAIM_ROWS} jobs for one group",
        ],
    )


def _figures(state: str, one: Served, many: Served, *, is_known: bool) -> dict[str, Any]:
    ours, theirs = many.cpu_ms[state], one.cpu_ms[state]
    return {
        "what": state,
        "one_cpu_ms": round_figure(statistics.median(theirs)) if is_known else None,
        "many_cpu_ms": round_figure(statistics.median(ours)) if is_known else None,
        "cpu_ratio": round_figure(ratio_of_rounds(ours, theirs)) if is_known else None,
        "one_pages": one.pages[state],
        "many_pages": many.pages[state],
    }


def _shown(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}"
