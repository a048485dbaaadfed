"""queues: a thousand queues beside one.

A worker serves a thousand queues, as for a thousand customers, and its peer one queue. Each has a
separate database on one server, and they take turns in rounds:

- drain: the same number of jobs, in one queue or in all queues, emptied by one worker process.
  Peers that have queues do the same: those of pgqueuer are entrypoints, those of graphile-worker
  run one job at a time each.
- idle: one worker without jobs: the CPU time of its sessions in the server, and its transactions, a
  second. The rest of the server is not counted: autovacuum visits the tables that the drains have
  filled, and the engine that is measured first would pay for all.
- pickup: a job at a time, at random moments, each to the next queue: from the known commit to the
  handler's first line.
"""

from __future__ import annotations

import contextlib
import tempfile
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from forebay_bench._counters import Counters
from forebay_bench._cpu import COLUMNS, CPU_NOTE, JobCosts, micros_text
from forebay_bench._drains import Drains
from forebay_bench._engine import Runner, runner
from forebay_bench._idle_cost import idle_cost
from forebay_bench._journal import Journal
from forebay_bench._measure import (
    Spread,
    in_turns,
    percentile,
    ratio_of_rounds,
    round_figure,
)
from forebay_bench._processes import wait_until
from forebay_bench._report import Bar, Report, Table
from forebay_bench.peers import installed
from forebay_bench.scenarios.latency import arrivals, set_wakeup

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from matplotlib.figure import Figure

    from forebay_bench._place import Place
    from forebay_bench._run import Options

_QUEUES: Final = 1_000
_JOBS: Final = 20_000
_FULL_FACTOR: Final = 5

#: A peer's share of the jobs, so that slow peers do not take all the time.
_SHARES: Final = {"pgqueuer": 0.25, "procrastinate": 0.05, "graphile-worker": 0.25}

#: Peers without queues that one worker serves all: a poller for each queue of pg-boss would only
#: poll.
_LEFT_OUT: Final = {"pg-boss": "it has a poller for each queue"}

#: The pickup: jobs a second, and for how long.
_PER_SECOND: Final = 20
_PICKUP_SECONDS: Final = 8.0
_PICKUP_FULL_SECONDS: Final = 40.0
_ARRIVAL_SECONDS: Final = 60.0

#: The worker has started and is idle. Duties of maintenance come every few seconds to a minute: a
#: short window has them by chance.
_REST_SECONDS: Final = 12.0
_IDLE_SECONDS: Final = 60.0


@dataclass
class Measured:
    """One engine with a number of queues."""

    engine: str
    queues: int
    label: str
    process: Runner
    rates: list[float] = field(default_factory=list)
    waits: list[float] = field(default_factory=list)
    idle_ms: float | None = None
    idle_transactions: float = 0.0

    @property
    def name(self) -> str:
        """Its name among the figures."""
        return f"{self.engine}_{'one' if self.queues == 1 else 'many'}"


def run(place: Place, options: Options, progress: Callable[[str], None]) -> Report:
    """Run the scenario."""
    rounds = options.rounds or (5 if options.full else 3)
    count = max(20, int(_JOBS * options.scale * (_FULL_FACTOR if options.full else 1)))
    queues = max(3, int(_QUEUES * min(1.0, options.scale)))
    costs = JobCosts(place)
    peers = [peer for peer in installed(options.compare) if peer.NAME not in _LEFT_OUT]
    with contextlib.ExitStack() as stack:
        measured = []
        for number in (1, queues):
            process = stack.enter_context(
                runner("forebay", place, migrated=True, create=partial(set_wakeup, on=True))
            )
            measured.append(Measured("forebay", number, f"Forebay, {number:,} queues", process))
        for peer in peers:
            process = stack.enter_context(runner(peer.NAME, place, create=peer.create))
            measured.append(Measured(peer.NAME, queues, f"{peer.NAME}, {queues:,} queues", process))
        for each in measured:
            if each.queues > 1:
                each.process.call("spread", queues=each.queues)
            _turn(each, costs, each.queues, counted=False)  # each queue has had a job
        turns = {
            each.name: partial(
                _turn, each, costs, max(each.queues, int(count * _SHARES.get(each.engine, 1.0)))
            )
            for each in measured
        }
        for name, rates in in_turns(turns, rounds, progress).items():
            next(each for each in measured if each.name == name).rates = rates
        seconds = (_PICKUP_FULL_SECONDS if options.full else _PICKUP_SECONDS) * min(
            1.0, options.scale
        )
        with tempfile.TemporaryDirectory(prefix="forebay-bench-") as folder:
            for each in measured:
                progress(f"{each.label}: pickup")
                pick_up(each, Journal(Path(folder) / each.name), seconds)
        rest = min(1.0, max(0.1, options.scale))
        for each in measured:
            progress(f"{each.label}: an idle worker")
            _rest(place, each, rest)
    return _report(measured, costs, rounds, [*(peer.NOTE for peer in peers), *_missing(options)])


def _missing(options: Options) -> list[str]:
    return [
        f"left out: {name}, {why}"
        for name, why in _LEFT_OUT.items()
        if name in (options.compare or ())
    ]


def _turn(each: Measured, costs: JobCosts, count: int, *, counted: bool = True) -> float:
    each.process.call("fill", count=count)
    handler = "async" if each.name == "forebay_one" else ""
    return Drains(each.process, costs, each.name).drain(handler, count, counted=counted)


def pick_up(each: Measured, journal: Journal, seconds: float) -> None:
    """Let another process enqueue one job at a time, and record how long each waited."""
    moments = arrivals(_PER_SECOND, seconds)
    with contextlib.ExitStack() as stack:
        producer = Runner(each.engine, each.process.dsn)
        stack.callback(producer.close)
        if each.queues > 1:
            producer.call("spread", queues=each.queues)
        counters = stack.enter_context(Counters())
        each.process.send("serve", path=counters.path, journal=str(journal.path))
        for first, part in ((0, moments[:4]), (4, moments)):  # connections and plans
            committed = producer.call("trickle", first=first, moments=part)
            expected = first + len(part)
            wait_until(partial(_has, journal, expected), _ARRIVAL_SECONDS, (
                    f"{each.label}: all jobs "
                    f"ran"
                    ))  # fmt: skip
        each.waits = [at - committed[number - 4] for number, at in journal.read(4)]
        counters.stop = True
        each.process.read_message()


def _has(journal: Journal, count: int) -> bool:
    return journal.count >= count


def _rest(place: Place, each: Measured, share: float) -> None:
    """Measure an idle worker of a separate process."""
    process = Runner(each.engine, each.process.dsn)
    try:
        if each.queues > 1:
            process.call("spread", queues=each.queues)
        process.call("idle", count=1)
        idle = idle_cost(
            place, each.process.dsn, wait=_REST_SECONDS * share, seconds=_IDLE_SECONDS * share
        )
        each.idle_ms, each.idle_transactions = idle.cpu_ms, idle.transactions
    finally:
        process.close()


def _report(
    measured: Sequence[Measured], costs: JobCosts, rounds: int, notes: Sequence[str]
) -> Report:
    by_name = {each.name: each for each in measured}
    one, many = by_name["forebay_one"], by_name["forebay_many"]
    rival = by_name.get("pgqueuer_many")
    figures: dict[str, Any] = {
        each.name: {
            "queues": each.queues,
            "per_s": round_figure(Spread.of(each.rates).median),
            "pickup_p50_ms": round_figure(percentile(each.waits, 0.5) * 1000),
            "pickup_p99_ms": round_figure(percentile(each.waits, 0.99) * 1000),
            "idle_server_ms_per_s": round_figure(each.idle_ms),
            "idle_transactions_per_s": round_figure(each.idle_transactions),
        }
        for each in measured
    }
    figures["cpu_us"] = costs.figures()
    columns = [
        ("one worker"),
        "jobs/s",
        (f"{rounds} rounds"),
        *COLUMNS,
        ("pickup p50 ms"),
        "p99 ms",
        "idle: server ms/s",
        "transactions/s",
    ]
    rows = []
    for each in measured:
        spread = Spread.of(each.rates)
        rows.append(
            (
                each.label,
                f"{spread.median:,.0f}",
                f"{spread.low:,.0f} to {spread.high:,.0f}",
                *costs.cells(each.name),
                *(f"{percentile(each.waits, share) * 1000:.3g}" for share in (0.5, 0.99)),
                micros_text(each.idle_ms),
                f"{each.idle_transactions:.3g}",
            )
        )
    # A hundredth of a second is what the system counts: an idle worker may be below it.
    is_known = many.idle_ms is not None and one.idle_ms is not None
    idle = many.idle_ms / max(one.idle_ms, 1.0) if is_known else None  # type: ignore[operator, type-var]
    bars = [
        Bar("drain, against one queue", ratio_of_rounds(many.rates, one.rates), at_least=0.5),
        Bar(
            "drain, against pgqueuer",
            None if rival is None else ratio_of_rounds(many.rates, rival.rates),
            at_least=3,
        ),
        Bar("an idle worker: server CPU, against one queue", idle, at_most=2),
        Bar("pickup, median ms", percentile(many.waits, 0.5) * 1000, at_most=3),
    ]
    return Report(
        figures,
        [Table(columns, rows, right=columns[1:])],
        bars,
        notes=[
            CPU_NOTE,
            f"pickup: {_PER_SECOND} jobs a second, one commit each, at random moments",
            "idle: one worker; the CPU time of its sessions is counted in hundredths of a second",
            *notes,
        ],
        draw=partial(_draw, measured),
    )


def _draw(measured: Sequence[Measured], figure: Figure) -> None:
    from forebay_bench.plot import rates  # noqa: PLC0415 - imports matplotlib

    rates(
        figure,
        "A full queue, or many of them, emptied by one worker process",
        {each.label: (Spread.of(each.rates), each.engine) for each in measured},
    )
