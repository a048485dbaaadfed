"""lanes: what idle lanes cost a worker that serves them all, beside one busy lane.

A lane is a queue and a priority; here each lane is a separate queue, as for a thousand customers. Each has had a job, so
that it has a cursor, and is idle since then, except for one. Each number of lanes has a separate database on one server, and
they take turns in rounds.

``claim_p50_ms`` is the claim of 10 jobs from the busy lane. ``idle_poll_ms`` is a poll of all lanes when none has a job,
which a worker makes every 50 to 100 ms while it has nothing to do; ``busy_poll_ms`` is the poll that finds the busy one,
which precedes a worker's claims. A worker of a thousand lanes needs one poll for all lanes from which it then claims.
"""

from __future__ import annotations

import contextlib
import statistics
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from forebay.ops import protocol
from forebay_bench._maintenance import maintenance
from forebay_bench._measure import ratio_of_rounds, round_figure
from forebay_bench._report import Bar, Report, Table
from forebay_bench.engines.forebay_log import Log
from forebay_bench.plot import costs

if TYPE_CHECKING:
    from collections.abc import Callable

    from matplotlib.figure import Figure

    from forebay_bench._place import Place
    from forebay_bench._run import Options

_LANES: Final = (1, 10, 100, 1_000)
_ROUNDS: Final = 5
_CLAIM_ROWS: Final = 10
_QUICK_STEPS: Final = 60
_FULL_STEPS: Final = 500
_POLLS: Final = 20


@dataclass
class Lanes:
    """A log with a number of lanes, and the medians of each round."""

    count: int
    log: Log
    claims: list[float] = field(default_factory=list)
    idle_polls: list[float] = field(default_factory=list)
    busy_polls: list[float] = field(default_factory=list)

    def prepare(self) -> None:
        """Make the lanes: a group for each queue, and a job that was done in each."""
        log = self.log
        for number in range(1, self.count):
            queue = f"quiet_{number}"
            log.group_ids.append(log.run(protocol.open_group(queue, "default")))
            log.conn.execute("select forebay.enqueue('noop', '{}', %s)", [queue])
        log.enqueue(1)
        self._settle_down()

    def take_turn(self, steps: int) -> None:
        """Measure this number of claims, and some polls of each sort."""
        self._settle_down()
        self.idle_polls.append(statistics.median(self._poll()[0] for _ in range(_POLLS)))
        claims, polls = [], []
        for number in range(-5, steps):
            self.log.enqueue(_CLAIM_ROWS)
            poll, lanes = self._poll()
            lane = next(lane for lane in lanes if lane.queue == self.log.queue)
            claim, count = self.log.claim_and_settle(_CLAIM_ROWS, lane.lane, lane.group_id)
            if number >= 0 and count == _CLAIM_ROWS:
                claims.append(claim)
                polls.append(poll)
        self.claims.append(statistics.median(claims))
        self.busy_polls.append(statistics.median(polls))

    def _poll(self) -> tuple[float, list[protocol.ReadyLane]]:
        started = time.perf_counter()
        lanes = self.log.ready()
        return time.perf_counter() - started, lanes

    def _settle_down(self) -> None:
        """Work until a poll finds nothing."""
        while lanes := self.log.ready():
            for lane in lanes:
                self.log.claim_and_settle(1000, lane.lane, lane.group_id)


def run(place: Place, options: Options, progress: Callable[[str], None]) -> Report:
    """Run the scenario."""
    counts = tuple(dict.fromkeys(max(1, int(count * min(1, options.scale))) for count in _LANES))
    steps = max(2, int((_FULL_STEPS if options.full else _QUICK_STEPS) * min(1.0, options.scale)))
    rounds = options.rounds or _ROUNDS
    with contextlib.ExitStack() as stack:
        measured: list[Lanes] = []
        for count in counts:
            progress(f"{count:,} lanes are made")
            dsn = stack.enter_context(place.database(f"lanes_{count}"))
            log = Log(dsn)
            stack.callback(log.close)
            lanes = Lanes(count, log)
            lanes.prepare()
            stack.enter_context(maintenance(dsn))
            measured.append(lanes)
        for number in range(rounds):
            for lanes in measured if number % 2 == 0 else reversed(measured):
                progress(f"round {number + 1} of {rounds}: {lanes.count:,} lanes")
                lanes.take_turn(steps)
    figures = [_figures(each) for each in measured]
    one = measured[0]
    columns = ["lanes", "claim ms, p50", "rounds", "idle poll ms", "poll that finds one, ms", "claim, to one lane"]  # fmt: skip
    rows = [
        (
            f"{each.count:,}",
            f"{found['claim_p50_ms']:.3g}",
            f"{min(each.claims) * 1000:.3g} to {max(each.claims) * 1000:.3g}",
            f"{found['idle_poll_ms']:.3g}",
            f"{found['busy_poll_ms']:.3g}",
            f"{ratio_of_rounds(each.claims, one.claims):.2f}",
        )
        for each, found in zip(measured, figures, strict=True)
    ]
    bars = [
        Bar(
            f"claim, {each.count:,} lanes to {one.count:,}",
            ratio_of_rounds(each.claims, one.claims),
            at_most=2,
        )
        for each in measured[1:]
    ]
    return Report(
        {"lanes": figures},
        [Table(columns, rows, right=columns)],
        bars,
        notes=[
            f"claims of {_CLAIM_ROWS} jobs; {rounds} rounds of {steps} claims; ratios are medians over rounds",
            "every lane is a separate queue with one group; a poll covers all of them in one call",
        ],
        draw=lambda figure: _draw(figure, figures),
    )


def _figures(each: Lanes) -> dict[str, Any]:
    return {
        "lanes": each.count,
        "claim_p50_ms": round_figure(statistics.median(each.claims) * 1000),
        "idle_poll_ms": round_figure(statistics.median(each.idle_polls) * 1000),
        "busy_poll_ms": round_figure(statistics.median(each.busy_polls) * 1000),
    }


def _draw(figure: Figure, found: list[dict[str, Any]]) -> None:
    costs(
        figure,
        "The cost of a claim, and of polling all lanes, by the number of lanes",
        "lanes, one of them busy",
        [each["lanes"] for each in found],
        [
            ("claim of 10", "-", [each["claim_p50_ms"] for each in found]),
            ("asking all", "--", [each["idle_poll_ms"] for each in found]),
        ],
    )
