"""archive: what a claim and an enqueue cost by the number of old segments.

The log deletes no single rows: done jobs stay where they are, and old segments are the archive.
Each size has a separate database on one server, cut into small segments with the same number of
rows at every size, so that the cost of small segments is not taken for the cost of many. Real
enqueues, claims and settlements fill, work off and seal the segments; then the sizes take turns as
in ``backlog``. Every size has the same number of segments ahead.

``rows_per_segment`` is 1,000 in the full run. By default a segment has 1,000,000: 1,000 of them
would be a thousand million jobs.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Final

from forebay_bench._maintenance import maintenance
from forebay_bench._report import Bar, Report
from forebay_bench.engines.forebay_log import Log, cut, extend
from forebay_bench.scenarios.backlog import Size, draw, figures_of, measure, ratio, table

if TYPE_CHECKING:
    from collections.abc import Callable

    from forebay_bench._place import Place
    from forebay_bench._run import Options

_FULL_SEGMENTS: Final = (1, 100, 1_000)
_QUICK_SEGMENTS: Final = (1, 30, 300)
_FULL_ROWS: Final = 1_000
_QUICK_ROWS: Final = 200
_ROWS_MIN: Final = 100
_RESERVE_SEGMENTS: Final = 32
_ROUNDS: Final = 5
_BATCH_ROWS: Final = 10_000
_QUICK_STEPS: Final = 60
_FULL_STEPS: Final = 300


def run(place: Place, options: Options, progress: Callable[[str], None]) -> Report:
    """Run the scenario."""
    rows = _FULL_ROWS if options.full else max(_ROWS_MIN, int(_QUICK_ROWS * options.scale))
    segments = _FULL_SEGMENTS if options.full else _QUICK_SEGMENTS
    counts = tuple(dict.fromkeys(max(1, int(count * options.scale)) for count in segments))
    steps = max(2, int((_FULL_STEPS if options.full else _QUICK_STEPS) * min(1.0, options.scale)))
    with contextlib.ExitStack() as stack:
        measured: list[Size] = []
        for count in counts:
            progress(f"{count:,} segments of {rows:,} rows are filled and worked off")
            dsn = stack.enter_context(place.database(f"archive_{count}"))
            reserve = _RESERVE_SEGMENTS * rows
            cut(dsn, segment_rows=rows, reserve_rows=reserve)
            log = Log(dsn)
            stack.callback(log.conn.close)
            _archive(log, count, rows)
            stack.enter_context(maintenance(dsn))
            measured.append(Size(count, log))
        measure(measured, options.rounds or _ROUNDS, steps, progress)
    figures: dict[str, Any] = {
        "archive": [{**figures_of(each), "rows_per_segment": rows} for each in measured]
    }
    smallest = measured[0]
    bars = [
        Bar(
            f"claim, {each.size:,} old segments to {smallest.size:,}",
            ratio(each.claims, smallest.claims),
            at_most=1.25,
        )
        for each in measured[1:]
    ]
    return Report(
        figures,
        [table(measured, "old segments")],
        bars,
        notes=[
            f"segments of {rows:,} rows at every size, {_RESERVE_SEGMENTS} of them ahead",
            (
                f"claims of 10 jobs; {len(smallest.claims)} rounds of {steps} steps; ratios "
                f"are medians over rounds"
            ),
        ],
        draw=lambda figure: draw(figure, measured, "old segments"),
    )


def _archive(log: Log, count: int, rows: int) -> None:
    """Fill and work off this number of segments, and seal them."""
    # One row more: a segment is sealed when a number beyond it was drawn.
    left = count * rows + 1
    while left:
        batch = min(left, _BATCH_ROWS, _RESERVE_SEGMENTS // 2 * rows)
        log.enqueue(batch)
        left -= batch
        log.empty(_BATCH_ROWS)
        log.conn.execute("select forebay.seal_v1()")
        extend(log.conn)
