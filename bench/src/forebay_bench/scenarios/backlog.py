"""backlog: what a claim and an enqueue cost by the number of jobs that wait.

Each size has a separate database on one server, filled through the public function, ten thousand
jobs a call, on two connections, while no worker and no maintenance runs: the state after workers
were down for a night. Then maintenance starts, and the sizes take turns in rounds. One step is a
claim of 10 jobs, their settlement, and 10 enqueues of one job each, so that the number of waiting
jobs stays the same. A round gives the medians of its steps; a size is compared with the smallest
one round by round.

``claim_p50_ms`` is the claim alone, at its p50 over all rounds; ``enqueue_p50_ms`` an enqueue with
its commit. ``claim_pages`` is how many pages the server reads for a claim, cached or not: the
median of some claims that are counted and not timed. ``enqueue_errors`` counts calls that failed
while the queue was filled.
"""

from __future__ import annotations

import contextlib
import statistics
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import psycopg

from forebay_bench._maintenance import maintenance
from forebay_bench._measure import percentile, ratio_of_rounds, round_figure
from forebay_bench._report import Bar, Report, Table
from forebay_bench.engines.forebay_log import Log
from forebay_bench.plot import costs

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from matplotlib.figure import Figure

    from forebay_bench._place import Place
    from forebay_bench._run import Options

_QUICK: Final = (1_000, 100_000, 1_000_000)
_FULL: Final = (1_000, 100_000, 10_000_000)
_ROUNDS: Final = 5
_CLAIM_ROWS: Final = 10
_QUICK_STEPS: Final = 60
_FULL_STEPS: Final = 300
#: Claims whose pages are counted, per round.
_COUNTED: Final = 5
_FILL_ROWS: Final = 10_000
_FILL_CONNECTIONS: Final = 2


@dataclass
class Size:
    """A log of some size, and its figures, a list for each round."""

    size: int
    log: Log
    claims: list[list[float]] = field(default_factory=list)
    enqueues: list[list[float]] = field(default_factory=list)
    pages: list[int] = field(default_factory=list)
    """Pages that the server read for claims that were counted and not timed."""

    def take_turn(self, steps: int) -> None:
        """Measure this number of steps."""
        claims, enqueues = [], []
        # The last call for this size was a while ago: warm up first, since a busy worker is warm.
        for number in range(-5, steps):
            seconds, count = self.log.claim_and_settle(_CLAIM_ROWS)
            each = [self.log.enqueue_one() for _ in range(_CLAIM_ROWS)]
            if number >= 0 and count == _CLAIM_ROWS:
                claims.append(seconds)
                enqueues += each
        for _ in range(_COUNTED):
            self.pages.append(self.log.pages_of_claim(_CLAIM_ROWS))
            for _ in range(_CLAIM_ROWS):
                self.log.enqueue_one()
        self.claims.append(claims)
        self.enqueues.append(enqueues)


@dataclass(frozen=True, slots=True)
class Filled:
    """How the filling of a queue went."""

    errors: int
    per_second: float


def run(place: Place, options: Options, progress: Callable[[str], None]) -> Report:
    """Run the scenario."""
    wanted = _FULL if options.full else _QUICK
    sizes = tuple(dict.fromkeys(max(100, int(size * options.scale)) for size in wanted))
    steps = max(2, int((_FULL_STEPS if options.full else _QUICK_STEPS) * min(1.0, options.scale)))
    errors, rates = 0, []
    with contextlib.ExitStack() as stack:
        measured: list[Size] = []
        for size in sizes:
            progress(f"{size:,} jobs are enqueued without workers")
            dsn = stack.enter_context(place.database(f"backlog_{size}"))
            log = Log(dsn)
            stack.callback(log.conn.close)
            filled = fill(dsn, size)
            errors += filled.errors
            rates.append(filled.per_second)
            stack.enter_context(maintenance(dsn))
            measured.append(Size(size, log))
        measure(measured, options.rounds or _ROUNDS, steps, progress)
    figures: dict[str, Any] = {
        "backlog": [figures_of(each) for each in measured],
        "enqueued": sum(sizes),
        "enqueue_errors": errors,
        "enqueued_per_s": round_figure(rates[-1]),
    }
    smallest, largest = measured[0], measured[-1]
    bars = [
        Bar(
            f"claim, {each.size:,} waiting to {smallest.size:,}",
            ratio(each.claims, smallest.claims),
            at_most=1.25,
        )
        for each in measured[1:]
    ]
    bars.append(Bar("enqueues that failed without workers", errors, at_most=0))
    return Report(
        figures,
        [table(measured, "waiting")],
        bars,
        notes=[
            (
                f"claims of {_CLAIM_ROWS} jobs; {len(smallest.claims)} rounds of {steps} "
                f"steps; ratios are medians over rounds"
            ),
            (
                f"{largest.size:,} jobs were enqueued at {rates[-1]:,.0f} a second on "
                f"{_FILL_CONNECTIONS} connections"
            ),
        ],
        draw=lambda figure: draw(figure, measured, "jobs waiting"),
    )


def fill(dsn: str, count: int) -> Filled:
    """Enqueue this number of jobs, ten thousand a call on two connections."""
    left = [min(_FILL_ROWS, count - done) for done in range(0, count, _FILL_ROWS)]
    lock = threading.Lock()
    errors = 0

    def work() -> None:
        nonlocal errors
        with psycopg.connect(dsn, autocommit=True) as conn:
            while True:
                with lock:
                    if not left:
                        return
                    rows = left.pop()
                try:
                    conn.execute(
                        "select forebay.enqueue_many('noop', array(select "
                        "jsonb_build_object('i', i)"
                        " from generate_series(1, %s) i), 'bench')",
                        [rows],
                    )
                except psycopg.Error:
                    with lock:
                        errors += 1

    started = time.perf_counter()
    threads = [threading.Thread(target=work) for _ in range(_FILL_CONNECTIONS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return Filled(errors, count / (time.perf_counter() - started))


def measure(
    measured: Sequence[Size], rounds: int, steps: int, progress: Callable[[str], None]
) -> None:
    """Let the sizes take turns, in alternating order."""
    with psycopg.connect(measured[0].log.conn.info.dsn, autocommit=True) as conn:
        with contextlib.suppress(psycopg.errors.InsufficientPrivilege):
            conn.execute(
                "checkpoint"
            )  # Pages that are dirty from the filling then do not disturb the measurement.
    for number in range(rounds):
        for each in measured if number % 2 == 0 else reversed(measured):
            progress(f"round {number + 1} of {rounds}: {each.size:,}")
            each.take_turn(steps)


def ratio(large: Sequence[Sequence[float]], small: Sequence[Sequence[float]]) -> float:
    """Return the median over rounds of the ratio of their medians."""
    return ratio_of_rounds(
        [statistics.median(values) for values in large],
        [statistics.median(values) for values in small],
    )


def figures_of(each: Size) -> dict[str, Any]:
    """Return the raw figures of a size, over all rounds."""
    claims = [value for values in each.claims for value in values]
    enqueues = [value for values in each.enqueues for value in values]
    return {
        "size": each.size,
        "claim_p50_ms": round_figure(statistics.median(claims) * 1000),
        "claim_p99_ms": round_figure(percentile(claims, 0.99) * 1000),
        "enqueue_p50_ms": round_figure(statistics.median(enqueues) * 1000),
        "claim_pages": statistics.median(each.pages),
    }


def table(measured: Sequence[Size], what: str) -> Table:
    """Return a row for each size, with the spread of its rounds."""
    rows = []
    for each in measured:
        medians = [statistics.median(values) * 1000 for values in each.claims]
        figures = figures_of(each)
        rows.append(
            (
                f"{each.size:,}",
                f"{figures['claim_p50_ms']:.3g}",
                f"{min(medians):.3g} to {max(medians):.3g}",
                f"{figures['claim_p99_ms']:.3g}",
                f"{figures['enqueue_p50_ms']:.3g}",
                f"{ratio(each.claims, measured[0].claims):.2f}",
                f"{figures['claim_pages']:,.0f}",
            )
        )
    columns = [
        what,
        "claim ms, p50",
        "rounds",
        "p99",
        "enqueue ms, p50",
        "claim, to the first",
        "pages read",
    ]
    return Table(columns, rows, right=columns)


def draw(figure: Figure, measured: Sequence[Size], what: str) -> None:
    """Draw both costs over the size."""
    found = [figures_of(each) for each in measured]
    costs(
        figure,
        f"The cost of a claim and an enqueue, by {what}",
        what,
        [each["size"] for each in found],
        [
            (f"claim of {_CLAIM_ROWS}", "-", [each["claim_p50_ms"] for each in found]),
            ("enqueue of one", "--", [each["enqueue_p50_ms"] for each in found]),
        ],
    )
